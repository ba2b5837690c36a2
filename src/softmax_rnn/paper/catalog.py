"""All figures: the paper's (``experiments.py``), and two of our own on questions that it leaves open at a small size.

``stability``: loss spikes hardly occur in small models, so stability is measured by the sensitivity to the learning rate (Wortsman
et al. 2023): the final loss against learning rates from 1e-3 to 1e-1, with the paper's settings, without clipping gradients, and
without clamping scores.

``norms``: why are models with RMS and layer norm behind those with an L2 norm? Their outputs start √d times as large (d is the width of
a head), so the attention branch may drown the residual. If that is the reason, RMS and layer norm whose weight starts at 1/√d
catch up, and an L2 norm times √d falls behind, whether scores are clamped or not.
"""

from __future__ import annotations

from ..errors import UserError
from .claims import Claim, as_stable, less_stable, matches, more_spikes_over_rates, worse
from .experiments import FIG2, FIG3, FIG4, FIG5, FIG6, FIG8, FIG9, NORMS, QUICK
from .figures import Figure, Panel
from .scales import GRID, UNCLIPPED, Scale

STABLE = ("softmax", "norm", "gate", "length", "rms", "layer")
FREE = ("softmax", "norm", "gate_free", "length_free", "rms_free", "layer_free")


def _rates(scale: Scale) -> tuple[Panel, ...]:
    return (
        Panel("as in the paper", scale.main, STABLE, GRID),
        Panel("scores not clamped", scale.main, FREE, GRID),
        Panel("gradients not clipped", scale.main, ("gate", "gate_free"), UNCLIPPED),
    )


STABILITY = Figure(
    "stability",
    "S1",
    "4.1, 4.5",
    "How sensitive is training to the learning rate?",
    "Final test loss after 500 steps against the learning rate. A flat line is a stable mechanism. The paper clips gradients only "
    "where there is a gate, and clamps scores at 5 for all but softmax and the L2 norm.",
    _rates,
    (
        Claim(
            "norm_as_insensitive_as_softmax",
            "4.1",
            "The vector norm is stable: it is no more sensitive to the learning rate than softmax.",
            (as_stable("norm", "softmax"),),
        ),
        Claim(
            "gate_less_stable_than_norm",
            "4.1",
            "The gate is less stable than the norm: more sensitive to the learning rate.",
            (less_stable("gate", "norm"),),
        ),
        Claim(
            "clamping_and_clipping_help",
            "4.1",
            "Clamping scores and clipping gradients make training with a gate more stable: less sensitive, with fewer spikes.",
            (
                less_stable("gate_free", "gate", (UNCLIPPED, GRID)),
                more_spikes_over_rates("gate_free", "gate", (UNCLIPPED, GRID)),
            ),
        ),
        Claim(
            "length_more_sensitive",
            "4.5",
            "Dividing by the length alone is unstable: more sensitive to the learning rate than softmax.",
            (less_stable("length", "softmax"),),
        ),
        Claim(
            "gate_stabilises",
            "4.5",
            "A gate makes the division by the length more stable: less sensitive to the learning rate, clipped or not.",
            (less_stable("length", "gate"), less_stable("length", "gate", (GRID, UNCLIPPED))),
        ),
        Claim(
            "any_norm_is_as_stable",
            "4.5",
            "The choice of the norm does not matter for stability: RMS and layer norm are no more sensitive than L2.",
            (as_stable("rms", "norm"), as_stable("layer", "norm")),
        ),
    ),
)

CLAMPED = ("softmax", "norm_clamp", "norm_large_clamp", "rms", "rms_small", "layer", "layer_small")
UNCLAMPED = ("softmax", "norm", "norm_large", "rms_free", "rms_small_free", "layer_free", "layer_small_free")


def _norms(scale: Scale) -> tuple[Panel, ...]:
    return (
        Panel("scores clamped at 5", scale.main, CLAMPED),
        Panel("scores not clamped", scale.main, UNCLAMPED),
        Panel("the paper's norms", scale.main, NORMS),
    )


WHY = Figure(
    "norms",
    "S2",
    "4.5",
    "Why do RMS and layer norm lag?",
    "The output of an RMS or layer norm starts √d times as large as that of an L2 norm (d = 16 is the width of a head). Here the L2 norm "
    "is also made as large, and the others as small, with and without a clamp on the scores.",
    _norms,
    (
        Claim(
            "rms_and_layer_lag",
            "4.5",
            "RMS and layer norm are behind the L2 norm in a small model.",
            (worse("rms", "norm"), worse("layer", "norm")),
            ours=True,
        ),
        Claim(
            "clamp_is_not_the_reason",
            "4.5",
            "Without the clamp RMS and layer norm are still behind the L2 norm.",
            (worse("rms_free", "norm"), worse("layer_free", "norm")),
            ours=True,
        ),
        Claim(
            "small_start_cures_the_lag",
            "4.5",
            "RMS and layer norm match the L2 norm when their weight starts at 1/√d, with and without the clamp.",
            (
                matches("rms_small", "norm"),
                matches("layer_small", "norm"),
                matches("rms_small_free", "norm"),
                matches("layer_small_free", "norm"),
            ),
            ours=True,
        ),
        Claim(
            "large_l2_lags",
            "4.5",
            "An L2 norm times √d is behind the plain one, with and without the clamp.",
            (worse("norm_large", "norm"), worse("norm_large_clamp", "norm_clamp")),
            ours=True,
        ),
    ),
)


FIGURES: dict[str, Figure] = {
    figure.name: figure for figure in (QUICK, FIG2, FIG3, FIG4, FIG5, FIG6, STABILITY, WHY, FIG8, FIG9)
}
OURS = (STABILITY, WHY)


def of_scale(scale: Scale) -> list[Figure]:
    """The figures of a scale, in the order of the paper; our own belong to the laptop scale alone."""
    if scale.name == "quick":
        return [QUICK]
    return [f for f in FIGURES.values() if f is not QUICK and (f not in OURS or scale.name == "cpu")]


def choose(name: str, scale: Scale) -> list[Figure]:
    """``all``, or one figure by its name."""
    if name == "all":
        return of_scale(scale)
    if name not in FIGURES:
        raise UserError(f"Unknown figure {name!r}; figures are {', '.join(FIGURES)} and all.")
    if FIGURES[name] not in of_scale(scale):
        raise UserError(f"The scale {scale.name} has no figure {name!r}: it is for --scale cpu.")
    return [FIGURES[name]]
