"""Pictures of the measurements: time and memory against length per form, decoding time against context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

from .. import explain
from ..report.drawing import STYLE
from .ops import CASES, FORMS, case_name

Records = list[dict[str, Any]]

COLORS = {
    "parallel": "#1f5fa8",
    "chunked": "#b3261e",
    "reference": "#777777",
    "sdpa": "#999999",
    "state": "#b3261e",
    "cache": "#1f5fa8",
}
NAMES = {"state": "Kronecker state, order 2, d=16", "cache": "SDPA over a KV cache, d=64"}


def draw(records: Records, folder: Path) -> list[Path]:
    """SVG files for whatever the records hold; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    curves = {r["curve"] for r in records}
    with matplotlib.rc_context(STYLE):
        drawn = {}
        if any("d=" in curve for curve in curves):
            drawn["time"] = _time(records)
        if any(curve.startswith("memory") for curve in curves):
            forms = ("reference", "parallel", "chunked")
            title = "taylor2 d=16, forward+backward"
            drawn["memory"] = _against_length(records, "memory", forms, 1.0, title, "MB above the inputs")
        if any(curve.startswith("decode") for curve in curves):
            drawn["decode"] = _against_length(
                records, "decode", ("state", "cache"), 1e3, "one more token", "ms per token"
            )
        for name, figure in drawn.items():
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    plt.close("all")
    return [folder / f"{name}.svg" for name in drawn]


def _points(records: Records, curve: str, scale: float, field: str = "ours") -> tuple[list[int], list[float]]:
    found = sorted((r["length"], scale * r[field]) for r in records if r["curve"] == curve)
    return [n for n, _ in found], [y for _, y in found]


def _finish(axis: Any, title: str, y: str) -> None:
    axis.set(xscale="log", yscale="log", title=title, xlabel="tokens", ylabel=y)
    axis.legend()


def _time(records: Records) -> Any:
    """Both forms of each case, SDPA beside them, and where ``auto`` changes from one to the other."""
    figure, axes = plt.subplots(1, len(CASES), figsize=(4 * len(CASES), 3.4), layout="constrained")
    for axis, (name, D, E) in zip(axes, CASES, strict=True):
        case = case_name(name, D, E)
        for form in FORMS:
            axis.plot(*_points(records, f"{case}|{form}", 1e3), "o-", ms=3, color=COLORS[form], label=form)
        x, y = _points(records, f"{case}|parallel", 1e3, "anchor")
        axis.plot(x, y, "--", color=COLORS["sdpa"], label="SDPA, d=64")
        crossing = explain(name, 1, 8, 1024, D, E).break_even
        if crossing and x and x[0] <= crossing <= x[-1]:
            axis.axvline(crossing, color="#444444", lw=0.8, ls=":", label=f"auto changes at {crossing:,}")
        _finish(axis, case, "ms, forward+backward")
    return figure


def _against_length(records: Records, kind: str, names: tuple[str, ...], scale: float, title: str, y: str) -> Any:
    figure, axis = plt.subplots(figsize=(4.6, 3.4), layout="constrained")
    for name in names:
        points = _points(records, f"{kind}|{name}", scale)
        axis.plot(*points, "o-", ms=3, color=COLORS[name], label=NAMES.get(name, name))
    _finish(axis, title, y)
    return figure
