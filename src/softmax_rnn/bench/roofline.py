"""What a card could do at best, on paper: FLOPs, bytes and the bound of each kernel on an A100 and an H100. Computed, not measured.

    time >= max(FLOPs in matrix products / rate of the matrix units, elementwise FLOPs / rate of the other units, bytes / bandwidth)

Products are counted as the kernels make them: whole tiles on the diagonal, all d^2 products of order 2. Elementwise work is counted in
instructions, each worth the two FLOPs of a multiply-add that could have been issued instead; an exponential is worth four instructions.
Bytes count each tensor of a call once, states between chunks as often as they are written and read.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """Peak rates of the data sheets, without sparsity: TFLOP/s of matrix products in bfloat16 and tf32, of float32 elsewhere; TB/s."""

    name: str
    half: float
    tf32: float
    other: float
    bandwidth: float


CARDS = (Card("A100 SXM 80 GB", 312, 156, 19.5, 2.04), Card("H100 SXM 80 GB", 989, 494, 66.9, 3.35))


@dataclass(frozen=True)
class Work:
    """What one kernel does in a call."""

    name: str
    half: float  # FLOPs of products in bfloat16
    tf32: float  # FLOPs of products in tf32
    other: float  # elementwise FLOPs
    moved: float  # bytes

    def bounds(self, card: Card) -> dict[str, float]:
        """Microseconds, by what could limit it."""
        return {
            "matrix units": (self.half / card.half + self.tf32 / card.tf32) / 1e6,
            "other units": self.other / card.other / 1e6,
            "memory": self.moved / card.bandwidth / 1e6,
        }


def quadratic(order: int | None, B: int = 8, H: int = 16, T: int = 4096, D: int = 64) -> list[Work]:
    """softmax (no order) or a Taylor series, causal, bfloat16: each visible pair is a score, a weight and products with D channels."""
    pairs = B * H * T * (T + 128) / 2  # half of them, and the other half of the tiles on the diagonal
    weight = 9 if order is None else 2 * order + 3  # scale, maximum, exp, sum; or two instructions per order
    slope = 13 if order is None else 2 * order + 12  # the same again, the mask, and the products of three numbers
    tensor, name = B * H * T * D * 2, "softmax" if order is None else f"taylor{order}"
    product = 2 * pairs * D
    return [
        Work(f"{name}, forward", 2 * product, 0, 2 * weight * pairs, 4 * tensor),
        Work(f"{name}, dq", 3 * product, 0, 2 * slope * pairs, 5 * tensor),
        Work(f"{name}, dk and dv", 4 * product, 0, 2 * slope * pairs, 6 * tensor),
    ]


def linear(order: int, D: int, B: int = 8, H: int = 16, T: int = 4096, E: int = 64) -> list[Work]:
    """scan of orders 0 to ``order``, bfloat16 with states in float32: chunks of 64 tokens (32 for keys of more than 16 channels)."""
    C = 64 if D <= 16 else 32
    tokens, blocks = B * H * T, {1: 1, 2: 2 + D}[order]
    states = B * H * (T // C) * blocks * D * E * 4
    through, within = 2 * tokens * blocks * D * E, 2 * tokens * C
    inputs, name = tokens * (2 * D + E) * 2, f"scan of order {order}, keys of {D}"
    return [
        Work(f"{name}, write", 0, through, tokens * blocks * D, inputs + states),
        Work(f"{name}, pass", 0, 0, states / 2, 2 * states),
        Work(
            f"{name}, read",
            within * D,
            through + within * E,
            tokens * (C * 4 + blocks * D),
            inputs + states + tokens * E * 4,
        ),
        Work(
            f"{name}, dq",
            within * D,
            through + within * (D + E),
            tokens * (C * 4 + 3 * blocks * D),
            inputs + states + tokens * E * 4,
        ),
        Work(
            f"{name}, dk and dv",
            within * D,
            2 * through + within * (D + 2 * E),
            tokens * (C * 6 + 4 * blocks * D),
            inputs + states + tokens * E * 4,
        ),
    ]


def table() -> str:
    """Markdown, for docs/performance.md."""
    work = [*quadratic(None), *quadratic(2), *quadratic(10), *linear(1, 64), *linear(2, 16)]
    head = (
        "| kernel | matrix GFLOPs | other GFLOPs | MB | "
        + " | ".join(f"{c.name}: at least | limited by" for c in CARDS)
        + " |"
    )
    lines = [
        "**Computed, not measured**: batch 8, 16 heads, 4,096 tokens, values of 64 channels, keys of 64 unless it says otherwise; "
        "bfloat16, causal."
    ]
    lines += ["", head, "|---|" + "---|" * (3 + 2 * len(CARDS))]
    for w in work:
        cells = [w.name, f"{(w.half + w.tf32) / 1e9:,.0f}", f"{w.other / 1e9:,.1f}", f"{w.moved / 2**20:,.0f}"]
        for card in CARDS:
            bounds = w.bounds(card)
            most = max(bounds, key=lambda name: bounds[name])
            cells += [f"{bounds[most]:,.0f} µs", most]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
