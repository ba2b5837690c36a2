"""The page of an inspection: one file with everything in it, made from the JSON beside it."""

from __future__ import annotations

import html
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


def write_page(folder: Path) -> None:
    """Draw the figures and write index.html."""
    from .figures import CAPTIONS, draw

    summary, heads = load(folder)
    drawn = draw(summary, heads, folder)
    parts = [*_opening(summary), *_needed(summary)]
    for name in drawn:
        parts += [f"<h2>{TITLES[name]}</h2>", figure((folder / f"{name}.svg").read_text(), CAPTIONS[name])]
    parts += [*_scores(heads), *_states(summary), *_closing(summary)]
    (folder / "index.html").write_text(page(f"Orders in {summary.get('model', 'a model')}", parts))


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


def _opening(s: dict[str, Any]) -> list[str]:
    best = list(s["needed"])[-1]
    top, plain, centred = s["orders"][-1], s["needed"]["none"], s["needed"][best]
    what = "the loss stays within 0.01 nats" if s["metric"] == "loss" else "the cosine stays above 0.999"
    text = f"Cut at order {order(plain['model'], top)}, {what} of the untouched model's."
    if best != "none":
        text += f" With centred keys order {order(centred['model'], top)} is enough."
    name, source = (html.escape(str(s.get(k, ""))) for k in ("model", "text"))
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
        rows.append([NAMES[name], f"{low:.1f} … {high:.1f}", f"{inner[0]:.1f} … {inner[1]:.1f}", f"{middle:.2f}"])
    head = ["centring", "all scores", "1% … 99%, widest head", "entropy of the median head, nats"]
    return ["<h2>Scores</h2>", table(head, rows)]


def _states(s: dict[str, Any]) -> list[str]:
    states = s["states"]
    cache = states["cache"]
    rows = [["keys and values", *(size(c["bytes"]) for c in cache), ""]]
    rows += [
        [f"order {r['order']}", *([size(r["bytes"])] * len(cache)), f"{r['break_even_tokens']:,} tokens"
         if r["break_even_tokens"] < 1e12 else f"{r['break_even_tokens']:.0e} tokens"]
        for r in states["state"]
    ]  # fmt: skip
    marked = [i + 1 for i, r in enumerate(states["state"]) if r["needed"]]
    head = ["per head of keys", *(f"{c['tokens'] // 1024}k" for c in cache), "state is smaller from"]
    return [
        "<h2>What that would cost as a recurrent state</h2>",
        table(head, rows, marked),
        '<p class="soft">A state of orders 0..n, symmetric, in float32, has the same size at any length; keys and values are in '
        "bfloat16. Marked: the orders that the median head or the whole model needs.</p>",
    ]


def _closing(s: dict[str, Any]) -> list[str]:
    calibration = f" Centres were calibrated on {html.escape(s['calibration'])}." if s.get("calibration") else ""
    return [
        f'<p class="soft">Made by <code>{html.escape(s.get("command", ""))}</code>. The numbers are in inspection.json and heads.*.json.'
        f"{calibration} Weights of the series are summed in float64.</p>"
    ]
