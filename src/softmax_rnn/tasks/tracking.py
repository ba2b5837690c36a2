"""State tracking: what has a row of moves come to so far? Asked after every token but the last.

    parity   bits                     is the number of ones even (0) or odd (1)?
    s3       permutations of three    their product, the newest on the left: one of six

Nothing is forgotten here and nothing can be skipped: one wrong step spoils the rest. Transition matrices with eigenvalues in [0, 1] cannot
do parity beyond the length of training (beta in [0, 1]); those that reach -1 can (beta in [0, 2]). S3 needs products of such reflections.

Sizes. Published: trained at 3 to 40 tokens, tested up to 256. Here: rows of 32, tested up to 128.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import numpy as np

from .base import NOTHING, Rows, Task

S3 = np.array(list(permutations(range(3))))  # (6, 3): permutation p sends i to S3[p][i]; 0 is the identity
PRODUCT = np.array([[int((S3[a][S3[b]] == S3).all(1).argmax()) for b in range(6)] for a in range(6)])  # a after b


@dataclass(frozen=True)
class Parity(Task):
    """The parity of the bits so far."""

    name: ClassVar[str] = "parity"
    published: ClassVar[str] = "Grazzi et al. 2024 (arXiv 2411.12537)"
    length: ClassVar[int] = 32
    moves: ClassVar[np.ndarray] = np.array([[0, 1], [1, 0]])  # state, move -> state

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        return len(self.moves)

    @property
    def shortest(self) -> int:
        """One move and a place for its answer."""
        return 2

    def make(self, rng: np.random.Generator, rows: int, length: int) -> Rows:
        """Some rows: tokens and answers, (rows, length) each."""
        tokens = rng.integers(0, self.vocabulary, (rows, length))
        answers = np.empty_like(tokens)
        state = np.zeros(rows, np.int64)
        for t in range(length):
            state = answers[:, t] = self.moves[tokens[:, t], state]
        answers[:, -1] = NOTHING
        return tokens, answers


@dataclass(frozen=True)
class SymmetricGroup(Parity):
    """The product of the permutations so far, in the symmetric group S3."""

    name: ClassVar[str] = "s3"
    published: ClassVar[str] = (
        "Merrill, Petty and Sabharwal 2024 (arXiv 2404.08819); Grazzi et al. 2024 (arXiv 2411.12537)"
    )
    moves: ClassVar[np.ndarray] = PRODUCT
