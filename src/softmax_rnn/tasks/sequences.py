"""Copying, counting and tracking: what a row has shown, in order; what follows what in it; what its moves have come to.

Selective copying: tokens scattered among blanks, then repeated in order.

    copy     .  a  .  .  c  .  b  .  .  .  |  |  |  |          asked after the first bars: a, c, b

Where the tokens stand is random, so a memory with fixed time constants does not help: content decides what to keep. Published sizes:
vocabulary 16, 16 tokens among 4,096 positions. Here: 8 tokens in rows of 64.

In-context n-grams: every row is drawn from its own random Markov chain; predict the next token from what the row has shown.

    ngrams   P(next | last n - 1 tokens) ~ Dirichlet(concentration), new for every row            asked in the second half of the row

The best anyone could do is to count. The next token is drawn, so nobody reaches 100%: ``ceiling`` is what knowing the chain would give.
Published sizes: 2 to 8 states, rows of 100 to 200 tokens, bigrams and trigrams. Here: 8 states, bigrams, rows of 128.

State tracking: what has a row of moves come to so far? Asked after every token but the last.

    parity   bits                     is the number of ones even (0) or odd (1)?
    s3       permutations of three    their product, the newest on the left: one of six

Nothing is forgotten here and nothing can be skipped: one wrong step spoils the rest. Transition matrices with eigenvalues in [0, 1] cannot
do parity beyond the length of training (beta in [0, 1]); those that reach -1 can (beta in [0, 2]). S3 needs products of such reflections.
Published sizes: trained at 3 to 40 tokens, tested up to 256. Here: rows of 32, tested up to 128.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

import numpy as np

from ..errors import UserError
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


@dataclass(frozen=True)
class NGrams(Task):
    """The next token of a random Markov chain.

    Args:
        n: 2 is a bigram, whose next token depends on the last one.
        vocab: the states of the chain.
        concentration: of the Dirichlet distribution; small ones make the chain predictable.
    """

    name: ClassVar[str] = "ngrams"
    published: ClassVar[str] = "Edelman et al. 2024 (arXiv 2402.11004)"
    length: ClassVar[int] = 128
    at_least: ClassVar[dict[str, int]] = {"n": 2, "vocab": 2}

    n: int = 2
    vocab: int = 8
    concentration: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.concentration <= 1000:
            raise UserError(f"task:ngrams needs concentration above 0 and at most 1,000, got {self.concentration:g}.")
        if self.vocab**self.n > 2**12:
            raise UserError(
                f"task:ngrams with n {self.n} and vocab {self.vocab} has {self.vocab**self.n:,} probabilities, more than 4,096: "
                "make one of them smaller."
            )

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        return self.vocab

    @property
    def shortest(self) -> int:
        """As many tokens to learn from as to ask for."""
        return 4 * self.n

    def make(self, rng: np.random.Generator, rows: int, length: int) -> Rows:
        """Some rows: tokens and answers, (rows, length) each."""
        tokens, _ = self._draw(rng, rows, length)
        answers = np.full_like(tokens, NOTHING)
        answers[:, length // 2 : -1] = tokens[:, length // 2 + 1 :]
        return tokens, answers

    def _draw(self, rng: np.random.Generator, rows: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens, and how likely the likeliest token was at each place."""
        contexts = self.vocab ** (self.n - 1)
        weights = rng.standard_gamma(self.concentration, (rows, contexts, self.vocab)) + 1e-12
        table = weights.cumsum(2) / weights.sum(2, keepdims=True)
        likeliest = weights.max(2) / weights.sum(2)
        tokens, best = np.empty((rows, length), np.int64), np.empty((rows, length))
        context, each = rng.integers(0, contexts, rows), np.arange(rows)
        for t in range(length):
            best[:, t] = likeliest[each, context]
            tokens[:, t] = (rng.random((rows, 1)) > table[each, context]).sum(1).clip(max=self.vocab - 1)
            context = (context * self.vocab + tokens[:, t]) % contexts
        return tokens, best

    def ceiling(self, length: int, seed: int = 0) -> float:
        """The accuracy of someone who knows every row's chain.

        >>> 0.5 < NGrams().ceiling(128) < 1
        True
        """
        _, best = self._draw(np.random.default_rng(seed), 512, length)
        return float(best[:, length // 2 + 1 :].mean())


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
