"""The picture for the README: what each replacement costs in loss, and how the loss falls with the orders of the series."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

from ..report.data import CurveView, Report, plain
from ..report.drawing import STYLE, save
from .experiments import FAMILIES

GROUPS = {
    "denominator": ("softmax", "norm", "gate", "length", "undivided", "detach_sum"),
    "norm": ("rms", "layer", "rms_length", "layer_length"),
    "gate": ("in_gate", "in_out_gate", "gate_nolength"),
    "kernel": ("linear_elu", "linear_relu", "linear_cosine", "relu_norm", "relu_gate"),
}
COLORS = {"taylor": "#08519c", "elu": "#2e8b57", "relu": "#c8860d", "cosine": "#8a4fbf"}
OUT_OF_RANGE = 1.0  # nats above softmax, where the axis ends


def draw_headline(report: Report, folder: Path) -> Path | None:
    """Write ``headline.svg``; nothing where softmax or everything else is missing."""
    curves = main_curves(report)
    if not curves.get("softmax") or len(curves) < 4:
        return None
    with matplotlib.rc_context(STYLE):
        drawing, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", width_ratios=(1.15, 1))
        _replacements(left, curves)
        _orders(right, curves)
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


def _orders(axis: Any, curves: dict[str, CurveView]) -> None:
    for family, text in FAMILIES.items():
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
