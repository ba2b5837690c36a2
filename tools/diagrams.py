"""Figures 1 and 7 of the paper as drawings: ``python tools/diagrams.py docs/figures``.

Figure 1: softmax attention as a sum of recurrent networks, of which linear attention is the one with n = 1.
Figure 7: linear attention as a recurrent network with an input and an output gate (App. E).
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from softmax_rnn.report.drawing import STYLE

INK, SOFT, STATE, GATE, LINEAR = "#1b1b1b", "#7a7a7a", "#dbe8f6", "#fbe3d6", "#e3f1e4"
FONT: dict[Any, Any] = {
    **STYLE,
    "mathtext.fontset": "stix",
    "font.size": 13,
    "svg.fonttype": "path",
}


def main(argv: list[str]) -> int:
    """Write both drawings as SVG."""
    folder = Path(argv[0]) if argv else Path("docs/figures")
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(FONT):
        for name, drawing in (("fig1", _softmax()), ("fig7", _gates())):
            drawing.savefig(folder / f"{name}.svg", metadata={"Date": None})
            plt.close(drawing)
    return 0


class _Canvas:
    def __init__(self, width: float, height: float) -> None:
        self.figure = plt.figure(figsize=(width, height))
        self.axis: Any = self.figure.add_axes((0, 0, 1, 1))
        self.axis.set(xlim=(0, width), ylim=(0, height))
        self.axis.axis("off")

    def box(self, x: float, y: float, text: str, width: float = 1.5, fill: str = "white", height: float = 0.62) -> None:
        corner = (x - width / 2, y - height / 2)
        self.axis.add_patch(
            FancyBboxPatch(corner, width, height, boxstyle="round,pad=0,rounding_size=0.1", fc=fill, ec=INK, lw=1.1)
        )
        self.text(x, y, text)

    def knot(self, x: float, y: float, text: str) -> None:
        self.axis.add_patch(plt.Circle((x, y), 0.2, fc="white", ec=INK, lw=1.1))
        self.text(x, y - 0.01, text, size=13)

    def text(self, x: float, y: float, text: str, size: float = 13, color: str = INK, ha: str = "center") -> None:
        self.axis.text(x, y, text, ha=ha, va="center", size=size, color=color)

    def arrow(self, *points: tuple[float, float], bend: float = 0.0) -> None:
        """Through the points; the last piece has the head."""
        for a, b in pairwise(points[:-1]):
            self.axis.plot(*zip(a, b, strict=True), color=INK, lw=1.1, solid_capstyle="round")
        style = f"arc3,rad={bend}"
        head = "-|>,head_length=5,head_width=2.4"
        self.axis.add_patch(
            FancyArrowPatch(
                points[-2], points[-1], arrowstyle=head, connectionstyle=style, color=INK, lw=1.1, shrinkA=0, shrinkB=0
            )
        )

    def loop(self, x: float, y: float) -> None:
        """The state carried to the next token."""
        self.arrow((x - 0.45, y + 0.31), (x + 0.45, y + 0.31), bend=-0.95)


def _softmax() -> Any:
    c = _Canvas(11.4, 5.6)
    c.text(0.55, 2.6, "$k_t,\\, v_t$", 15)
    rows = [("0", 4.6, "$1 \\times e$"), ("1", 3.3, "$d \\times e$"), ("2", 2.0, "$d^2 \\times e$")]
    c.axis.add_patch(
        FancyBboxPatch((1.25, 2.72), 6.95, 1.16, boxstyle="round,pad=0,rounding_size=0.1", fc=LINEAR, ec="none")
    )
    c.text(1.4, 3.72, "linear attention", 10, "#3f7a46", ha="left")
    for n, y, size in rows:
        c.arrow((1.0, 2.6), (1.2, 2.6), (1.2, y), (1.75, y))
        c.box(2.75, y, f"$k_t^{{\\otimes {n}}}\\, v_t^{{\\top}}$", 2.0)
        c.arrow((3.75, y), (4.4, y))
        c.box(5.15, y, f"$H_t^{{{n}}}$", 1.5, STATE)
        c.loop(5.15, y)
        c.text(6.02, y + 0.42, size, 10, SOFT, ha="left")
        c.arrow((5.9, y), (6.55, y))
        weight = {"0": "1", "1": "1", "2": "\\frac{1}{2}"}[n]
        c.box(7.35, y, f"${weight}\\; q_t^{{\\otimes {n}}} \\cdot$", 1.6)
        c.arrow((8.15, y), (8.6, y), (8.6, 2.6), (8.9, 2.6))
    for x in (2.75, 5.15, 7.35):
        c.text(x, 1.15, "$\\vdots$", 16)
    c.text(5.15, 0.55, "$n$-th network: hidden state $H_t^n = \\sum_{s \\leq t} k_s^{\\otimes n} v_s^{\\top}$, "
           "read with $\\frac{1}{n!}\\, q_t^{\\otimes n}$", 12, SOFT)  # fmt: skip
    c.knot(9.1, 2.6, "$+$")
    c.arrow((9.3, 2.6), (9.75, 2.6))
    c.knot(9.95, 2.6, "$\\times$")
    c.arrow((9.95, 3.35), (9.95, 2.8))
    c.text(9.95, 3.58, "$G_t$", 15)
    c.text(9.95, 4.2, "the denominator:", 10, SOFT)
    c.text(9.95, 3.95, "a sum, a gate or a norm", 10, SOFT)
    c.arrow((10.15, 2.6), (10.65, 2.6))
    c.text(10.95, 2.6, "$O_t$", 15)
    return c.figure


def _gates() -> Any:
    c = _Canvas(10.2, 2.9)
    y = 1.15
    c.text(0.55, y, "$k_t,\\, v_t$", 15)
    c.arrow((1.05, y), (1.45, y))
    c.box(2.15, y, "$k_t\\, v_t^{\\top}$", 1.4)
    c.arrow((2.85, y), (3.25, y))
    c.knot(3.45, y, "$\\times$")
    c.arrow((3.45, y + 0.75), (3.45, y + 0.2))
    c.box(3.45, y + 1.05, "$g^{in}_t = \\sigma(w_{in} \\cdot x_t)$", 2.3, GATE)
    c.arrow((3.65, y), (4.35, y))
    c.box(5.05, y, "$H_t$", 1.4, STATE)
    c.loop(5.05, y)
    c.text(5.05, y - 0.52, "$H_t = H_{t-1} + g^{in}_t\\, k_t v_t^{\\top}$", 11, SOFT)
    c.arrow((5.75, y), (6.2, y))
    c.box(6.8, y, "$q_t \\cdot$", 1.2)
    c.arrow((7.4, y), (7.85, y))
    c.knot(8.05, y, "$\\times$")
    c.arrow((8.05, y + 0.75), (8.05, y + 0.2))
    c.box(8.05, y + 1.05, "$g^{out}_t = \\sigma(w_{out} \\cdot x_t)$", 2.5, GATE)
    c.arrow((8.25, y), (8.9, y))
    c.text(9.25, y, "$O_t$", 15)
    return c.figure


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
