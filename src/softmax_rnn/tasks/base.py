"""A task: rows of tokens with questions in them, made from a seed; and these rows as data of the lab.

    tokens    (rows, length)   what the model reads
    answers   (rows, length)   what it should say after reading position t, ``NOTHING`` where nothing is asked

Loss and accuracy count the asked positions only. Nothing is asked at the last position of a row, because a language model's target at t
is its label at t + 1. Rows are made in blocks, each from its own seed, so that row i is the same however many there are.

``data.source: task:mqar,pairs=16`` gives a run rows of a task in place of rows of a text. Such a row is (2, length): tokens, and the labels
of a language model (the answer asked after position t stands at t + 1). The tokenizer of such a run writes its tokens as numbers, so that
its checkpoints are complete: ``softmax-rnn generate RUN --prompt "3 17 5"`` works.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from ..lab.data import DataConfig, Prepared

NOTHING = -100  # the label that torch's cross-entropy leaves out
TRAIN, TEST = 0, 1  # the second number of a seed
BLOCK_ROWS = 512  # rows made at once
LONGER = (2, 4)  # times the length of training
LARGEST = 2**16  # of any size of a task: token ids and row numbers stay small
END = "<|end|>"  # of a text, which no row has

Rows = tuple[np.ndarray, np.ndarray]  # tokens and answers


@dataclass(frozen=True)
class Task(ABC):
    """What all tasks share.

    Args:
        rows: how many there are to train on.
        test_rows: how many there are to test on, at the length of training.
    """

    name: ClassVar[str]
    published: ClassVar[str]  # where the task comes from
    length: ClassVar[int]  # tokens per row, unless the run says otherwise
    at_least: ClassVar[dict[str, int]] = {}  # the smallest value of each field of a task, 1 if it is not here
    both_sides: ClassVar[bool] = (
        False  # whether a model may look at what comes after, too; then answers stand where they are asked
    )

    rows: int = 65536
    test_rows: int = 512

    def __post_init__(self) -> None:
        for f in fields(self):
            value, least = getattr(self, f.name), self.at_least.get(f.name, 1)
            if isinstance(value, int) and not least <= value <= LARGEST:
                raise UserError(f"task:{self.name} needs {f.name} from {least} to {LARGEST:,}, got {value}.")

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """How many different tokens there are."""

    @property
    @abstractmethod
    def shortest(self) -> int:
        """The shortest row that everything fits in."""

    @abstractmethod
    def make(self, rng: np.random.Generator, rows: int, length: int) -> Rows:
        """Some rows: tokens and answers, (rows, length) each."""

    def check(self, length: int) -> None:
        """Refuse a row that is too short."""
        if length < self.shortest:
            raise UserError(
                f"task:{self.name} with {self.sizes()} needs rows of at least {self.shortest} tokens, got {length}: "
                "raise data.length, or make the task smaller."
            )

    def longer(self, length: int) -> dict[int, int]:
        """At which greater lengths a model is tested, too, and on how many rows: about as many tokens each."""
        return {n * length: max(1, self.test_rows // n) for n in LONGER}

    def sizes(self) -> str:
        """The task's own fields, as a list in words."""
        own = [f for f in fields(self) if f.name not in ("rows", "test_rows")]
        return ", ".join(f"{f.name} {getattr(self, f.name)}" for f in own)

    def generate(self, rows: int, length: int, *seed: int) -> Rows:
        """That many rows of a seed, in blocks.

        >>> from softmax_rnn.tasks import task
        >>> tokens, answers = task("mqar").generate(3, 64, 0)
        >>> tokens.shape, (answers != NOTHING).sum(1).tolist()
        ((3, 64), [8, 8, 8])
        """
        self.check(length)
        kind = np.int16 if self.vocabulary < 2**15 else np.int32
        tokens, answers = np.empty((rows, length), kind), np.empty((rows, length), kind)
        for block, begin in enumerate(range(0, rows, BLOCK_ROWS)):
            some = self.make(np.random.default_rng([*seed, block]), BLOCK_ROWS, length)
            for whole, part in zip((tokens, answers), some, strict=True):
                whole[begin : begin + BLOCK_ROWS] = part[: rows - begin]
        return tokens, answers


def choose(
    rng: np.random.Generator, rows: int, among: int, count: int, weights: np.ndarray | None = None
) -> np.ndarray:
    """``count`` different numbers below ``among`` for each row, in random order; the likelier ones have larger weights.

    The smallest of exponential variables with rates w are a sample without replacement with weights w.
    """
    times = rng.standard_exponential((rows, among), dtype=np.float32)
    if weights is not None:
        times /= weights.astype(np.float32)
    if count < among:
        chosen = np.argpartition(times, count - 1, axis=1)[:, :count]
        order = np.argsort(np.take_along_axis(times, chosen, 1), axis=1)
        return np.take_along_axis(chosen, order, 1)
    return np.argsort(times, axis=1)


# As data of the lab.


@dataclass(frozen=True)
class TaskRows:
    """Rows of a task, all of one length; ``longer`` has others, by their length."""

    tokens: np.ndarray
    labels: np.ndarray
    longer: dict[int, TaskRows] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.stack([self.tokens[index], self.labels[index]])


def rows_of(task: Task, rows: int, length: int, *seed: int) -> TaskRows:
    """Rows with the labels of a language model; of one that sees both sides, where they are asked."""
    tokens, answers = task.generate(rows, length, *seed)
    if task.both_sides:
        return TaskRows(tokens, answers)
    labels = np.full_like(answers, NOTHING)
    labels[:, 1:] = answers[:, :-1]
    return TaskRows(tokens, labels)


def prepare_task(config: DataConfig) -> Prepared:
    """What a run trains and is tested on; a row that is too short, and sizes that do not fit, are refused."""
    from ..lab.data import Prepared
    from . import task

    chosen, seed = task(config.source), abs(config.split_seed)
    chosen.check(config.length)
    test = rows_of(chosen, chosen.test_rows, config.length, seed, TEST)
    for length, rows in chosen.longer(config.length).items():
        test.longer[length] = rows_of(chosen, rows, length, seed, TEST, length)
    train = rows_of(chosen, chosen.rows, config.length, seed, TRAIN)
    key = hashlib.sha256(f"1 {chosen!r} {config.length} {config.split_seed}".encode()).hexdigest()
    return Prepared(tokenizer(chosen.vocabulary), train, test, key, "generated", chosen.both_sides)


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Numbers with spaces between them, and an end that no row has."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {str(n): n for n in range(vocabulary)} | {END: vocabulary}
    numbers = Tokenizer(models.WordLevel(words, unk_token=END))
    numbers.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=numbers, eos_token=END, bos_token=END, pad_token=END)
