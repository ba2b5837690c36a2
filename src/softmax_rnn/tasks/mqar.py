"""Multi-query associative recall: pairs of a key and a value, then the keys again: which value came with each?

    k1 v1 k2 v2 ... kN vN   .  k7 .  .  .  k2 .  .  k5 ...          asked after every repeated key: its value

Half of the vocabulary are keys, the other half values; the dots are random tokens. A query stands at a distance of the end of the pairs
that follows a power law (p ~ x^(power - 1)): most come early, some late.

``forgetting`` assigns some keys a second time, and the newest value counts: a memory that can only add gives a mixture.

Sizes. Published: vocabulary 8,192, rows of 64 to 1,024 tokens, 4 to 256 pairs, two layers. Here: vocabulary 256, rows of 64 with 8 pairs;
16 pairs and a key width of 8 or 16 separate the orders in about a minute on one core.
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
        pairs: of a key and a value, in each row.
        vocab: keys and values together.
        power: of the distance of queries, in (0, 1]; 1 is uniform.
        reassigned: how many of the pairs have a key that another pair has, too.
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
