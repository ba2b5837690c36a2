"""Pictures of the records: time and memory against length per form, decoding time against context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..ops.cost import explain
from .curves import CASES, label

COLORS = {
    "parallel": "#1f5fa8",
    "chunked": "#b3261e",
    "reference": "#777777",
    "sdpa": "#999999",
    "state": "#b3261e",
    "cache": "#1f5fa8",
}


def _points(records: list[dict[str, Any]], curve: str, field: str = "ours") -> tuple[list[int], list[float]]:
    found = sorted((r["length"], r[field]) for r in records if r["curve"] == curve)
    return [n for n, _ in found], [y for _, y in found]


def _style(axis: Any, title: str, y: str) -> None:
    axis.set(xscale="log", yscale="log", title=title, xlabel="tokens", ylabel=y)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)


def draw(records: list[dict[str, Any]], folder: Path) -> list[Path]:
    """SVG files for whatever the records hold; returns their paths."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    curves = {r["curve"] for r in records}
    written = []
    if any("d=" in c for c in curves):
        figure, axes = plt.subplots(1, len(CASES), figsize=(4 * len(CASES), 3.4), layout="constrained")
        for axis, (name, D, E) in zip(axes, CASES, strict=True):
            case = label(name, D, E)
            for form in ("parallel", "chunked"):
                x, y = _points(records, f"{case}|{form}")
                axis.plot(x, [1e3 * t for t in y], "o-", ms=3, color=COLORS[form], label=form)
            x, y = _points(records, f"{case}|parallel", "anchor")
            axis.plot(x, [1e3 * t for t in y], "--", color=COLORS["sdpa"], label="SDPA, d=64")
            crossing = explain(name, 1, 8, 1024, D, E).break_even
            if crossing and x and x[0] <= crossing <= x[-1]:
                axis.axvline(crossing, color="#444444", lw=0.8, ls=":", label=f"auto changes at {crossing:,}")
            _style(axis, case, "ms, forward+backward")
        written.append(folder / "time.svg")
        figure.savefig(written[-1])
    for kind, y_label, scale, names in (
        ("memory", "MB above the inputs", 1.0, ("reference", "parallel", "chunked")),
        ("decode", "ms per token", 1e3, ("state", "cache")),
    ):
        if not any(c.startswith(kind) for c in curves):
            continue
        figure, axis = plt.subplots(figsize=(4.6, 3.4), layout="constrained")
        for name in names:
            x, y = _points(records, f"{kind}|{name}")
            shown = {"state": "Kronecker state, order 2, d=16", "cache": "SDPA over a KV cache, d=64"}.get(name, name)
            axis.plot(x, [scale * v for v in y], "o-", ms=3, color=COLORS[name], label=shown)
        _style(axis, {"memory": "taylor2 d=16, forward+backward", "decode": "one more token"}[kind], y_label)
        written.append(folder / f"{kind}.svg")
        figure.savefig(written[-1])
    plt.close("all")
    return written
