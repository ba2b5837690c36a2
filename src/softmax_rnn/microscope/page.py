"""The page of an inspection: one file with everything in it, made from the JSON beside it.

``python -m softmax_rnn.microscope.page FOLDER ...`` draws figures and pages again, without looking at the model again.
"""

from __future__ import annotations

import argparse
import html
import sys
from pathlib import Path
from typing import Any

from ..report.style import figure, page, table
from .saving import load, order

TITLES = {
    "quality": "The whole model",
    "error": "The heads together",
    "heads": "Every head",
    "terms": "The size of each term",
    "dominant": "The dominant order",
    "one_layer": "One layer at a time",
}
NAMES = {"none": "none", "mean": "mean key", "best": "learned"}
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


def write_page(folder: Path) -> None:
    """Draw the figures and write index.html."""
    from .figures import CAPTIONS, draw, panels

    summary, heads = load(folder)
    drawn = draw(summary, heads, folder)
    parts = [*_opening(summary), *_needed(summary)]
    for name in drawn:
        drawing = figure(_themed((folder / f"{name}.svg").read_text()), CAPTIONS[name])
        wide = name in PANELLED and len(panels(heads)) > 1
        parts += [f"<h2>{TITLES[name]}</h2>", f'<div class="wide">{drawing}</div>' if wide else drawing]
    parts += [*_scores(heads), *_states(summary), *_closing(summary)]
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


def size(n: float) -> str:
    """Bytes for people.

    >>> size(1536)
    '1.5 kB'
    """
    if n >= 1024**7:
        return f"{n:.0e} B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB", "EB"):
        if n < 1024 or unit == "EB":
            break
        n /= 1024
    return f"{n:.3g} {unit}"


def count(n: int) -> str:
    """A number of tokens for people.

    >>> count(2179), count(3 * 10**16)
    ('2,179', '3e+16')
    """
    return f"{n:,}" if n < 1e12 else f"{n:.0e}"


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


def _needed(s: dict[str, Any]) -> list[str]:
    top = s["orders"][-1]
    rows = [
        [NAMES[v], order(n["median"], top), order(n["largest"], top), f"{100 * n['share_within_10']:.0f}%", order(n["model"], top)]
        for v, n in s["needed"].items()
    ]  # fmt: skip
    return [
        "<h2>Order needed</h2>",
        table(["centring", "median head", "worst head", "heads at order 10", "whole model"], rows),
        f'<p class="soft">A head: its output over all queries within {100 * s["tolerance"]:g}% of softmax\'s, |difference| / |output|, '
        f"at this order and all higher ones compared. The model: its {s['metric']} within {s['close']:g}.</p>",
    ]


def _scores(heads: dict[str, list[dict[str, Any]]]) -> list[str]:
    rows = []
    for name, found in heads.items():
        middle = sorted(r["entropy"] for r in found)[len(found) // 2]
        low, high = min(r["low"] for r in found), max(r["high"] for r in found)
        inner = [min(r["quantiles"][1] for r in found), max(r["quantiles"][-2] for r in found)]
        rows.append(
            [
                NAMES[name],
                f"{low:.1f}\u00a0…\u00a0{high:.1f}",
                f"{inner[0]:.1f}\u00a0…\u00a0{inner[1]:.1f}",
                f"{middle:.2f}",
            ]
        )
    head = ["centring", "all scores", "1% … 99%, widest head", "entropy of the median head, nats"]
    return ["<h2>Scores</h2>", table(head, rows)]


def _states(s: dict[str, Any]) -> list[str]:
    states = s["states"]
    rows = [[r["order"], size(r["bytes"]), count(r["break_even_tokens"])] for r in states["state"]]
    marked = [i for i, r in enumerate(states["state"]) if r["needed"]]
    cache = [[count(c["tokens"]), size(c["bytes"])] for c in states["cache"]]
    return [
        "<h2>What that would cost as a recurrent state</h2>",
        table(["order", "state, per head of keys", "smaller than keys and values from, tokens"], rows, marked),
        '<p class="soft">A state of orders 0..n, symmetric, in float32, has the same size at any length. Marked: the orders that the '
        "median head or the whole model needs.</p>",
        table(["tokens", "keys and values, per head of keys, in bfloat16"], cache),
    ]


def _closing(s: dict[str, Any]) -> list[str]:
    calibration = f" Centres were calibrated on {html.escape(s['calibration'])}." if s.get("calibration") else ""
    return [
        f'<p class="soft">Made by <code>{html.escape(s.get("command", ""))}</code>. The numbers are in inspection.json and heads.*.json.'
        f"{calibration} Weights of the series are summed in float64.</p>"
    ]


def main(argv: list[str]) -> int:
    """Draw the figures and pages of some folders."""
    parser = argparse.ArgumentParser(
        prog="python -m softmax_rnn.microscope.page", description="Figures and pages, from the JSON."
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    for folder in parser.parse_args(argv).folders:
        write_page(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
