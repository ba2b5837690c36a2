"""What was run of the frontier, and what each point costs.

``Found`` reads runs from their folders, or packed, by their names (which hold the hash of their configuration). The **cost** of a point is
computed, not measured: bytes that one layer remembers of one sequence (a test holds it to the model's cache), and operations for one
more token in the attention of one layer, without its projections.

    constant state    4 rows columns heads                    rows: the symmetric powers of the keys, C(d + n, n); columns: values, and ones
    Near              and a ring of keys and values           4 window (d + e) heads
    keys and values   4 T (d + e) heads                       grows with the context T
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..errors import UserError
from ..forms import FORMS
from ..forms.base import constant_state, moment_bytes
from ..lab.store import DamagedRun, Run, is_packed, read_packed, read_run
from ..paper.claims import interval
from ..problem import Dims, Setting
from ..slots.kernels import Near
from .claims import decisive
from .design import Point

CHOOSING = 0  # the seed that chooses the learning rate


@dataclass(frozen=True)
class Cost:
    """Of one layer, for one sequence: what it remembers after so many tokens, and what one more token takes."""

    bytes: int
    operations: int
    constant: bool


@dataclass(frozen=True)
class Quality:
    """What the counted seeds of a point say: their mean, and its interval where there are several."""

    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]
    lr: float
    longest: float | None


def counted(point: Point) -> range:
    """The seeds that count."""
    arena = point.place
    return range(1, 1 + (arena.decisive if point in _decisive() else arena.seeds))


@lru_cache(1)
def _decisive() -> frozenset[Point]:
    return frozenset(decisive())


class Found:
    """Runs in folders under ``root``, and packed in any of ``packed``."""

    def __init__(self, root: Path, packed: Iterable[Path] = ()) -> None:
        self.root = root
        self._packed = {run.folder.name: run for folder in packed if is_packed(folder) for run in read_packed(folder)}
        self._read: dict[str, Run | None] = {}

    def run(self, point: Point, lr: float, seed: int) -> Run | None:
        """A run that has ended, or None."""
        config = point.config(lr, seed, self.root)
        name = config.folder.name
        if name not in self._read:
            self._read[name] = self._packed.get(name) or _finished(config.folder)
        return self._read[name]

    def quality(self, point: Point, lr: float, seed: int, longest: bool = False) -> float | None:
        """Accuracy or loss of a run; where it diverged, no answer is right, and the loss is infinite."""
        run, arena = self.run(point, lr, seed), point.place
        if run is None:
            return None
        if run.status == "diverged":
            return 0.0 if arena.quantity == "accuracy" else float("inf")
        key = "test_loss" if arena.quantity == "loss" else "test_accuracy"
        return float(run.last(f"{key}_{arena.longest}" if longest else key))

    def rate(self, point: Point) -> float | None:
        """The learning rate that seed 0 did best with; None while one of them is missing."""
        rates = point.place.rates
        if len(rates) == 1:
            return rates[0]
        found = {lr: self.quality(point, lr, CHOOSING) for lr in rates}
        tried = {lr: value for lr, value in found.items() if value is not None}
        if len(tried) < len(rates):
            return None
        best = max if point.place.quantity == "accuracy" else min
        return best(tried, key=lambda lr: tried[lr])

    def value(self, point: Point, seed: int, longest: bool = False) -> float | None:
        """What a counted seed says."""
        lr = self.rate(point)
        return None if lr is None else self.quality(point, lr, seed, longest)

    def summary(self, point: Point) -> Quality | None:
        """All counted seeds together; None while one of them is missing."""
        lr, seeds = self.rate(point), counted(point)
        values = [self.value(point, seed) for seed in seeds]
        there = [value for value in values if value is not None]
        if lr is None or len(there) < len(values):
            return None
        mean, low, high = interval(there)
        far = [self.value(point, seed, longest=True) for seed in seeds] if self._has_longest(point) else []
        beyond = statistics.fmean(x for x in far if x is not None) if far and None not in far else None
        several = len(there) > 1
        return Quality(mean, low if several else None, high if several else None, tuple(there), lr, beyond)

    @staticmethod
    def _has_longest(point: Point) -> bool:
        return point.place.quantity == "accuracy" and not point.place.both_sides

    def wanted(self, point: Point) -> list[tuple[float, int]]:
        """The runs that can be done now, as (learning rate, seed): those that choose, then those that count."""
        rates, lr = point.place.rates, self.rate(point)
        runs = [(rate, CHOOSING) for rate in rates] if len(rates) > 1 else []
        runs += [] if lr is None else [(lr, seed) for seed in counted(point)]
        return [one for one in runs if self.run(point, *one) is None]

    def forget(self) -> None:
        """Look again for what had not ended."""
        self._read = {name: run for name, run in self._read.items() if run is not None}


def _finished(folder: Path) -> Run | None:
    try:
        run = read_run(folder)
    except (FileNotFoundError, NotADirectoryError, DamagedRun, UserError):
        return None
    return run if run.status in ("done", "diverged") else None


def cost(point: Point, context: int) -> Cost:
    """What the point's attention costs after ``context`` tokens."""
    m, a = point.value, point.place
    one = Setting(m, Dims(1, a.heads, a.heads, 1, 1, point.key_dim, a.head_dim))
    channels = a.heads * (2 * point.key_dim + a.head_dim)
    tail, mixing = 4 * max(point.conv - 1, 0) * channels, 2 * point.conv * channels
    if constant_state(one) is not None:
        work = FORMS["recurrent"].cost(one)
        ring = m.kernel.window * (point.key_dim + a.head_dim) * 4 * a.heads if isinstance(m.kernel, Near) else 0
        return Cost(moment_bytes(one) + ring + tail, work.matmul + work.elementwise + mixing, True)
    all_ = Setting(m, Dims(1, a.heads, a.heads, 1, context, point.key_dim, a.head_dim))
    work = FORMS["parallel"].cost(all_)
    kept = context * (point.key_dim + a.head_dim) * 4 * a.heads
    return Cost(kept + tail, work.matmul + work.elementwise + mixing, False)
