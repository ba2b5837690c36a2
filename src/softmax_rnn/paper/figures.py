"""What a figure is: panels of loss curves, and the claims that rest on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .claims import Claim
from .scales import BASE, Cell, Scale, Setting

# One colour and label for a mechanism wherever it appears.
LOOK = {
    "softmax": ("softmax", "#1b1b1b"),
    "norm": ("norm (L2)", "#d1495b"),
    "gate": ("gate", "#2a78c2"),
    "linear_elu": ("linear, elu + 1", "#2e8b57"),
    "linear_relu": ("linear, ReLU", "#c8860d"),
    "linear_cosine": ("linear, cosine", "#8a4fbf"),
    "undivided": ("no denominator", "#8c8c8c"),
    "length": ("÷ length", "#2e8b57"),
    "clamp_sum": ("sum, at least 1", "#5d7f9e"),
    "detach_sum": ("sum, detached", "#c8860d"),
    "detach_sum_gate": ("sum, detached, with gate", "#8a4fbf"),
    "in_gate": ("input gate ÷ length", "#c8860d"),
    "in_out_gate": ("both gates ÷ length", "#8a4fbf"),
    "gate_nolength": ("gate, not ÷ length", "#2e8b57"),
    "relu_gate": ("ReLU kernel, gate ÷ length", "#8c8c8c"),
    "rms": ("RMS norm", "#8a4fbf"),
    "layer": ("layer norm", "#c8860d"),
    "norm_length": ("L2 norm ÷ length", "#e39aa4"),
    "rms_length": ("RMS norm ÷ length", "#c3a3e0"),
    "layer_length": ("layer norm ÷ length", "#e3bf7a"),
    "relu_norm": ("ReLU kernel, L2 norm", "#8c8c8c"),
    "norm_clamp": ("L2 norm, clamped", "#d1495b"),
    "norm_large": ("L2 norm × √d", "#2a78c2"),
    "norm_large_clamp": ("L2 norm × √d, clamped", "#2a78c2"),
    "rms_small": ("RMS norm, weight 1/√d", "#1b9e9e"),
    "layer_small": ("layer norm, weight 1/√d", "#2e8b57"),
    "rms_free": ("RMS norm, no clamp", "#8a4fbf"),
    "layer_free": ("layer norm, no clamp", "#c8860d"),
    "rms_small_free": ("RMS norm, weight 1/√d, no clamp", "#1b9e9e"),
    "layer_small_free": ("layer norm, weight 1/√d, no clamp", "#2e8b57"),
    "gate_free": ("gate, no clamp", "#1b9e9e"),
    "length_free": ("÷ length, no clamp", "#2e8b57"),
}
ORDERS = {0: "#c6dbef", 1: "#9ecae1", 2: "#6baed6", 4: "#3182bd", 10: "#08519c"}  # the darker, the more orders


@dataclass(frozen=True)
class Panel:
    """Several mechanisms on one corpus: their curves in one setting, or their final losses in several (learning rates)."""

    title: str
    corpus: str
    mechanisms: tuple[str, ...]
    settings: tuple[Setting, ...] = (BASE,)

    @property
    def rates(self) -> bool:
        """True if it shows final losses against the learning rate."""
        return len(self.settings) > 1

    def cells(self, seeds: Sequence[int]) -> list[Cell]:
        """Its runs."""
        return [
            Cell(name, self.corpus, setting, seed)
            for seed in seeds
            for name in self.mechanisms
            for setting in self.settings
        ]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper: ``panels`` depends on the scale, whose corpora it names."""

    name: str
    number: str
    section: str
    title: str
    caption: str
    panels: Callable[[Scale], tuple[Panel, ...]]
    claims: tuple[Claim, ...] = ()
    expanded: bool = False  # large panels, and a second look at the end of training (appendix G)

    def cells(self, scale: Scale, seeds: Sequence[int]) -> list[Cell]:
        """The runs of its panels and claims, each once, seed by seed."""
        found = [cell for panel in self.panels(scale) for cell in panel.cells(seeds)]
        found += [cell for claim in self.claims for cell in claim.cells(scale, seeds)]
        return sorted(dict.fromkeys(found), key=lambda cell: cell.seed)  # stable: in the order of the panels


def label(mechanism: str) -> str:
    """What a mechanism is called on figures."""
    if mechanism in LOOK:
        return LOOK[mechanism][0]
    name, _, norm = mechanism.partition("_")
    order = name.lstrip("abcdefghijklmnopqrstuvwxyz")
    return f"order {order}, {'L2 norm' if norm else 'sum'}" if order else mechanism


def color(mechanism: str) -> str:
    """The line's colour."""
    if mechanism in LOOK:
        return LOOK[mechanism][1]
    order = mechanism.partition("_")[0].lstrip("abcdefghijklmnopqrstuvwxyz")
    return ORDERS.get(int(order or 0), "#6baed6")


def dash(mechanism: str) -> str:
    """Dashed where the denominator is a sum and a norm's line is in the same panel."""
    return "dash" if mechanism not in LOOK and not mechanism.endswith("_norm") else "solid"
