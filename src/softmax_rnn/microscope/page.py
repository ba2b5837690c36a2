"""The page of an inspection and its pictures: one file with everything in it, made from the JSON beside it (``softmax-rnn inspect
--redraw``)."""

from __future__ import annotations

import html
from itertools import zip_longest
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ..report.drawing import STYLE as LOOK
from ..report.style import figure, page, table
from . import results
from .results import Heads, Table

TITLES = {
    "quality": "The whole model",
    "error": "The heads together",
    "heads": "Every head",
    "terms": "The size of each term",
    "dominant": "The dominant order",
    "one_layer": "One layer at a time",
}
PANELLED = ("heads", "terms", "one_layer")  # a panel for each centring
HEAD = """<style>
:root { --none: #777; --mean: #1f5fa8; --best: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --none: #a5a5a5; --mean: #7aa7f7; --best: #f39b91; } }
figure svg { background: none; border-radius: 0; }
@media (max-width: 40rem) {
  .wide svg { min-width: 36rem; }
  th, td { padding: .25rem .4rem; white-space: normal; }
}
</style>"""
STATES = (
    "A state of orders 0..n, symmetric, in float32, has the same size at any length; a cache is keys and values in bfloat16. "
    "Marked: the orders that the median head or the whole model needs."
)
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
    **LOOK,
    "hatch.linewidth": 0.7,
    **dict.fromkeys(["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], INK),
}
# Neither end is lost on white or on black.
LAYERS = ListedColormap(plt.get_cmap("plasma")([0.3 + 0.5 * i / 255 for i in range(256)]))
FEW = 6  # layers that a legend can name


def write_page(folder: Path) -> None:
    """Draw the figures and write index.html."""
    found = results.load(folder)
    summary, heads = found
    drawn = draw(summary, heads, folder)
    parts = [*_opening(summary), *_table(results.needed(found), _needed_means(summary))]
    for name in drawn:
        drawing = figure(_themed((folder / f"{name}.svg").read_text()), CAPTIONS[name])
        wide = name in PANELLED and len(panels(heads)) > 1
        parts += [f"<h2>{TITLES[name]}</h2>", f'<div class="wide">{drawing}</div>' if wide else drawing]
    parts += [*_table(results.scores(found)), *_table(results.states(found), STATES), *_closing(summary)]
    (folder / "index.html").write_text(page(f"Orders in {_name(summary)}", parts, HEAD))


def _themed(svg: str) -> str:
    """The drawing in the page's own colours, so that it can be dark; the file itself stays black on white."""
    for color, own in {
        INK: "var(--ink)",
        PAPER: "var(--paper)",
        **{c: f"var(--{v})" for v, c in COLORS.items()},
    }.items():
        svg = svg.replace(color, own)
    return svg


def _name(summary: dict[str, Any]) -> str:
    return Path(summary.get("model", "a model")).name


def _opening(s: dict[str, Any]) -> list[str]:
    top, plain = s["orders"][-1], s["needed"]["none"]["model"]
    centred = [n["model"] for v, n in s["needed"].items() if v != "none"]
    enough = min((n for n in centred if n is not None), default=None)
    what = "the loss within 0.01 nats of" if s["metric"] == "loss" else "the hidden states within 0.001 (cosine) of"
    text = f"No order up to {top} keeps" if plain is None else f"Cut at order {plain}, the series keeps"
    text += f" {what} the untouched model's."
    if centred:
        text += " With centred keys " + ("none does, either." if enough is None else f"order {enough} is enough.")
    if "exp(" not in s["mechanism"]:
        text += " The model was trained with another kernel: here the series takes that kernel's place."
    name, source = html.escape(_name(s)), html.escape(str(s.get("text", "")))
    return [
        f"<h1>How many orders does {name} use?</h1>",
        f'<p class="lead">{text}</p>',
        f'<p class="soft">{s["tokens"]} tokens of {source}; {s["layers"]} layers, {s["heads"]} heads over {s["kv_heads"]} of keys, '
        f"head size {s['head_dim']}, {'causal' if s['causal'] else 'bidirectional'}; mechanism {html.escape(s['mechanism'])}.</p>",
    ]


def _table(shown: Table, note: str = "") -> list[str]:
    below = [f'<p class="soft">{note}</p>'] if note else []
    return [f"<h2>{html.escape(shown.title)}</h2>", table(shown.head, shown.lines, shown.marked), *below]


def _needed_means(s: dict[str, Any]) -> str:
    return (
        f"A head: its output over all queries within {100 * s['tolerance']:g}% of softmax's, |difference| / |output|, at this order and "
        f"all higher ones compared. The model: its {s['metric']} within {s['close']:g}."
    )


def _closing(s: dict[str, Any]) -> list[str]:
    calibration = f" Centres were calibrated on {html.escape(s['calibration'])}." if s.get("calibration") else ""
    return [
        f'<p class="soft">Made by <code>{html.escape(s.get("command", ""))}</code>. The numbers are in inspection.json and heads.*.json.'
        f"{calibration} Weights of the series are summed in float64.</p>"
    ]


# The pictures.


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
        for name, drawing in drawn.items():
            drawing.savefig(folder / f"{name}.svg", metadata={"Date": None})
    plt.close("all")
    return list(drawn)


def panels(heads: Heads) -> list[str]:
    """The centrings that figures with a panel for each show: the mean lies between the other two."""
    return [v for v in heads if v != "mean"]


def _axes(columns: int = 1, width: float = 5.2, height: float = 3.6) -> tuple[Any, list[Any]]:
    drawing, axes = plt.subplots(
        1, columns, figsize=(width * columns, height), layout="constrained", squeeze=False, sharey=True
    )
    return drawing, list(axes[0])


def _legend(axis: Any) -> None:
    """Below the axis: inside, it would sooner or later hide a curve."""
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3)


def _layers(entries: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for entry in entries:
        found.setdefault(entry["layer"], []).append(entry)
    return found


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _quality(summary: dict[str, Any]) -> Any:
    drawing, (axis,) = _axes()
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
    return drawing


def _error(summary: dict[str, Any], heads: Heads) -> Any:
    drawing, (axis,) = _axes()
    orders = summary["orders"]
    even = [i for i, n in enumerate(orders) if n % 2 == 0]  # odd orders can divide by almost 0
    for name, some in heads.items():
        columns = [sorted(max(head["error"][i], 1e-9) for head in some) for i in even]
        quarter = len(some) // 4
        x = [orders[i] for i in even]
        axis.plot(x, [c[len(c) // 2] for c in columns], color=COLORS[name], label=LABELS[name])
        axis.fill_between(
            x, [c[quarter] for c in columns], [c[-1 - quarter] for c in columns], color=COLORS[name], alpha=0.15, lw=0
        )
    axis.axhline(summary["tolerance"], color=INK, lw=0.8, ls="--")
    axis.set(xlabel="order (even)", ylabel="relative error of a head", yscale="log", ylim=(1e-6, 10))
    _legend(axis)
    return drawing


def _map(summary: dict[str, Any], heads: Heads) -> Any:
    shown = panels(heads)
    height = max(2.2, 0.16 * summary["layers"] + 1)
    drawing, axes = _axes(len(shown), max(3.2, 0.3 * summary["heads"] + 2), height)
    out_of_reach = None
    for axis, name in zip(axes, shown, strict=True):
        grid = [[float("nan")] * summary["heads"] for _ in range(summary["layers"])]
        for head in heads[name]:
            n = head["needed_order"]
            grid[head["layer"]][head["head"]] = float("nan") if n is None else n
            if n is None:
                corner = (head["head"] - 0.5, head["layer"] - 0.5)
                out_of_reach = Rectangle(corner, 1, 1, facecolor=PAPER, edgecolor=INK, hatch="////", lw=0.5)
                axis.add_patch(out_of_reach)
        image = axis.imshow(grid, aspect="auto", cmap="viridis_r", vmin=0, vmax=min(64, summary["orders"][-1]))
        axis.set(title=LABELS[name], xlabel="head")
        axis.grid(visible=False)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("layer")
    drawing.colorbar(image, ax=axes, label="order needed", extend="max")
    if out_of_reach is not None:
        label = f"no order up to {summary['orders'][-1]}"
        drawing.legend([out_of_reach], [label], loc="outside lower center")
    return drawing


def _terms(summary: dict[str, Any], heads: Heads) -> Any:
    shown = panels(heads)
    drawing, axes = _axes(len(shown), 4.4)
    smallest = 1e-8
    for axis, name in zip(axes, shown, strict=True):
        for layer, some in _layers(heads[name]).items():
            # A head's list ends where its terms are negligible.
            columns = zip_longest(*(r["log10_terms"] for r in some), fillvalue=-300.0)
            mean = [sum(10**x for x in column) / len(some) for column in columns]
            inside = [i for i, x in enumerate(mean) if x > smallest / 100]
            color = LAYERS(layer / max(1, summary["layers"] - 1))
            axis.plot(inside, [mean[i] for i in inside], color=color, lw=0.9, label=f"layer {layer}")
        axis.set(title=LABELS[name], xlabel="order n", yscale="log", ylim=(smallest, None))
        if summary["layers"] <= FEW:
            _legend(axis)
    axes[0].set_ylabel("mean |x|ⁿ/n!")
    if summary["layers"] > FEW:
        bar = plt.cm.ScalarMappable(norm=plt.Normalize(0, summary["layers"] - 1), cmap=LAYERS)
        drawing.colorbar(bar, ax=axes, label="layer")
    return drawing


def _dominant(summary: dict[str, Any], heads: Heads) -> Any:
    drawing, (axis,) = _axes()
    for offset, (name, some) in enumerate(heads.items()):
        place = 0.2 * (offset - (len(heads) - 1) / 2)
        axis.plot(
            [r["layer"] + place for r in some],
            [r["dominant_order"] for r in some],
            ".",
            ms=4,
            alpha=0.5,
            mew=0,
            color=COLORS[name],
        )
        layers = _layers(some)
        middle = [_median([r["dominant_order"] for r in few]) for few in layers.values()]
        axis.plot(list(layers), middle, color=COLORS[name], lw=1.2, label=LABELS[name])
    axis.set(xlabel="layer", ylabel="dominant order")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axis)
    return drawing


def _one_layer(summary: dict[str, Any]) -> Any:
    one = summary["one_layer"]
    shown = [v for v in summary["needed"] if v in one]
    drawing, axes = _axes(len(shown), 4.4)
    for axis, name in zip(axes, shown, strict=True):
        for i, (n, style) in enumerate(zip(one["orders"], (":", "--", "-", "-."), strict=False)):
            axis.plot(
                [r["layer"] for r in one[name]],
                [r["values"][i] for r in one[name]],
                style,
                color=COLORS[name],
                label=f"order {n}",
            )
        axis.axhline(one["untouched"], color=INK, lw=0.8, ls="--")
        axis.set(title=LABELS[name], xlabel="layer that is cut")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(axis)
    if summary["metric"] == "loss":
        axes[0].set_ylim(one["untouched"] - 0.1, min(one["untouched"] + 3, axes[0].get_ylim()[1]))
    axes[0].set_ylabel(summary["metric"])
    return drawing
