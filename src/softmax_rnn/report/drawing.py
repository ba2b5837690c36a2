"""Static drawings, from the same data that the page shows. Importing this chooses Agg.

Figures: training above, test below, on log axes. The headline: what each replacement of a part of softmax costs in loss, and how
the loss falls with the orders of the series. One look for every drawing, and files that are the same for the same data.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from .data import CurveView, FigureView, PanelView, Report, Split, plain

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "softmax-rnn",  # the same data, the same file
    "svg.fonttype": "none",  # letters as letters, not outlines: a third of the size
}
DASHES = {"solid": "-", "dash": (0, (4, 2)), "dot": (0, (1, 2))}
SPLITS: tuple[Split, Split] = ("train", "test")
BEGINNING = 0.04  # of training, where all curves fall alike: left out


def save(drawing: Any, path: Path, data: Any) -> Path:
    """As SVG and PDF, both with the digest of what they show, so that it can be checked against the records."""
    drawing.savefig(path, metadata={"Date": None, "Description": f"data {digest(data)}"})
    drawing.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None, "Subject": f"data {digest(data)}"})
    plt.close(drawing)
    return path


def digest(data: Any) -> str:
    """Of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def draw(figures: Sequence[FigureView], folder: Path) -> list[Path]:
    """Write ``NAME.svg`` and ``NAME.pdf`` for every figure that has a curve; returns the SVG files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for figure in figures:
        if not figure.empty:
            with matplotlib.rc_context(STYLE):
                drawing = _expanded(figure) if figure.expanded else _columns(figure)
                written.append(save(drawing, folder / f"{figure.name}.svg", plain(figure)))
    return written


def _columns(figure: FigureView) -> Any:
    """One column for each panel, the legend below where all panels show the same."""
    panels = figure.panels
    together = len({tuple(curve.label for curve in panel.curves) for panel in panels}) == 1
    splits = [split for split in SPLITS if any(not c.band(split).empty for p in panels for c in p.curves)]
    wide = 4.6 if len(panels) > 1 else 6.4
    size = (max(wide * len(panels) * 0.8, 6.4), 0.6 + 2.4 * len(splits) if len(splits) > 1 else 3.6)
    drawing, axes = plt.subplots(
        len(splits), len(panels), figsize=size, layout="constrained", squeeze=False, sharex="col"
    )
    for column, panel in enumerate(panels):
        for line, split in enumerate(splits):
            _curves(axes[line][column], panel, split, BEGINNING)
            axes[line][column].set_ylabel(f"{split} loss" if column == 0 else "")
        axes[0][column].set_title(panel.title)
        axes[-1][column].set_xlabel(panel.x_label)
        if (not together or len(panels) == 1) and not all(curve.empty for curve in panel.curves):
            axes[0][column].legend(fontsize=7 if len(panel.curves) > 6 else 8)
    if together and len(panels) > 1:
        handles, labels = max((axis.get_legend_handles_labels() for axis in axes[0]), key=lambda pair: len(pair[1]))
        drawing.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)))
    return drawing


def _expanded(figure: FigureView) -> Any:
    """Each panel in large: train and test, all of training and its last half."""
    panels = figure.panels
    drawing, axes = plt.subplots(
        2 * len(panels), 2, figsize=(11, 6.4 * len(panels)), layout="constrained", squeeze=False
    )
    for index, panel in enumerate(panels):
        for column, split in enumerate(SPLITS):
            for line, skip in enumerate((BEGINNING, 0.5)):
                axis = axes[2 * index + line][column]
                _curves(axis, panel, split, skip)
                axis.set_title(f"{panel.title}: {split} loss{', last half' if line else ''}")
            axis.set_xlabel(panel.x_label)
        if not all(curve.empty for curve in panel.curves):
            axes[2 * index][0].legend()
    return drawing


def _curves(axis: Any, panel: PanelView, split: Split, skip: float) -> None:
    """Mean and band of each curve; what comes before ``skip`` of the way is left out, unless x is not the way."""
    for curve in panel.curves:
        _curve(axis, curve, split, skip if panel.x_scale == "linear" else 0.0)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xscale(panel.x_scale)
    if panel.x_scale == "log":  # a tick at every value that was tried
        axis.set_xticks(sorted({x for curve in panel.curves for x in curve.band(split).x}))
        axis.xaxis.set_minor_formatter(NullFormatter())
    axis.xaxis.set_major_formatter(FuncFormatter(_count))


def _curve(axis: Any, curve: CurveView, split: Split, skip: float) -> None:
    band = curve.band(split)
    points = [p for p in zip(band.x, band.mean, band.low, band.high, strict=True) if p[1] is not None]
    if not points:
        return
    kept = [point for point in points if point[0] > skip * points[-1][0]]
    x, mean, low, high = zip(*kept, strict=True)
    style: Any = DASHES[curve.dash]
    axis.plot(x, mean, color=curve.color, ls=style, lw=1.3, label=curve.label, marker="o" if len(x) < 8 else "", ms=3)
    if len(curve.seeds) > 1:
        axis.fill_between(x, low, high, color=curve.color, alpha=0.15, lw=0)


def _count(x: float, _: int) -> str:
    return f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k" if x >= 1e3 else f"{x:g}"


# The headline.

GROUPS = {
    "denominator": ("softmax", "norm", "gate", "length", "undivided", "detach_sum"),
    "norm": ("rms", "layer", "rms_length", "layer_length"),
    "gate": ("in_gate", "in_out_gate", "gate_nolength"),
    "kernel": ("linear_elu", "linear_relu", "linear_cosine", "relu_norm", "relu_gate"),
}
COLORS = {"taylor": "#08519c", "elu": "#2e8b57", "relu": "#c8860d", "cosine": "#8a4fbf"}
OUT_OF_RANGE = 1.0  # nats above softmax, where the axis ends


def draw_headline(report: Report, families: Mapping[str, str], folder: Path) -> Path | None:
    """Write ``headline.svg``; nothing where softmax or everything else is missing. ``families`` are names of series, as in taylor2."""
    curves = main_curves(report)
    if not curves.get("softmax") or len(curves) < 4:
        return None
    with matplotlib.rc_context(STYLE):
        drawing, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", width_ratios=(1.15, 1))
        _replacements(left, curves)
        _orders(right, curves, families)
        return save(drawing, folder / "headline.svg", finals(curves))


def main_curves(report: Report) -> dict[str, CurveView]:
    """Finished mechanisms on the main corpus, at the base setting."""
    figures = [figure for name in ("fig4", "fig5", "fig6") if (figure := report.figure(name)) is not None]
    curves = [curve for figure in figures for panel in figure.panels for curve in panel.curves]
    return {curve.mechanism: curve for curve in curves if curve.final_test is not None}


def finals(curves: dict[str, CurveView]) -> dict[str, Any]:
    """What the picture shows, as data."""
    return {name: plain(curve.final_test) for name, curve in curves.items()}


def _mean(curve: CurveView) -> float:
    assert curve.final_test is not None  # main_curves takes no others
    return curve.final_test.mean


def _replacements(axis: Any, curves: dict[str, CurveView]) -> None:
    base = _mean(curves["softmax"])
    names: list[str] = []
    for group in GROUPS.values():
        names += [name for name in group if name in curves]
    for y, name in enumerate(names):
        curve = curves[name]
        final = curve.final_test
        assert final is not None
        low, mean, high = final.low - base, final.mean - base, final.high - base
        if mean > OUT_OF_RANGE:
            axis.set_xlim(right=OUT_OF_RANGE)
            axis.annotate(f"+{mean:.1f}", (OUT_OF_RANGE, y), ha="right", va="center", color=curve.color, fontsize=8)
            continue
        axis.plot([low, high], [y, y], color=curve.color, lw=2.2, alpha=0.45, solid_capstyle="round")
        axis.plot(mean, y, "o", ms=5.5, color=curve.color)
    axis.axvline(0, color="#1b1b1b", lw=0.8)
    axis.set_yticks(range(len(names)), [curves[name].label for name in names])
    axis.invert_yaxis()
    axis.set(xlabel="test loss above softmax's, nats per token", title="Parts of softmax attention replaced")
    axis.grid(axis="y", visible=False)
    edge = 0
    for group in list(GROUPS.values())[:-1]:
        edge += sum(name in curves for name in group)
        axis.axhline(edge - 0.5, color="#cccccc", lw=0.6)


def _orders(axis: Any, curves: dict[str, CurveView], families: Mapping[str, str]) -> None:
    for family, text in families.items():
        for suffix, style in (("_norm", "o-"), ("", "s--")):
            found = {int(m[1]): c for name, c in curves.items() if (m := re.fullmatch(rf"{family}(\d+){suffix}", name))}
            if suffix and family != "taylor" and "taylor0_norm" in curves:
                found[0] = curves["taylor0_norm"]  # order 0 is the same for all
            if not found:
                continue
            orders = sorted(found)
            means = [_mean(found[n]) for n in orders]
            label = f"{text}, {'L2 norm' if suffix else 'sum'}" if family == "taylor" else text if suffix else None
            axis.plot(orders, means, style, color=COLORS[family], ms=4, lw=1.2, label=label)
    for name, style in (("softmax", "--"), ("norm", "-")):
        if name in curves:
            axis.axhline(_mean(curves[name]), color="#1b1b1b", ls=style, lw=0.8, label=f"{name}, all orders")
    axis.set_xscale("symlog", linthresh=2)
    axis.set_xticks([0, 1, 2, 4, 10], ["0", "1", "2", "4", "10"])
    axis.minorticks_off()
    axis.set(
        xlabel="highest order of the series", ylabel="test loss", title="Softmax, and linear attentions, order by order"
    )
    axis.legend(fontsize=7.5)
