"""Tasks as data of the lab: ``data.source: task:mqar,pairs=16`` gives a run rows of a task in place of rows of a text.

A row is (2, length): tokens, and the labels of a language model (the answer asked after position t stands at t + 1). The tokenizer of
such a run writes its tokens as numbers, so that its checkpoints are complete: ``softmax-rnn generate RUN --prompt "3 17 5"`` works.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from . import task
from .base import NOTHING, TEST, TRAIN, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from ..lab.data import DataConfig, Prepared

END = "<|end|>"


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


def rows_of(made: Task, rows: int, length: int, *seed: int) -> TaskRows:
    """Rows with the labels of a language model; of one that sees both sides, where they are asked."""
    tokens, answers = made.generate(rows, length, *seed)
    if made.both_sides:
        return TaskRows(tokens, answers)
    labels = np.full_like(answers, NOTHING)
    labels[:, 1:] = answers[:, :-1]
    return TaskRows(tokens, labels)


def prepare_task(config: DataConfig) -> Prepared:
    """What a run trains and is tested on; a row that is too short, and sizes that do not fit, are refused."""
    from ..lab.data import Prepared

    made, seed = task(config.source), abs(config.split_seed)
    made.check(config.length)
    test = rows_of(made, made.test_rows, config.length, seed, TEST)
    for length, rows in made.longer(config.length).items():
        test.longer[length] = rows_of(made, rows, length, seed, TEST, length)
    train = rows_of(made, made.rows, config.length, seed, TRAIN)
    key = hashlib.sha256(f"1 {made!r} {config.length} {config.split_seed}".encode()).hexdigest()
    return Prepared(tokenizer(made.vocabulary), train, test, key, "generated", made.both_sides)


def tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Numbers with spaces between them, and an end that no row has."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {str(n): n for n in range(vocabulary)} | {END: vocabulary}
    made = Tokenizer(models.WordLevel(words, unk_token=END))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, bos_token=END, pad_token=END)
