"""Selective copying: tokens scattered among blanks, then repeated in order.

    .  a  .  .  c  .  b  .  .  .  |  |  |  |          asked after the first bars: a, c, b

Where the tokens stand is random, so a memory with fixed time constants does not help: content decides what to keep.

Sizes. Published: vocabulary 16, 16 tokens among 4,096 positions. Here: 8 tokens in rows of 64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .base import NOTHING, Rows, Task, choose


@dataclass(frozen=True)
class SelectiveCopy(Task):
    """Copy some tokens from among blanks.

    Args:
        tokens: how many to copy.
        vocab: different tokens to copy.
    """

    name: ClassVar[str] = "copy"
    published: ClassVar[str] = "Gu and Dao 2023, Mamba (arXiv 2312.00752), after Jing et al. 2019"
    length: ClassVar[int] = 64
    at_least: ClassVar[dict[str, int]] = {"vocab": 2}

    tokens: int = 8
    vocab: int = 16

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        return self.vocab + 2  # a blank and a bar

    @property
    def shortest(self) -> int:
        """The tokens, a bar for each, and one at the end."""
        return 2 * self.tokens + 1

    def make(self, rng: np.random.Generator, rows: int, length: int) -> Rows:
        """Some rows: tokens and answers, (rows, length) each."""
        blank, bar = self.vocab, self.vocab + 1
        scattered = length - self.tokens - 1
        row = np.full((rows, length), blank)
        row[:, scattered:] = bar
        where = np.sort(choose(rng, rows, scattered, self.tokens), 1)
        content = rng.integers(0, self.vocab, (rows, self.tokens))
        np.put_along_axis(row, where, content, 1)
        answers = np.full_like(row, NOTHING)
        answers[:, scattered:-1] = content
        return row, answers
