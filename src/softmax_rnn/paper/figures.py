"""Every figure: the runs that it shows, and the claims that rest on it.

Figure 2 (section 4.1): softmax, and its denominator replaced by a vector norm or by a gate, on three corpora.
Figure 3 (4.2): the same with a larger model, and with sequences four times as long.
Figure 4 (4.3): linear attention with elu + 1, ReLU and cosine features.
Figure 5 (4.4): the series cut at order n, for the exponential and for three linear attentions (App. F).
Figure 6 (4.5): ablations of the denominator, of the gate and of the norm.
Figures 8 and 9 (App. G) are figures 2 and 6 drawn large; ``quick`` is a first look at 2, 4 and 5. Those of our own are in ``questions.py``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from ..errors import UserError
from .claims import (
    Claim,
    Figure,
    Panel,
    Test,
    claims,
    gap_does_not_grow,
    matches,
    more_spikes,
    no_more_spikes,
    not_better,
    says,
    worse,
)
from .questions import LAG, OURS, STABILITY, WHY
from .scales import LARGE, LONG, Scale

MAIN = ("softmax", "norm", "gate")
LINEAR = ("linear_elu", "linear_relu", "linear_cosine")

NORM_MATCHES, NORM_STABLE, GATE_WORSE, GATE_SPIKES = claims(
    "4.1",
    norm_matches_softmax=says(
        "With a vector norm in place of the denominator the loss is as low as with softmax (mean over the corpora).",
        matches("norm", "softmax", where="all"),
    ),
    norm_is_stable=says(
        "With a vector norm training is stable: no more loss spikes than with softmax.",
        no_more_spikes("norm", "softmax", where="all"),
    ),
    gate_slightly_worse=says(
        "With a gate in place of the denominator the loss is slightly worse: above that of softmax, below that of linear attention.",
        worse("gate", "softmax", where="all", by=0.0),
        worse("linear_elu", "gate", by=0.0),
    ),
    gate_has_spikes=says("With a gate, training has loss spikes.", more_spikes("gate", "softmax", where="all")),
)

FIG2 = Figure(
    "fig2",
    "2",
    "4.1",
    "Is the denominator a norm or a gate?",
    "Softmax, and its denominator replaced by an L2 norm of the output or by a learned output gate (divided by the length).",
    lambda scale: tuple(Panel(name, corpus, MAIN) for corpus, name in scale.corpora.items()),
    (NORM_MATCHES, NORM_STABLE, GATE_WORSE, GATE_SPIKES),
)

FIG3 = Figure(
    "fig3",
    "3",
    "4.2",
    "Does it stay so when the model or the sequence grows?",
    "The same mechanisms in a wider model (on the laptop twice as wide, with four times the parameters without embeddings), "
    "and on rows four times as long.",
    lambda scale: (
        Panel("base", scale.main, MAIN),
        Panel("larger model", scale.main, MAIN, (LARGE,)),
        Panel("rows four times as long", scale.main, MAIN, (LONG,)),
    ),
    claims(
        "4.2",
        ranking_kept_larger=says(
            "In a larger model the norm still matches softmax, and the gate is behind the norm.",
            matches("norm", "softmax", LARGE),
            worse("gate", "norm", LARGE, by=0.0),
        ),
        ranking_kept_longer=says(
            "On longer sequences the norm still matches softmax, and the gate is behind the norm.",
            matches("norm", "softmax", LONG),
            worse("gate", "norm", LONG, by=0.0),
        ),
        norm_scales_as_softmax=says(
            "The norm scales as softmax does: it does not fall behind softmax when the model or the sequence grows.",
            *(gap_does_not_grow("norm", "softmax", size) for size in (LARGE, LONG)),
        ),
        norm_more_stable_when_scaled=says(
            "In a larger model and on longer sequences the norm has fewer loss spikes than the gate.",
            *(more_spikes("gate", "norm", size) for size in (LARGE, LONG)),
        ),
    ),
)


def _each_worse(than: str) -> tuple[Test, ...]:
    return tuple(worse(name, than) for name in LINEAR)


FIG4 = Figure(
    "fig4",
    "4",
    "4.3",
    "How far behind is linear attention?",
    "Linear attention is the first-order term alone, with a feature map on queries and keys.",
    lambda scale: (Panel(scale.corpora[scale.main], scale.main, MAIN + LINEAR),),
    claims(
        "4.3",
        linear_clearly_worse=says("Every linear attention is clearly worse than softmax.", *_each_worse("softmax")),
        linear_worse_than_norm=says(
            "Every linear attention is clearly worse than softmax with a norm in place of the denominator.",
            *_each_worse("norm"),
        ),
        linear_worse_than_gate=says(
            "Every linear attention is clearly worse than softmax with a gate in place of the denominator.",
            *_each_worse("gate"),
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
    claims(
        "4.4",
        more_orders_help=says(
            "The more orders of the series of softmax, the lower the loss.",
            *(worse(f"taylor{a}_norm", f"taylor{b}_norm", by=0.0) for a, b in pairwise(NORMED["taylor"])),
        ),
        order_10_matches_softmax=says(
            "With ten orders of the series the loss is as low as with softmax itself.",
            matches("taylor10", "softmax"),
            matches("taylor10_norm", "norm"),
        ),
        linear_improves_with_orders=says(
            "Linear attention with elu or ReLU features improves when orders are added.",
            *(worse(f"{family}1_norm", f"{family}10_norm", by=0.0) for family in ("elu", "relu")),
        ),
        linear_never_reaches_softmax=says(
            "With ten orders linear attention is still behind softmax.",
            *(worse(f"{family}10_norm", "norm") for family in ("elu", "relu", "cosine")),
            *(worse(f"{family}10", "softmax") for family in ("elu", "relu", "cosine")),
        ),
        cosine_gains_nothing=says(
            "Cosine attention gains nothing from further orders.", not_better("cosine10_norm", "cosine1_norm")
        ),
    ),
)

DENOMINATORS = ("softmax", "undivided", "detach_sum", "detach_sum_gate", "clamp_sum", "length", "gate", "norm")
GATES = ("softmax", "gate", "in_gate", "in_out_gate", "gate_nolength", "relu_gate")
NORMS = ("softmax", "norm", "rms", "layer", "norm_length", "rms_length", "layer_length", "relu_norm")

FIG6 = Figure(
    "fig6",
    "6",
    "4.5",
    "Which part of the denominator matters?",
    "Three ablations: of the denominator (removed, detached, replaced by the length, a gate or a norm), of the gate, and of the norm.",
    lambda scale: (
        Panel("denominator", scale.main, DENOMINATORS),
        Panel("gate", scale.main, GATES),
        Panel("norm", scale.main, NORMS),
    ),
    claims(
        "4.5",
        detaching_hurts=says(
            "Without a gradient through the denominator the loss is clearly worse.", worse("detach_sum", "softmax")
        ),
        length_is_close=says(
            "Dividing by the length alone gives a loss as low as that of softmax.", matches("length", "softmax")
        ),
        length_has_spikes=says(
            "Dividing by the length alone is unstable: it has more loss spikes than softmax.",
            more_spikes("length", "softmax"),
        ),
        gate_has_fewer_spikes=says(
            "With a gate, division by the length has fewer loss spikes.", more_spikes("length", "gate")
        ),
        gate_needs_length=says("A gate without division by the length tests worse.", worse("gate_nolength", "gate")),
        relu_kernel_hurts=says(
            "A decomposable ReLU kernel in place of the exponential hurts, with a gate and with a norm.",
            worse("relu_gate", "gate"),
            worse("relu_norm", "norm"),
        ),
        any_norm_does=says(
            "With any vector norm (L2, RMS or layer norm, divided by the length or not) the loss is as low as with softmax.",
            *(matches(name, "softmax") for name in NORMS[1:-1]),
        ),
        norm_is_the_best_replacement=says(
            "Of the replacements of the denominator the vector norm is the best.",
            *(worse(a, "norm", by=0.0) for a in ("gate", "length", "undivided", "detach_sum", "detach_sum_gate")),
        ),
        any_norm_has_few_spikes=says(
            "No vector norm has more loss spikes than softmax.",
            *(no_more_spikes(name, "softmax") for name in NORMS[1:-1]),
        ),
    ),
)


def _expanded(figure: Figure, number: str) -> Figure:
    title, caption = f"Figure {figure.number}, expanded", "The same curves in large; below, the last half of training."
    return Figure(f"fig{number}", number, "G", title, caption, figure.panels, expanded=True)


FIG8, FIG9 = _expanded(FIG2, "8"), _expanded(FIG6, "9")

FIRST = ("softmax", "norm", "linear_elu", "taylor0_norm", "taylor2_norm")
QUICK = Figure(
    "quick",
    "4, 5",
    "4",
    "Softmax, and what becomes of it when parts are replaced",
    "The denominator replaced by a norm; linear attention; the series cut at order 0 and at order 2. These runs decide what is far apart. "
    "Whether the norm equals softmax to a few hundredths takes the longer ones of --scale cpu.",
    lambda scale: (Panel(scale.corpora[scale.main], scale.main, FIRST),),
    (
        *claims(
            "4.3",
            linear_clearly_worse=says(
                "Linear attention (elu features) is clearly worse than softmax.", worse("linear_elu", "softmax")
            ),
            linear_worse_than_norm=says(
                "Linear attention is clearly worse than softmax with a norm in place of the denominator.",
                worse("linear_elu", "norm"),
            ),
        ),
        *claims(
            "4.4",
            more_orders_help=says(
                "Two orders of the series are better than none.", worse("taylor0_norm", "taylor2_norm")
            ),
        ),
    ),
)

FIGURES: dict[str, Figure] = {
    figure.name: figure for figure in (QUICK, FIG2, FIG3, FIG4, FIG5, FIG6, STABILITY, WHY, LAG, FIG8, FIG9)
}


def _with_small_norm(scale: Scale) -> tuple[Panel, ...]:
    """The panels of figure 2 and, from a question of our own, an L2 norm ÷ √d."""
    return tuple(replace(panel, mechanisms=(*MAIN, "norm_small")) for panel in FIG2.panels(scale))


def of_scale(scale: Scale) -> list[Figure]:
    """The figures of a scale, in the order of the paper; our own belong to the laptop scale alone."""
    if scale.name == "quick":
        return [QUICK]
    if scale.name == "night":  # to look at: one seed decides nothing
        return [replace(FIG2, panels=_with_small_norm, claims=())]
    return [f for f in FIGURES.values() if f is not QUICK and (f not in OURS or scale.name == "cpu")]


def choose(name: str, scale: Scale) -> list[Figure]:
    """``all``, or one figure by its name."""
    figures = of_scale(scale)
    if name == "all":
        return figures
    if name not in FIGURES:
        raise UserError(f"Unknown figure {name!r}; figures are {', '.join(FIGURES)} and all. A claim's name does, too.")
    found = [figure for figure in figures if figure.name == name]
    if not found:
        raise UserError(f"The scale {scale.name} has no figure {name!r}: it is for --scale cpu.")
    return found


def find_claim(name: str, scale: Scale) -> Claim | None:
    """The claim of that name, if it is one."""
    return next((claim for figure in of_scale(scale) for claim in figure.claims if claim.name == name), None)
