"""The picture of one test: its interval against the region in which the claim would hold, small enough for a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import is_number
from .parts import decimals_for, kind, number, text

WIDTH, HEIGHT = 150, 22


def glyph(test: dict[str, Any]) -> str:
    """Inline SVG: the region shaded, the interval a line with the mean as a dot, seeds as ticks, zero dotted."""
    low, high = _region(test)
    mean, *interval = _estimate(test)
    values = [v for v in test.get("values") or [] if is_number(v)]
    shown = [v for v in [low, high, *interval, mean, *values] if is_number(v)]
    if not shown:
        return ""
    at = _scale(shown)
    left, right = (at(low) if is_number(low) else 0.0), (at(high) if is_number(high) else WIDTH)
    marks = [f'<rect class="region" x="{left:.1f}" y="1" width="{max(right - left, 1):.1f}" height="{HEIGHT - 2}"/>']
    marks += [_line("bound", at(b), 1, HEIGHT - 1) for b in (low, high) if is_number(b)]
    if 0 < at(0) < WIDTH:
        marks.append(_line("zero", at(0), 1, HEIGHT - 1))
    marks += [_line("seed", at(v), HEIGHT - 8, HEIGHT - 3) for v in values]
    if all(is_number(v) for v in interval):
        marks.append(f'<path class="interval" d="M{at(interval[0]):.1f} 9H{at(interval[1]):.1f}"/>')
    if is_number(mean):
        marks.append(f'<circle class="mean" cx="{at(mean):.1f}" cy="9" r="3.6"/>')
    label = text(f"{measured(test)}; the claim holds {region_words(test)}")
    return (
        f'<svg class="glyph {kind(test.get("verdict"))}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        f' role="img" aria-label="{label}">{"".join(marks)}</svg>'
    )


def measured(test: dict[str, Any]) -> str:
    """Mean and interval in words, with the decimals that the interval's width deserves.

    >>> measured({"mean": 0.005, "low": -0.012, "high": 0.0214, "unit": "nats"})
    '+0.005 [−0.012, 0.021] nats'
    """
    mean, low, high = _estimate(test)
    unit = f" {test['unit']}" if test.get("unit") else ""
    if not is_number(mean):
        return "no number"
    if not (is_number(low) and is_number(high)):
        return f"{number(mean, sign=True)}{unit}, no interval"
    digits = decimals_for(high - low)
    return f"{number(mean, digits, sign=True)} [{number(low, digits)}, {number(high, digits)}]{unit}"


def region_words(test: dict[str, Any]) -> str:
    """Where the claim holds, in words.

    >>> region_words({"region": [-0.02, 0.02]}), region_words({"region": [None, 0.5]})
    ('within ±0.02', 'up to 0.5')
    """
    low, high = _region(test)
    if is_number(low) and is_number(high):
        return f"within ±{high:g}" if low == -high else f"between {_plain(low)} and {_plain(high)}"
    if is_number(low):
        return f"above {_plain(low)}"
    return f"up to {_plain(high)}" if is_number(high) else "anywhere"


def _estimate(test: dict[str, Any]) -> tuple[Any, Any, Any]:
    return test.get("mean"), test.get("low"), test.get("high")


def _region(test: dict[str, Any]) -> tuple[Any, Any]:
    low, high = test.get("region") or (None, None)
    return low, high


def _plain(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def _scale(shown: list[float]) -> Callable[[float], float]:
    """A map from values to x, with a margin on both sides so that an unbounded region visibly goes on."""
    low, high = min(shown), max(shown)
    margin = 0.14 * (high - low) or max(abs(high), 1e-3)
    return lambda v: WIDTH * (v - low + margin) / (high - low + 2 * margin)


def _line(name: str, x: float, top: float, bottom: float) -> str:
    return f'<path class="{name}" d="M{x:.1f} {top}V{bottom}"/>'
