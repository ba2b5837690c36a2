"""The pictures of an inspection, from its JSON."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ..report.drawing import STYLE
from .results import Heads

INK, PAPER = "#1c1c1c", "#ffffff"
COLORS = {"none": "#777777", "mean": "#1f5fa8", "best": "#b3261e"}
LABELS = {"none": "not centred", "mean": "centred by the mean", "best": "centred, learned"}
CAPTIONS = {
    "dominant": "The order whose term is largest on average, for each head, layer by layer. The line is the median of a layer.",
    "terms": "Mean size of each term, |x|ⁿ/n!, over all pairs of query and key. A line is a layer, the mean of its heads.",
    "quality": "The model with the series of all layers cut at order n. Dashed: untouched.",
    "heads": "The smallest order at which a head's output is within the tolerance of softmax's. Hatched: no order tried was enough.",
    "one_layer": "One layer cut at a time, the others whole, on the first tokens of the text. Dashed: untouched.",
    "error": "A head's output against softmax's, the series cut at order n: the median of all heads, and the middle half of them.",
}
SETTINGS: dict[Any, Any] = {
    **STYLE,
    "hatch.linewidth": 0.7,
    **dict.fromkeys(["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], INK),
}
# Neither end is lost on white or on black.
LAYERS = ListedColormap(plt.get_cmap("plasma")([0.3 + 0.5 * i / 255 for i in range(256)]))
FEW = 6  # layers that a legend can name


def draw(summary: dict[str, Any], heads: Heads, folder: Path) -> list[str]:
    """Write the SVG files; returns their names without the ending."""
    with matplotlib.rc_context(SETTINGS):
        drawn = {
            "quality": _quality(summary),
            "error": _error(summary, heads),
            "heads": _map(summary, heads),
            "terms": _terms(summary, heads),
            "dominant": _dominant(summary, heads),
        }
        if summary["one_layer"]["orders"]:
            drawn["one_layer"] = _one_layer(summary)
        for name, figure in drawn.items():
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    plt.close("all")
    return list(drawn)


def panels(heads: Heads) -> list[str]:
    """The centrings that figures with a panel for each show: the mean lies between the other two."""
    return [v for v in heads if v != "mean"]


def _axes(columns: int = 1, width: float = 5.2, height: float = 3.6) -> tuple[Any, list[Any]]:
    figure, axes = plt.subplots(
        1, columns, figsize=(width * columns, height), layout="constrained", squeeze=False, sharey=True
    )
    return figure, list(axes[0])


def _legend(axis: Any) -> None:
    """Below the axis: inside, it would sooner or later hide a curve."""
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3)


def _layers(rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["layer"], []).append(row)
    return found


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _quality(summary: dict[str, Any]) -> Any:
    figure, (axis,) = _axes()
    loss = summary["metric"] == "loss"
    worst = summary["untouched"] + 8 if loss else None
    for name, curve in summary["all_layers"].items():
        even = [(n, v) for n, v in zip(curve["orders"], curve["values"], strict=True) if n % 2 == 0]
        axis.plot(*zip(*even, strict=True), "o-", ms=3, color=COLORS[name], label=LABELS[name])
    axis.axhline(summary["untouched"], color=INK, lw=0.8, ls="--")
    axis.set(xlabel="order (even)", ylabel="loss, nats per token" if loss else "cosine with the untouched encoder")
    axis.set_xscale("symlog", linthresh=4)
    axis.set_xlim(left=-0.3)
    axis.set_xticks([n for n in (0, 2, 4, 10, 24, 64, 128) if n <= summary["orders"][-1]])
    axis.get_xaxis().set_major_formatter("{x:.0f}")
    if worst is not None:
        axis.set_ylim(summary["untouched"] - 0.3, min(worst, axis.get_ylim()[1]))
    _legend(axis)
    return figure


def _error(summary: dict[str, Any], heads: Heads) -> Any:
    figure, (axis,) = _axes()
    orders = summary["orders"]
    even = [i for i, n in enumerate(orders) if n % 2 == 0]  # odd orders can divide by almost 0
    for name, rows in heads.items():
        columns = [sorted(max(row["error"][i], 1e-9) for row in rows) for i in even]
        quarter = len(rows) // 4
        x = [orders[i] for i in even]
        axis.plot(x, [c[len(c) // 2] for c in columns], color=COLORS[name], label=LABELS[name])
        axis.fill_between(
            x, [c[quarter] for c in columns], [c[-1 - quarter] for c in columns], color=COLORS[name], alpha=0.15, lw=0
        )
    axis.axhline(summary["tolerance"], color=INK, lw=0.8, ls="--")
    axis.set(xlabel="order (even)", ylabel="relative error of a head", yscale="log", ylim=(1e-6, 10))
    _legend(axis)
    return figure


def _map(summary: dict[str, Any], heads: Heads) -> Any:
    shown = panels(heads)
    height = max(2.2, 0.16 * summary["layers"] + 1)
    figure, axes = _axes(len(shown), max(3.2, 0.3 * summary["heads"] + 2), height)
    out_of_reach = None
    for axis, name in zip(axes, shown, strict=True):
        grid = [[float("nan")] * summary["heads"] for _ in range(summary["layers"])]
        for row in heads[name]:
            n = row["needed_order"]
            grid[row["layer"]][row["head"]] = float("nan") if n is None else n
            if n is None:
                corner = (row["head"] - 0.5, row["layer"] - 0.5)
                out_of_reach = Rectangle(corner, 1, 1, facecolor=PAPER, edgecolor=INK, hatch="////", lw=0.5)
                axis.add_patch(out_of_reach)
        image = axis.imshow(grid, aspect="auto", cmap="viridis_r", vmin=0, vmax=min(64, summary["orders"][-1]))
        axis.set(title=LABELS[name], xlabel="head")
        axis.grid(visible=False)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("layer")
    figure.colorbar(image, ax=axes, label="order needed", extend="max")
    if out_of_reach is not None:
        label = f"no order up to {summary['orders'][-1]}"
        figure.legend([out_of_reach], [label], loc="outside lower center")
    return figure


def _terms(summary: dict[str, Any], heads: Heads) -> Any:
    shown = panels(heads)
    figure, axes = _axes(len(shown), 4.4)
    smallest = 1e-8
    for axis, name in zip(axes, shown, strict=True):
        for layer, rows in _layers(heads[name]).items():
            # A head's list ends where its terms are negligible.
            columns = zip_longest(*(r["log10_terms"] for r in rows), fillvalue=-300.0)
            mean = [sum(10**x for x in column) / len(rows) for column in columns]
            inside = [i for i, x in enumerate(mean) if x > smallest / 100]
            color = LAYERS(layer / max(1, summary["layers"] - 1))
            axis.plot(inside, [mean[i] for i in inside], color=color, lw=0.9, label=f"layer {layer}")
        axis.set(title=LABELS[name], xlabel="order n", yscale="log", ylim=(smallest, None))
        if summary["layers"] <= FEW:
            _legend(axis)
    axes[0].set_ylabel("mean |x|ⁿ/n!")
    if summary["layers"] > FEW:
        bar = plt.cm.ScalarMappable(norm=plt.Normalize(0, summary["layers"] - 1), cmap=LAYERS)
        figure.colorbar(bar, ax=axes, label="layer")
    return figure


def _dominant(summary: dict[str, Any], heads: Heads) -> Any:
    figure, (axis,) = _axes()
    for offset, (name, rows) in enumerate(heads.items()):
        place = 0.2 * (offset - (len(heads) - 1) / 2)
        axis.plot(
            [r["layer"] + place for r in rows], [r["dominant_order"] for r in rows], ".", ms=4, alpha=0.5, mew=0, color=COLORS[name]
        )  # fmt: skip
        layers = _layers(rows)
        middle = [_median([r["dominant_order"] for r in some]) for some in layers.values()]
        axis.plot(list(layers), middle, color=COLORS[name], lw=1.2, label=LABELS[name])
    axis.set(xlabel="layer", ylabel="dominant order")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axis)
    return figure


def _one_layer(summary: dict[str, Any]) -> Any:
    one = summary["one_layer"]
    shown = [v for v in summary["needed"] if v in one]
    figure, axes = _axes(len(shown), 4.4)
    for axis, name in zip(axes, shown, strict=True):
        for i, (n, style) in enumerate(zip(one["orders"], (":", "--", "-", "-."), strict=False)):
            axis.plot(
                [r["layer"] for r in one[name]], [r["values"][i] for r in one[name]], style, color=COLORS[name], label=f"order {n}"
            )  # fmt: skip
        axis.axhline(one["untouched"], color=INK, lw=0.8, ls="--")
        axis.set(title=LABELS[name], xlabel="layer that is cut")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(axis)
    if summary["metric"] == "loss":
        axes[0].set_ylim(one["untouched"] - 0.1, min(one["untouched"] + 3, axes[0].get_ylim()[1]))
    axes[0].set_ylabel(summary["metric"])
    return figure
