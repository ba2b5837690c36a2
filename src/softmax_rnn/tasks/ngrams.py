"""In-context n-grams: every row is drawn from its own random Markov chain; predict the next token from what the row has shown.

    P(next | last n - 1 tokens) ~ Dirichlet(concentration), new for every row            asked in the second half of the row

The best anyone could do is to count. The next token is drawn, so nobody reaches 100%: ``ceiling`` is what knowing the chain would give.

Sizes. Published: 2 to 8 states, rows of 100 to 200 tokens, bigrams and trigrams. Here: 8 states, bigrams, rows of 128.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..errors import UserError
from .base import NOTHING, Rows, Task


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
