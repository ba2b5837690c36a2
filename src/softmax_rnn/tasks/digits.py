"""Images as rows: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, read patch by patch; which digit is it?

    digits   p1 p2 ... p64 ?          asked at the question mark: one of ten classes

A patch is one pixel (64 of them) or four (16), and its token is the sum of its grey levels, 0 to 16 each. A model sees the whole image at
once (``both_sides``). The images are real and few, so there is one split of them for each seed of the split: 1,437 to learn from, 360 to
test on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from ..errors import UserError
from .base import NOTHING, TEST, Rows, Task

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
        images, classes = load()
        side = {64: 1, 16: 2}[self.patches]
        sums = images[chosen].reshape(-1, 8 // side, side, 8 // side, side).sum((2, 4)).reshape(len(chosen), -1)
        question = np.full((len(chosen), 1), self.vocabulary - 1)
        tokens = np.concatenate([sums, question], 1).astype(np.int16)
        answers = np.full_like(tokens, NOTHING)
        answers[:, -1] = self.levels + classes[chosen]
        return tokens, answers


@lru_cache
def load() -> tuple[np.ndarray, np.ndarray]:
    """The images, (1797, 8, 8) whole numbers from 0 to 16, and their classes."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError(
            "task:digits needs scikit-learn, which has the images: pip install 'softmax-rnn[digits]'."
        ) from None
    images, classes = load_digits(return_X_y=True)
    return images.reshape(-1, 8, 8).astype(np.int64), classes
