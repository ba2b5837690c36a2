"""Figure 6 (section 4.5): ablations of the denominator, of the gate and of the norm."""

from .claims import Claim, matches, more_spikes, no_more_spikes, worse
from .figures import Figure, Panel
from .scales import Scale

DENOMINATOR = ("softmax", "undivided", "detach_sum", "detach_sum_gate", "clamp_sum", "length", "gate", "norm")
GATE = ("softmax", "gate", "in_gate", "in_out_gate", "gate_nolength", "relu_gate")
NORM = ("softmax", "norm", "rms", "layer", "norm_length", "rms_length", "layer_length", "relu_norm")


def panels(scale: Scale) -> tuple[Panel, ...]:
    """The three columns, on the main corpus."""
    return (
        Panel("denominator", scale.main, DENOMINATOR),
        Panel("gate", scale.main, GATE),
        Panel("norm", scale.main, NORM),
    )


CLAIMS = (
    Claim(
        "detaching_hurts",
        "4.5",
        "No gradient through the denominator: clearly worse.",
        (worse("detach_sum", "softmax"),),
    ),
    Claim(
        "length_close_but_unstable",
        "4.5",
        "Dividing by the length alone is close to softmax, but unstable.",
        (matches("length", "softmax"), more_spikes("length", "softmax")),
    ),
    Claim(
        "gate_stabilises",
        "4.5",
        "A gate makes the division by the length more stable.",
        (more_spikes("length", "gate"),),
    ),
    Claim(
        "gate_needs_length",
        "4.5",
        "A gate without division by the length tests worse.",
        (worse("gate_nolength", "gate"),),
    ),
    Claim(
        "relu_kernel_hurts",
        "4.5",
        "A decomposable ReLU kernel in place of the exponential hurts, with a gate and with a norm.",
        (worse("relu_gate", "gate"), worse("relu_norm", "norm")),
    ),
    Claim(
        "any_norm_does",
        "4.5",
        "Any vector norm is as good as softmax: L2, RMS or layer norm, divided by the length or not.",
        tuple(matches(name, "softmax") for name in NORM[1:-1]),
    ),
    Claim(
        "norm_is_the_best_replacement",
        "4.5",
        "Of the replacements of the denominator the vector norm is the best.",
        tuple(worse(name, "norm", by=0.0) for name in ("gate", "length", "undivided", "detach_sum", "detach_sum_gate")),
    ),
    Claim(
        "any_norm_is_stable",
        "4.5",
        "The choice of the norm does not matter for stability: none has more loss spikes than softmax.",
        tuple(no_more_spikes(name, "softmax") for name in NORM[1:-1]),
    ),
)

FIGURE = Figure(
    "fig6",
    "6",
    "4.5",
    "Which part of the denominator matters?",
    "Three ablations: of the denominator (removed, detached, replaced by the length, a gate or a norm), of the gate, and of the norm.",
    panels,
    CLAIMS,
)
