"""The paper's figures as drawings, from the same summary that the page shows: training above, test below, on log axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ..report.drawing import STYLE, save

DASHES = {"solid": "-", "dash": (0, (4, 2))}


def draw(summary: dict[str, Any], folder: Path) -> list[Path]:
    """Write ``figN.svg`` and ``figN.pdf`` for every figure that has a curve; returns the SVG files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for figure in summary["figures"]:
        if not any(curve["train"]["x"] for panel in figure["panels"] for curve in panel["curves"]):
            continue
        with matplotlib.rc_context(STYLE):
            drawing = _expanded(figure) if figure["expanded"] else _plain(figure)
            written.append(save(drawing, folder / f"{figure['name']}.svg", figure))
            plt.close(drawing)
    return written


def _plain(figure: dict[str, Any]) -> Any:
    """One column for each panel, the legend below where all panels show the same."""
    panels = figure["panels"]
    together = len({tuple(c["label"] for c in p["curves"]) for p in panels}) == 1
    wide = 4.6 if len(panels) > 1 else 6.4
    drawing, axes = plt.subplots(
        2, len(panels), figsize=(wide * len(panels) * 0.8, 5.4), layout="constrained", squeeze=False, sharex="col"
    )
    for column, panel in enumerate(panels):
        for row, kind in enumerate(("train", "test")):
            _curves(axes[row][column], panel, kind, skip=0.04 if panel["x_label"] == "tokens" else 0.0)
            axes[row][column].set_ylabel(f"{kind} loss" if column == 0 else "")
        axes[0][column].set_title(panel["title"])
        axes[1][column].set_xlabel(panel["x_label"])
        if not together or len(panels) == 1:
            axes[0][column].legend(fontsize=7 if len(panel["curves"]) > 6 else 8)
    if together and len(panels) > 1:
        handles, labels = axes[0][0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
    return drawing


def _expanded(figure: dict[str, Any]) -> Any:
    """Each panel in large: train and test, all of training and its last half."""
    panels = figure["panels"]
    drawing, axes = plt.subplots(
        2 * len(panels), 2, figsize=(11, 6.4 * len(panels)), layout="constrained", squeeze=False
    )
    for index, panel in enumerate(panels):
        for column, kind in enumerate(("train", "test")):
            for row, skip in enumerate((0.04, 0.5)):
                axis = axes[2 * index + row][column]
                _curves(axis, panel, kind, skip)
                axis.set_title(f"{panel['title']}: {kind} loss{', last half' if row else ''}")
            axis.set_xlabel(panel["x_label"])
        axes[2 * index][0].legend()
    return drawing


def _curves(axis: Any, panel: dict[str, Any], kind: str, skip: float) -> None:
    """Mean and band of each mechanism; the first moments, where all fall alike, are left out."""
    for curve in panel["curves"]:
        points = [
            p for p in zip(*(curve[kind][k] for k in ("x", "mean", "low", "high")), strict=True) if p[1] is not None
        ]
        if not points:
            continue
        end = points[-1][0]
        x, mean, low, high = zip(*(p for p in points if p[0] > skip * end), strict=True)
        style: Any = DASHES[curve["dash"]]
        axis.plot(x, mean, color=curve["color"], ls=style, lw=1.3, label=curve["label"])
        if len(curve["seeds"]) > 1:
            axis.fill_between(x, low, high, color=curve["color"], alpha=0.15, lw=0)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    if panel["x_label"] == "tokens":
        axis.xaxis.set_major_formatter(FuncFormatter(_count))
    else:
        axis.set_xscale("log")


def _count(x: float, _: int) -> str:
    return f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k" if x >= 1e3 else f"{x:g}"
