"""Tasks other than recall: copying, counting, tracking, and images. What a row has shown, in order; what follows what in it; what its
moves have come to; what it is a picture of.

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

Images: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, read patch by patch.

    digits   p1 p2 ... p64 ?          asked at the question mark: which of the ten digits is it?

A patch is one pixel (64 of them) or four (16), and its token is the sum of its grey levels, 0 to 16 each. A model sees the whole image at
once (``both_sides``). The images are real and few, so there is one split of them for each seed of the split: 1,437 to learn from, 360 to
test on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import ClassVar

import numpy as np

from ..errors import UserError
from .base import NOTHING, TEST, Rows, Task, choose


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


IMAGES, CLASSES, GREYS = 1797, 10, 16


@dataclass(frozen=True)
class Digits(Task):
    """Which digit is it?

    Args:
        patches: of an image, 16 or 64.
    """

    name: ClassVar[str] = "digits"
    published: ClassVar[str] = (
        "Alpaydin and Kaynak 1998, as scikit-learn carries it; patches as in ViT (arXiv 2010.11929)"
    )
    length: ClassVar[int] = 65
    both_sides: ClassVar[bool] = True

    rows: int = 1437
    test_rows: int = 360
    patches: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patches not in (16, 64):
            raise UserError(f"task:{self.name} has 16 or 64 patches, got {self.patches}.")
        if self.rows + self.test_rows > IMAGES:
            raise UserError(
                f"task:{self.name} has {IMAGES:,} images, got {self.rows} rows and {self.test_rows} test rows."
            )

    @property
    def levels(self) -> int:
        """How many values a patch can have."""
        return 64 // self.patches * GREYS + 1

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are."""
        return self.levels + CLASSES + 1

    @property
    def shortest(self) -> int:
        """The patches and the question."""
        return self.patches + 1

    def check(self, length: int) -> None:
        """An image has one length."""
        if length != self.shortest:
            raise UserError(
                f"task:{self.name} with {self.patches} patches has rows of {self.shortest} tokens, got {length}."
            )

    def longer(self, length: int) -> dict[int, int]:
        """Images do not get longer."""
        return {}

    def make(self, rng: np.random.Generator, rows: int, length: int) -> Rows:
        """Images in random order."""
        return self._rows(rng.integers(0, IMAGES, rows))

    def generate(self, rows: int, length: int, *seed: int) -> Rows:
        """Images of the training or of the test set, by the second number of the seed."""
        self.check(length)
        order = np.random.default_rng(seed[0]).permutation(IMAGES)
        chosen = order[::-1][:rows] if TEST in seed[1:2] else order[:rows]
        return self._rows(chosen)

    def _rows(self, chosen: np.ndarray) -> Rows:
        images, classes = load_images()
        side = {64: 1, 16: 2}[self.patches]
        sums = images[chosen].reshape(-1, 8 // side, side, 8 // side, side).sum((2, 4)).reshape(len(chosen), -1)
        question = np.full((len(chosen), 1), self.vocabulary - 1)
        tokens = np.concatenate([sums, question], 1).astype(np.int16)
        answers = np.full_like(tokens, NOTHING)
        answers[:, -1] = self.levels + classes[chosen]
        return tokens, answers


@lru_cache
def load_images() -> tuple[np.ndarray, np.ndarray]:
    """The images, (1797, 8, 8) whole numbers from 0 to 16, and their classes."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError(
            "task:digits needs scikit-learn, which has the images: pip install 'softmax-rnn[digits]'."
        ) from None
    images, classes = load_digits(return_X_y=True)
    return images.reshape(-1, 8, 8).astype(np.int64), classes
