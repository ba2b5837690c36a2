"""The page of an inspection: one file with everything in it, made from the JSON beside it (``softmax-rnn inspect --redraw``)."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from ..report.style import figure, page, table
from . import results
from .results import Table

TITLES = {
    "quality": "The whole model",
    "error": "The heads together",
    "heads": "Every head",
    "terms": "The size of each term",
    "dominant": "The dominant order",
    "one_layer": "One layer at a time",
}
PANELLED = ("heads", "terms", "one_layer")  # a panel for each centring
STYLE = """<style>
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


def write_page(folder: Path) -> None:
    """Draw the figures and write index.html."""
    from .figures import CAPTIONS, draw, panels

    found = results.load(folder)
    summary, heads = found
    drawn = draw(summary, heads, folder)
    parts = [*_opening(summary), *_table(results.needed(found), _needed_means(summary))]
    for name in drawn:
        drawing = figure(_themed((folder / f"{name}.svg").read_text()), CAPTIONS[name])
        wide = name in PANELLED and len(panels(heads)) > 1
        parts += [f"<h2>{TITLES[name]}</h2>", f'<div class="wide">{drawing}</div>' if wide else drawing]
    parts += [*_table(results.scores(found)), *_table(results.states(found), STATES), *_closing(summary)]
    (folder / "index.html").write_text(page(f"Orders in {_name(summary)}", parts, STYLE))


def _themed(svg: str) -> str:
    """The drawing in the page's own colours, so that it can be dark; the file itself stays black on white."""
    from .figures import COLORS, INK, PAPER

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


def _table(made: Table, note: str = "") -> list[str]:
    below = [f'<p class="soft">{note}</p>'] if note else []
    return [f"<h2>{html.escape(made.title)}</h2>", table(made.head, made.lines, made.marked), *below]


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
