"""The frontier as data: what was run of it, what each point costs, the claims judged; and as lines for the terminal.

``Found`` reads runs from their folders, or packed, by their names (which hold the hash of their configuration). The **footprint** of a
point (what it costs) is computed, not measured: bytes that one layer remembers of one sequence (a test holds it to the model's cache), and
operations for one more token in the attention of one layer, without its projections.

    constant state    4 rows columns heads                    rows: the symmetric powers of the keys, C(d + n, n); columns: values, and ones
    Near              and a ring of keys and values           4 window (d + e) heads
    keys and values   4 T (d + e) heads                       grows with the context T
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..forms import FORMS
from ..forms.reference import constant_state, moment_bytes
from ..lab.run import Run, find_run
from ..lab.store import is_packed, read_packed
from ..paper.claims import Claim, conclude, run_test
from ..paper.intervals import interval
from ..paper.summary import judged
from ..problem import Dims, Setting
from ..report.data import ClaimView, finite, plain
from ..slots.kernels import Near
from ..state import readable_bytes
from .claims import CLAIMS, Contrast, decisive
from .design import ARENAS, POINTS, Point

CONTEXT = 1024  # tokens, at which a table states the cost of keys and values
CHOOSING = 0  # the seed that chooses the learning rate


@dataclass(frozen=True)
class Footprint:
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
            there = self._packed.get(name) or find_run(config.folder)
            self._read[name] = there if there is not None and there.ended else None
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


def footprint(point: Point, context: int) -> Footprint:
    """What the point's attention costs after ``context`` tokens."""
    m, a = point.value, point.place
    one = Setting(m, Dims(1, a.heads, a.heads, 1, 1, point.key_dim, a.head_dim))
    channels = a.heads * (2 * point.key_dim + a.head_dim)
    tail, mixing = 4 * max(point.conv - 1, 0) * channels, 2 * point.conv * channels
    if constant_state(one) is not None:
        work = FORMS["recurrent"].cost(one)
        ring = m.kernel.window * (point.key_dim + a.head_dim) * 4 * a.heads if isinstance(m.kernel, Near) else 0
        return Footprint(moment_bytes(one) + ring + tail, work.matmul + work.elementwise + mixing, True)
    all_ = Setting(m, Dims(1, a.heads, a.heads, 1, context, point.key_dim, a.head_dim))
    work = FORMS["parallel"].cost(all_)
    kept = context * (point.key_dim + a.head_dim) * 4 * a.heads
    return Footprint(kept + tail, work.matmul + work.elementwise + mixing, False)


# Colours by what a mechanism is; the first pattern that its name matches.
FAMILIES: dict[str, tuple[str, str]] = {
    "exact for recent tokens, series for older ones": (r"near2_w\d+", "#d1495b"),
    "delta rule": (r".*_delta|delta.*", "#8a4fbf"),
    "decay": (r".*_decay|fox", "#c8860d"),
    "series under a norm": (r"taylor\d+_norm", "#2a78c2"),
    "series over its sum": (r"taylor\d+", "#5d7f9e"),
    "linear attention": (r"linear.*", "#2e8b57"),
    "exponential": (r".*", "#1b1b1b"),
}


def family(mechanism: str) -> str:
    """What kind of mechanism it is.

    >>> family("taylor2_norm_decay"), family("taylor2_norm"), family("softmax")
    ('decay', 'series under a norm', 'exponential')
    """
    return next(name for name, (pattern, _) in FAMILIES.items() if re.fullmatch(pattern, mechanism))


@dataclass(frozen=True)
class Measured:
    """A point whose counted runs have all ended."""

    point: Point
    quality: Quality

    def plain(self) -> dict[str, Any]:
        """As JSON holds it; the cost of keys and values is a line: what it begins with, and what each token of context adds."""
        p, q = self.point, self.quality
        at, later = footprint(p, 1), footprint(p, 2)
        lines = {
            "bytes": [at.bytes - (later.bytes - at.bytes), later.bytes - at.bytes],
            "operations": [at.operations - (later.operations - at.operations), later.operations - at.operations],
        }
        return {
            "arena": p.arena,
            "mechanism": p.mechanism,
            "family": family(p.mechanism),
            "formula": str(p.value),
            "key_dim": p.key_dim,
            "conv": p.conv,
            "beta_max": p.beta_max,
            "constant": at.constant,
            **lines,
            **{k: finite(v) for k, v in asdict(q).items() if k != "values"},
            "values": [finite(v) for v in q.values],
        }


@dataclass(frozen=True)
class Frontier:
    """What a page shows; ``missing`` are points without all of their runs."""

    points: list[Measured]
    missing: list[Point]
    claims: list[ClaimView]

    def at(self, arena: str) -> list[Measured]:
        """The points of an arena, the best first."""
        sign = -1 if ARENAS[arena].quantity == "accuracy" else 1
        return sorted((m for m in self.points if m.point.arena == arena), key=lambda m: sign * m.quality.mean)

    def text(self) -> str:
        """The content of ``frontier.json``."""
        about = {
            name: {k: v for k, v in asdict(arena).items() if k != "name"} | {"longest": arena.longest}
            for name, arena in ARENAS.items()
        }
        data = {
            "arenas": about,
            "points": [m.plain() for m in self.points],
            "missing": [p.name for p in self.missing],
            "claims": [plain(c) for c in self.claims],
        }
        return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


class _Seeds:
    """What a test asks of the runs."""

    def __init__(self, found: Found, seeds: range) -> None:
        self.seeds, self.value = seeds, found.value


def judge_claim(claim: Claim, found: Found) -> ClaimView:
    """A claim after the runs."""
    tests = [test for test in claim.tests if isinstance(test, Contrast)]
    points = list(dict.fromkeys(point for test in tests for point in test.points))
    seeds = counted(points[0])
    judgements = [run_test(test, _Seeds(found, seeds)) for test in tests]  # type: ignore[arg-type]
    missing = [point.name for point in points if found.summary(point) is None]
    return ClaimView(
        claim.name,
        "",
        claim.sentence,
        claim.section,
        conclude(judgements),
        [judged(judgement) for judgement in judgements],
        missing=missing,
        ours=True,
    )


def summarise(found: Found) -> Frontier:
    """Everything that is there."""
    there = {point: found.summary(point) for point in POINTS}
    points = [Measured(point, quality) for point, quality in there.items() if quality is not None]
    missing = [point for point, quality in there.items() if quality is None]
    return Frontier(points, missing, [judge_claim(claim, found) for claim in CLAIMS])


def shown(m: Measured) -> str:
    """Quality with its interval, in a few characters."""
    q = m.quality
    if m.point.place.quantity == "loss":
        return f"{q.mean:.3f}" + ("" if q.low is None or q.high is None else f" ± {(q.high - q.low) / 2:.3f}")
    if q.low is None or q.high is None:
        return f"{q.mean:.1%}"
    return f"{q.mean:.1%} [{max(q.low, 0):.0%}, {min(q.high, 1):.0%}]"


def memory(m: Measured) -> str:
    """What it remembers, and of what length where that grows."""
    if m.point.place.both_sides:
        return "both sides"
    c = footprint(m.point, CONTEXT)
    return readable_bytes(c.bytes) if c.constant else f"{readable_bytes(c.bytes)} at {CONTEXT:,}"


def table(report: Frontier) -> list[str]:
    """Lines for the terminal: the claims, then a block for each arena, the best point first."""
    lines = []
    for claim in report.claims:
        lines.append(f"{claim.verdict:<14} {claim.sentence}")
    for arena, about in ARENAS.items():
        some = report.at(arena)
        if not some:
            continue
        lines += ["", f"{arena}: {about.source.split(',')[0]}, rows of {about.length}, {about.steps} steps"]
        lines.append(f"{'mechanism':<20} {'keys':>4} {'conv':>4}  {about.quantity:>18}  {'state per layer':>18}")
        for m in some:
            p = m.point
            turned = f" beta<={p.beta_max:g}" if p.arena == "parity" else ""
            lines.append(f"{p.mechanism + turned:<20} {p.key_dim:>4} {p.conv:>4}  {shown(m):>18}  {memory(m):>18}")
    if report.missing:
        lines += ["", f"{len(report.missing)} of {len(POINTS)} points have not all of their runs yet."]
    return lines
