"""The frontier as data: every point with its quality and its cost, and the claims judged; and as lines for the terminal."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from ..paper.claims import Claim, conclude, run_test
from ..paper.summary import judged
from ..report.data import ClaimView
from ..state import readable_bytes
from .claims import CLAIMS, Contrast
from .design import ARENAS, POINTS, Point
from .results import Found, Quality, cost, counted

CONTEXT = 1024  # tokens, at which a table states the cost of keys and values

# Colours by what a mechanism is; the first pattern that its name matches.
FAMILIES: dict[str, tuple[str, str]] = {
    "near exact, far series": (r"near2_w\d+", "#d1495b"),
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
        at, later = cost(p, 1), cost(p, 2)
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
            **{k: _finite(v) for k, v in asdict(q).items() if k != "values"},
            "values": [_finite(v) for v in q.values],
        }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)


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
        from ..report.data import plain

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
    c = cost(m.point, CONTEXT)
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
