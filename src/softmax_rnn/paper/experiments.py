"""The paper's experiments: figures 2 to 6, 8 and 9, each with the runs it shows and the claims that rest on it.

Figure 2 (section 4.1): softmax, and its denominator replaced by a vector norm or by a gate, on three corpora.
Figure 3 (4.2): the same with a larger model, and with rows four times as long.
Figure 4 (4.3): linear attention with elu + 1, ReLU and cosine features.
Figure 5 (4.4): the series cut at order n, for the exponential and for three linear attentions (App. F).
Figure 6 (4.5): ablations of the denominator, of the gate and of the norm.
Figures 8 and 9 (App. G) are figures 2 and 6 drawn large; ``quick`` is a first look at 2, 4 and 5.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from .claims import Claim, Test, gap_does_not_grow, matches, more_spikes, no_more_spikes, not_better, worse
from .figures import Figure, Panel
from .scales import LARGE, LONG, Scale

MAIN = ("softmax", "norm", "gate")
LINEAR = ("linear_elu", "linear_relu", "linear_cosine")


def _corpora(scale: Scale) -> tuple[Panel, ...]:
    return tuple(Panel(name, corpus, MAIN) for corpus, name in scale.corpora.items())


NORM_MATCHES = Claim(
    "norm_matches_softmax",
    "4.1",
    "With a vector norm in place of the denominator the loss is as low as with softmax (mean over the corpora).",
    (matches("norm", "softmax", where="all"),),
)
GATE_WORSE = Claim(
    "gate_slightly_worse",
    "4.1",
    "With a gate in place of the denominator the loss is slightly worse: above that of softmax, below that of linear attention.",
    (worse("gate", "softmax", where="all", by=0.0), worse("linear_elu", "gate", by=0.0)),
)

FIG2 = Figure(
    "fig2",
    "2",
    "4.1",
    "Is the denominator a norm or a gate?",
    "Softmax, and its denominator replaced by an L2 norm of the output or by a learned output gate (divided by the length).",
    _corpora,
    (
        NORM_MATCHES,
        Claim(
            "norm_is_stable",
            "4.1",
            "With a vector norm training is stable: no more loss spikes than with softmax.",
            (no_more_spikes("norm", "softmax", where="all"),),
        ),
        GATE_WORSE,
        Claim(
            "gate_has_spikes",
            "4.1",
            "With a gate, training has loss spikes.",
            (more_spikes("gate", "softmax", where="all"),),
        ),
    ),
)


def _sizes(scale: Scale) -> tuple[Panel, ...]:
    """The larger model and the longer rows, on the main corpus; the base setting beside them, to compare with."""
    return (
        Panel("base", scale.main, MAIN),
        Panel("larger model", scale.main, MAIN, (LARGE,)),
        Panel("rows four times as long", scale.main, MAIN, (LONG,)),
    )


FIG3 = Figure(
    "fig3",
    "3",
    "4.2",
    "Does it stay so when the model or the sequence grows?",
    "The same mechanisms in a wider model (on the laptop twice as wide, with four times the parameters without embeddings), "
    "and on rows four times as long.",
    _sizes,
    (
        Claim(
            "ranking_kept_larger",
            "4.2",
            "In a larger model the norm still matches softmax, and the gate is behind the norm.",
            (matches("norm", "softmax", LARGE), worse("gate", "norm", LARGE, by=0.0)),
        ),
        Claim(
            "ranking_kept_longer",
            "4.2",
            "On longer sequences the norm still matches softmax, and the gate is behind the norm.",
            (matches("norm", "softmax", LONG), worse("gate", "norm", LONG, by=0.0)),
        ),
        Claim(
            "norm_scales_as_softmax",
            "4.2",
            "The norm scales as softmax does: it does not fall behind softmax when the model or the sequence grows.",
            (gap_does_not_grow("norm", "softmax", LARGE), gap_does_not_grow("norm", "softmax", LONG)),
        ),
        Claim(
            "norm_more_stable_when_scaled",
            "4.2",
            "In a larger model and on longer sequences the norm has fewer loss spikes than the gate.",
            (more_spikes("gate", "norm", LARGE), more_spikes("gate", "norm", LONG)),
        ),
    ),
)


def _linear(scale: Scale) -> tuple[Panel, ...]:
    return (Panel(scale.corpora[scale.main], scale.main, MAIN + LINEAR),)


def _each_worse(than: str) -> tuple[Test, ...]:
    return tuple(worse(name, than) for name in LINEAR)


FIG4 = Figure(
    "fig4",
    "4",
    "4.3",
    "How far behind is linear attention?",
    "Linear attention is the first-order term alone, with a feature map on queries and keys.",
    _linear,
    (
        Claim(
            "linear_clearly_worse",
            "4.3",
            "Every linear attention is clearly worse than softmax.",
            _each_worse("softmax"),
        ),
        Claim(
            "linear_worse_than_norm",
            "4.3",
            "Every linear attention is clearly worse than softmax with a norm in place of the denominator.",
            _each_worse("norm"),
        ),
        Claim(
            "linear_worse_than_gate",
            "4.3",
            "Every linear attention is clearly worse than softmax with a gate in place of the denominator.",
            _each_worse("gate"),
        ),
    ),
)

# Every order is trained with an L2 norm in place of the denominator, which any order may have. Even orders, whose weights are
# positive everywhere, are trained with the sum as well; that is the one that becomes softmax.
FAMILIES = {"taylor": "softmax", "elu": "elu + 1", "relu": "ReLU", "cosine": "cosine"}
NORMED = {"taylor": (0, 1, 2, 4, 10), "elu": (1, 2, 10), "relu": (1, 2, 10), "cosine": (1, 2, 10)}
SUMMED = {"taylor": (2, 10), "elu": (10,), "relu": (10,), "cosine": (10,)}


def _orders(scale: Scale) -> tuple[Panel, ...]:
    """One panel for each family, with the two full mechanisms to compare with."""
    panels = []
    for family, name in FAMILIES.items():
        normed = [f"{family}{n}_norm" for n in NORMED[family]]
        summed = [f"{family}{n}" for n in SUMMED[family]]
        panels.append(Panel(f"{name}, orders 0 to n", scale.main, ("softmax", "norm", *normed, *summed)))
    return tuple(panels)


FIG5 = Figure(
    "fig5",
    "5",
    "4.4",
    "What does each order of the series add?",
    "Models trained with the series cut at order n. Solid: an L2 norm in place of the denominator, which any order may have. "
    "Dashed: the sum, for even orders, whose weights are positive everywhere.",
    _orders,
    (
        Claim(
            "more_orders_help",
            "4.4",
            "The more orders of the series of softmax, the lower the loss.",
            tuple(worse(f"taylor{a}_norm", f"taylor{b}_norm", by=0.0) for a, b in pairwise(NORMED["taylor"])),
        ),
        Claim(
            "order_10_matches_softmax",
            "4.4",
            "With ten orders of the series the loss is as low as with softmax itself.",
            (matches("taylor10", "softmax"), matches("taylor10_norm", "norm")),
        ),
        Claim(
            "linear_improves_with_orders",
            "4.4",
            "Linear attention with elu or ReLU features improves when orders are added.",
            (worse("elu1_norm", "elu10_norm", by=0.0), worse("relu1_norm", "relu10_norm", by=0.0)),
        ),
        Claim(
            "linear_never_reaches_softmax",
            "4.4",
            "With ten orders linear attention is still behind softmax.",
            (
                worse("elu10_norm", "norm"),
                worse("relu10_norm", "norm"),
                worse("cosine10_norm", "norm"),
                worse("elu10", "softmax"),
                worse("relu10", "softmax"),
                worse("cosine10", "softmax"),
            ),
        ),
        Claim(
            "cosine_gains_nothing",
            "4.4",
            "Cosine attention gains nothing from further orders.",
            (not_better("cosine10_norm", "cosine1_norm"),),
        ),
    ),
)

DENOMINATORS = ("softmax", "undivided", "detach_sum", "detach_sum_gate", "clamp_sum", "length", "gate", "norm")
GATES = ("softmax", "gate", "in_gate", "in_out_gate", "gate_nolength", "relu_gate")
NORMS = ("softmax", "norm", "rms", "layer", "norm_length", "rms_length", "layer_length", "relu_norm")


def _ablations(scale: Scale) -> tuple[Panel, ...]:
    return (
        Panel("denominator", scale.main, DENOMINATORS),
        Panel("gate", scale.main, GATES),
        Panel("norm", scale.main, NORMS),
    )


FIG6 = Figure(
    "fig6",
    "6",
    "4.5",
    "Which part of the denominator matters?",
    "Three ablations: of the denominator (removed, detached, replaced by the length, a gate or a norm), of the gate, and of the norm.",
    _ablations,
    (
        Claim(
            "detaching_hurts",
            "4.5",
            "Without a gradient through the denominator the loss is clearly worse.",
            (worse("detach_sum", "softmax"),),
        ),
        Claim(
            "length_is_close",
            "4.5",
            "Dividing by the length alone gives a loss as low as that of softmax.",
            (matches("length", "softmax"),),
        ),
        Claim(
            "length_has_spikes",
            "4.5",
            "Dividing by the length alone is unstable: it has more loss spikes than softmax.",
            (more_spikes("length", "softmax"),),
        ),
        Claim(
            "gate_has_fewer_spikes",
            "4.5",
            "With a gate, division by the length has fewer loss spikes.",
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
            "With any vector norm (L2, RMS or layer norm, divided by the length or not) the loss is as low as with softmax.",
            tuple(matches(name, "softmax") for name in NORMS[1:-1]),
        ),
        Claim(
            "norm_is_the_best_replacement",
            "4.5",
            "Of the replacements of the denominator the vector norm is the best.",
            tuple(worse(a, "norm", by=0.0) for a in ("gate", "length", "undivided", "detach_sum", "detach_sum_gate")),
        ),
        Claim(
            "any_norm_has_few_spikes",
            "4.5",
            "No vector norm has more loss spikes than softmax.",
            tuple(no_more_spikes(name, "softmax") for name in NORMS[1:-1]),
        ),
    ),
)

LARGE_VIEW = "The same curves in large; below, the last half of training."
FIG8 = replace(
    FIG2, name="fig8", number="8", section="G", title="Figure 2, expanded", caption=LARGE_VIEW, claims=(), expanded=True
)
FIG9 = replace(
    FIG6, name="fig9", number="9", section="G", title="Figure 6, expanded", caption=LARGE_VIEW, claims=(), expanded=True
)

FIRST = ("softmax", "norm", "gate", "linear_elu", "taylor0_norm", "taylor2_norm")
QUICK = Figure(
    "quick",
    "2, 4, 5",
    "4",
    "Softmax, and what becomes of it when parts are replaced",
    "The denominator replaced by a norm or a gate; linear attention; the series cut at order 0 and at order 2.",
    lambda scale: (Panel(scale.corpora[scale.main], scale.main, FIRST),),
    (
        NORM_MATCHES,
        GATE_WORSE,
        Claim(
            "linear_clearly_worse",
            "4.3",
            "Linear attention (elu features) is clearly worse than softmax.",
            (worse("linear_elu", "softmax"),),
        ),
        Claim(
            "more_orders_help",
            "4.4",
            "Two orders of the series are better than none.",
            (worse("taylor0_norm", "taylor2_norm"),),
        ),
    ),
)
