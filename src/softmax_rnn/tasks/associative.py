"""Recall: which value came with a key? Two kinds of rows, and two tasks of each.

Multi-query associative recall: pairs of a key and a value, then the keys again.

    mqar         k1 v1 k2 v2 ... kN vN   .  k7 .  .  .  k2 .  .  k5 ...          asked after every repeated key: its value
    forgetting   the same, with some keys assigned a second time: the newest value counts; a memory that can only add gives a mixture

Half of the vocabulary are keys, the other half values; the dots are random tokens. A query stands at a distance of the end of the pairs
that follows a power law (p ~ x^(power - 1)): most come early, some late. Published sizes: vocabulary 8,192, rows of 64 to 1,024 tokens,
4 to 256 pairs, two layers. Here: vocabulary 256, rows of 64 with 8 pairs.

In-context recall in a stream: every row has its own dictionary, and a key that comes again is followed by the same value.

    noisy    k1 v1  k4 v4  *  k1 [v1]  *  *  k2 v2  k4 [v4] ...          * is noise, of a vocabulary of its own
    fuzzy    aB xY  cdE z  aB [xY]  fG uvW  cdE [z] ...                  keys and values are words of one to three tokens

Asked, in brackets: all tokens of the value of a key that was seen before in the row. In ``fuzzy`` the last token of a word is of another
alphabet than those before it, so that words have an end; a key is found by all of its tokens together. Published sizes (MAD): vocabulary
16, rows of 128 tokens, a fifth of them noise; words of up to three tokens. Here fuzzy has alphabets of four tokens, so that many keys of
a row share tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..errors import UserError
from .base import NOTHING, Rows, Task, choose


@dataclass(frozen=True)
class MQAR(Task):
    """Multi-query associative recall.

    Args:
        pairs: of a key and a value, in each row.
        vocab: keys and values together.
        power: of the distance of queries, in (0, 1]; 1 is uniform.
    """

    name: ClassVar[str] = "mqar"
    published: ClassVar[str] = "Arora et al. 2023, Zoology (arXiv 2312.04927)"
    length: ClassVar[int] = 64
    at_least: ClassVar[dict[str, int]] = {"vocab": 4}

    pairs: int = 8
    vocab: int = 256
    power: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.power <= 1:
            raise UserError(f"task:{self.name} needs power above 0 and at most 1, got {self.power:g}.")
        if self.keys > self.vocab // 2:
            raise UserError(
                f"task:{self.name} has {self.keys} keys in a row, and a vocabulary of {self.vocab} has only {self.vocab // 2} keys: "
                "take fewer pairs or a larger vocab."
            )

    @property
    def keys(self) -> int:
        """Different keys in a row."""
        return self.pairs

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        return self.vocab

    @property
    def shortest(self) -> int:
        """All pairs, and a place for each query."""
        return 2 * self.pairs + 2 * self.keys

    def make(self, rng: np.random.Generator, rows: int, length: int) -> Rows:
        """Some rows: tokens and answers, (rows, length) each."""
        half, written = self.vocab // 2, 2 * self.pairs
        tokens = rng.integers(0, self.vocab, (rows, length))
        keys = choose(rng, rows, half, self.keys)
        written_keys, newest = self._order(rng, rows)
        values = half + rng.integers(0, half, (rows, self.pairs))
        tokens[:, 0:written:2] = np.take_along_axis(keys, written_keys, 1)
        tokens[:, 1:written:2] = values
        places = (length - written) // 2
        weights = np.arange(1, places + 1) ** (self.power - 1.0)
        where = written + 2 * choose(rng, rows, places, self.keys, weights)
        answers = np.full_like(tokens, NOTHING)
        np.put_along_axis(tokens, where, keys, 1)
        np.put_along_axis(answers, where, np.take_along_axis(values, newest, 1), 1)
        return tokens, answers

    def _order(self, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Which key each pair has, (rows, pairs), and which pair holds the value of each key, (rows, keys)."""
        each = np.broadcast_to(np.arange(self.pairs), (rows, self.pairs))
        return each, each


@dataclass(frozen=True)
class ForgettingMQAR(MQAR):
    """Multi-query associative recall with keys that are assigned again; the newest value counts.

    Args:
        reassigned: how many of the pairs have a key that another pair has, too; the other sizes are those of ``MQAR``.
    """

    name: ClassVar[str] = "forgetting"
    published: ClassVar[str] = (
        "MQAR with the updates of Schlag, Irie and Schmidhuber 2021 (arXiv 2102.11174, section 6.1)"
    )
    at_least: ClassVar[dict[str, int]] = {"vocab": 4, "reassigned": 0}

    reassigned: int = 4

    def __post_init__(self) -> None:
        if self.reassigned >= self.pairs:
            raise UserError(
                f"task:{self.name} reassigns {self.reassigned} of {self.pairs} pairs: at least one must be the first of its key."
            )
        super().__post_init__()

    @property
    def keys(self) -> int:
        """Different keys in a row."""
        return self.pairs - self.reassigned

    def _order(self, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
        again = rng.integers(0, self.keys, (rows, self.reassigned))
        each = np.broadcast_to(np.arange(self.keys), (rows, self.keys))
        written = rng.permuted(np.concatenate([each, again], 1), axis=1)
        here = written[:, :, None] == np.arange(self.keys)
        newest = self.pairs - 1 - here[:, ::-1].argmax(1)
        return written, newest


@dataclass(frozen=True)
class FuzzyRecall(Task):
    """Recall with keys and values of several tokens.

    Args:
        pairs: in the dictionary of a row.
        vocab: tokens of each of the four alphabets: keys and values, inside and at the end of a word.
        word: the most tokens of a key or value.
    """

    name: ClassVar[str] = "fuzzy"
    published: ClassVar[str] = "Poli et al. 2024, MAD (arXiv 2403.17844)"
    length: ClassVar[int] = 128
    at_least: ClassVar[dict[str, int]] = {"vocab": 2}

    pairs: int = 8
    vocab: int = 4
    word: int = 3
    noise: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab**self.word > 2**14:
            raise UserError(
                f"task:{self.name} with vocab {self.vocab} and word {self.word} has more than 16,384 words: make one of them smaller."
            )
        if self.pairs > len(self._dictionary()[1]):
            raise UserError(
                f"task:{self.name} has {self.pairs} pairs in a row, and there are only {len(self._dictionary()[1])} different keys: "
                "take fewer pairs or a larger vocab."
            )

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        return 5 * self.vocab  # four alphabets and noise

    @property
    def shortest(self) -> int:
        """Each pair twice, at its longest."""
        return 4 * self.word * self.pairs

    def make(self, rng: np.random.Generator, rows: int, length: int) -> Rows:
        """Some rows: tokens and answers, (rows, length) each."""
        keys, key_sizes = self._words(rng, rows, 0)
        values, value_sizes = self._words(rng, rows, 2)
        drawn = rng.integers(0, self.pairs, (rows, length))  # more than fit
        noisy = rng.random((rows, length)) < self.noise
        again = _seen_before(drawn, noisy, self.pairs)
        sizes = np.where(noisy, 1, _of(key_sizes, drawn) + _of(value_sizes, drawn))
        begin = sizes.cumsum(1) - sizes
        tokens = rng.integers(4 * self.vocab, 5 * self.vocab, (rows, length))  # noise, unless a pair is put there
        answers = np.full_like(tokens, NOTHING)
        end = begin + _of(key_sizes, drawn)
        for i in range(self.word):
            _put(tokens, begin + i, _of(keys[..., i], drawn), ~noisy & (i < _of(key_sizes, drawn)))
            here, value = ~noisy & (i < _of(value_sizes, drawn)), _of(values[..., i], drawn)
            _put(tokens, end + i, value, here)
            _put(answers, end + i - 1, value, here & again & (end + i < length))
        return tokens, answers

    def _dictionary(self) -> tuple[np.ndarray, np.ndarray]:
        """Every word that can be made, (words, word) tokens below 2 * vocab, the ends in the upper half; and its number of tokens."""
        counts = [self.vocab**size for size in range(1, self.word + 1)]
        number = np.concatenate([np.arange(count) for count in counts])
        sizes = np.repeat(np.arange(1, self.word + 1), counts)
        tokens = number[:, None] // self.vocab ** np.arange(self.word) % self.vocab
        tokens[np.arange(len(sizes)), sizes - 1] += self.vocab
        return tokens, sizes

    def _words(self, rng: np.random.Generator, rows: int, alphabet: int) -> tuple[np.ndarray, np.ndarray]:
        """Different words for the pairs of each row, (rows, pairs, word) tokens, and their numbers of tokens; all sizes are as likely."""
        tokens, sizes = self._dictionary()
        chosen = choose(rng, rows, len(sizes), self.pairs, 1 / np.bincount(sizes)[sizes])
        return alphabet * self.vocab + tokens[chosen], sizes[chosen]


@dataclass(frozen=True)
class NoisyRecall(FuzzyRecall):
    """Recall among noise.

    Args:
        pairs: in the dictionary of a row.
        vocab: tokens of each kind: keys, values, noise.
        noise: how likely a noise token is, in [0, 1).
    """

    name: ClassVar[str] = "noisy"
    vocab: int = 16
    word: ClassVar[int] = 1  # type: ignore[misc]
    noise: float = 0.2  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.noise < 1:
            raise UserError(f"task:{self.name} needs noise of at least 0 and below 1, got {self.noise:g}.")


def _of(table: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The entry of each row's table (rows, pairs) for what was drawn."""
    return np.take_along_axis(table, drawn, 1)


def _seen_before(drawn: np.ndarray, noisy: np.ndarray, pairs: int) -> np.ndarray:
    """Whether the same pair was drawn earlier in the row, where there was no noise."""
    first = np.stack([((drawn == pair) & ~noisy).argmax(1) for pair in range(pairs)], 1)
    return np.arange(drawn.shape[1]) > _of(first, drawn)


def _put(into: np.ndarray, where: np.ndarray, what: np.ndarray, mask: np.ndarray) -> None:
    """Write where the mask is True, as far as the row goes."""
    row, item = np.nonzero(mask & (where < into.shape[1]))
    into[row, where[row, item]] = what[row, item]
