"""The pictures at the top of README: ``python tools/picture.py`` writes docs/img/series.svg and docs/img/badges.svg.

The picture shows one row of softmax attention, and the sum of the first recurrent networks of its series beside it. It is computed with
the library itself from the example problem in examples/rebuild_softmax.py. The badges say what pyproject.toml says. Both are plain SVG;
the picture follows the reader's light or dark scheme.
"""

from __future__ import annotations

import math
import runpy
import sys
import tomllib
from pathlib import Path

import softmax_rnn as sr

ROOT = Path(__file__).parents[1]
PANELS = {0: "order 0", 1: "orders 0 and 1", 2: "orders 0 to 2", 4: "orders 0 to 4", 10: "orders 0 to 10"}
NAMES = {0: "an average", 1: "linear attention", 2: "", 4: "", 10: "softmax"}
WIDTH, GAP, HEIGHT, TOP = 176, 14, 120, 74
D = 16  # channels of the example's keys and values
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1c1c1c; }
.title { font-size: 17px; font-weight: 600; } .soft { fill: #5f6368; font-size: 12px; } .strong { font-weight: 600; }
.bar { fill: #b9c8de; } .sum { fill: none; stroke: #b3261e; stroke-width: 1.7; } .axis { stroke: #9aa0a6; stroke-width: 1; }
.key { fill: #b3261e; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8e6e3; } .soft { fill: #a8adb3; } .bar { fill: #43536b; } .sum { stroke: #ff8a80; } .axis { stroke: #6b7178; }
  .key { fill: #ff8a80; }
}
"""


def rows() -> tuple[list[float], dict[int, list[float]]]:
    """The weights of the last query: of softmax, and of the series cut at each order."""
    example = runpy.run_path(str(ROOT / "examples/rebuild_softmax.py"))
    q, k, _ = example["problem"]()
    cut = {n: sr.Mechanism(sr.Taylor(n), sr.Sum(), allow_signed=True) for n in PANELS}
    weights = example["row_weights"]
    return weights(q, k, "softmax").tolist(), {n: weights(q, k, m).tolist() for n, m in cut.items()}


def panel(x: float, order: int, softmax: list[float], cut: list[float], unit: float) -> list[str]:
    """Bars for softmax, a line for the sum so far, and below it what the sum is."""
    base, step = TOP + HEIGHT, WIDTH / len(softmax)
    lines = [
        f'<rect class="bar" x="{x + i * step:.1f}" y="{base - w * unit:.1f}" width="{step - 0.6:.1f}" height="{w * unit:.1f}"/>'
        for i, w in enumerate(softmax)
    ]
    points = " ".join(f"{x + (i + s) * step:.1f},{base - w * unit:.1f}" for i, w in enumerate(cut) for s in (0, 1))
    error = max(abs(a - b) for a, b in zip(softmax, cut, strict=True))
    middle = x + WIDTH / 2
    lines += [
        f'<line class="axis" x1="{x}" y1="{base}" x2="{x + WIDTH}" y2="{base}"/>',
        f'<polyline class="sum" points="{points}"/>',
        f'<text class="strong" x="{middle}" y="{base + 34}" text-anchor="middle">{PANELS[order]}</text>',
        f'<text class="soft" x="{middle}" y="{base + 52}" text-anchor="middle">largest error {100 * error:.2g}%</text>',
        f'<text class="soft" x="{middle}" y="{base + 69}" text-anchor="middle">state {math.comb(D + order, order):,} × {D}</text>',
    ]
    if NAMES[order]:
        lines.append(f'<text class="key" x="{middle}" y="{TOP - 8}" text-anchor="middle">{NAMES[order]}</text>')
    return lines


def drawing() -> str:
    """The whole picture."""
    softmax, cuts = rows()
    unit = HEIGHT / (1.05 * max(softmax + [w for cut in cuts.values() for w in cut]))
    width, height = len(PANELS) * (WIDTH + GAP) + GAP, TOP + HEIGHT + 84
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="One row of softmax attention, rebuilt by adding recurrent networks">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{GAP}" y="24">Softmax attention is a sum of recurrent networks</text>',
        f'<text class="soft" x="{GAP}" y="43">One row of attention weights over 48 keys: '
        "softmax (bars), and the sum of the first networks of its series (line)</text>",
    ]
    for i, (order, cut) in enumerate(cuts.items()):
        parts += panel(GAP + i * (WIDTH + GAP), order, softmax, cut, unit)
    return "\n".join([*parts, "</svg>"]) + "\n"


def badges() -> str:
    """Version, Python, torch and licence, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    torch = next(d for d in project["dependencies"] if d.startswith("torch"))
    status = next(c for c in project["classifiers"] if c.startswith("Development Status")).split(" - ")[1].lower()
    facts = {
        "version": f"{project['version']} {status}",
        "python": project["requires-python"].replace(">=", "≥ "),
        "torch": torch.removeprefix("torch").replace(">=", "≥ "),
        "licence": project["license"],
    }
    x, parts = 0.0, []
    for name, value in facts.items():
        left, right = 7.0 * len(name) + 12, 6.6 * len(value) + 14
        parts += [
            f'<rect x="{x:.1f}" width="{left:.1f}" height="20" fill="#555"/>',
            f'<rect x="{x + left:.1f}" width="{right:.1f}" height="20" fill="#2b5c9e"/>',
            f'<text x="{x + left / 2:.1f}" y="14">{name}</text><text x="{x + left + right / 2:.1f}" y="14">{value}</text>',
        ]
        x += left + right + 6
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{x - 6:.0f}" height="20" role="img" aria-label="{facts}">'.replace(
        "'", ""
    )
    style = "<style>text { font: 11px Verdana, sans-serif; fill: #fff; text-anchor: middle; }</style>"
    return "\n".join([head, style, *parts, "</svg>"]) + "\n"


def main() -> int:
    folder = ROOT / "docs/img"
    for name, content in (("series.svg", drawing()), ("badges.svg", badges())):
        (folder / name).write_text(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
