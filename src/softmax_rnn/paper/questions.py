"""Figures of our own, on questions that the paper leaves open at a small size, and the claims that rest on them.

``stability``: loss spikes hardly occur in small models, so stability is measured by the sensitivity to the learning rate (Wortsman
et al. 2023): the final loss against learning rates from 1e-3 to 1e-1, with the paper's settings, without clipping gradients, and
without clamping scores.

``norms``: why are models with RMS and layer norm behind those with an L2 norm? Their outputs start √d times as large (d is the width of
a head), so the attention branch may drown the residual. If that is the reason, RMS and layer norm whose weight starts at 1/√d
catch up, and an L2 norm times √d falls behind, whether scores are clamped or not.

``lag``: on code the model of ``--scale night`` falls behind softmax with a norm, if its training is as short as at the laptop scale.
Does a model that is only twice as wide, too? A norm's output may start too large, as that of RMS and layer norm does; a head under
a norm can never be silent, as a head of softmax can whose values cancel; the learning rate was chosen by softmax. Or is it that
there are more layers?
"""

from __future__ import annotations

from .claims import Figure, Panel, as_stable, claims, less_stable, matches, more_spikes_over_rates, says, worse
from .scales import BASE, DEEP, GRID, LARGE, UNCLIPPED, Setting

STABLE = ("softmax", "norm", "gate", "length", "rms", "layer")
FREE = ("softmax", "norm", "gate_free", "length_free", "rms_free", "layer_free")

STABILITY = Figure(
    "stability",
    "S1",
    "4.1, 4.5",
    "How sensitive is training to the learning rate?",
    "Final test loss after 500 steps against the learning rate. A flat line is a stable mechanism; where a line ends, a run diverged. "
    "The paper clips gradients only where there is a gate, and clamps scores at 5 for all but softmax and the L2 norm.",
    lambda scale: (
        Panel("as in the paper", scale.main, STABLE, GRID),
        Panel("scores not clamped", scale.main, FREE, GRID),
        Panel("gradients not clipped", scale.main, ("gate", "gate_free"), UNCLIPPED),
    ),
    claims(
        "4.1",
        norm_as_insensitive_as_softmax=says(
            "The vector norm is stable: it is no more sensitive to the learning rate than softmax.",
            as_stable("norm", "softmax"),
        ),
        gate_less_stable_than_norm=says(
            "The gate is less stable than the norm: more sensitive to the learning rate.", less_stable("gate", "norm")
        ),
        clamping_and_clipping_help=says(
            "Clamping scores and clipping gradients make training with a gate more stable: less sensitive, with fewer spikes.",
            less_stable("gate_free", "gate", (UNCLIPPED, GRID)),
            more_spikes_over_rates("gate_free", "gate", (UNCLIPPED, GRID)),
        ),
    )
    + claims(
        "4.5",
        length_more_sensitive=says(
            "Dividing by the length alone is unstable: more sensitive to the learning rate than softmax.",
            less_stable("length", "softmax"),
        ),
        gate_stabilises=says(
            "A gate makes the division by the length more stable: less sensitive to the learning rate, clipped or not.",
            less_stable("length", "gate"),
            less_stable("length", "gate", (GRID, UNCLIPPED)),
        ),
        any_norm_is_as_stable=says(
            "The choice of the norm does not matter for stability: RMS and layer norm are no more sensitive than L2.",
            as_stable("rms", "norm"),
            as_stable("layer", "norm"),
        ),
    ),
)

CLAMPED = ("softmax", "norm_clamp", "norm_large_clamp", "rms", "rms_small", "layer", "layer_small")
UNCLAMPED = (
    "softmax",
    "norm",
    "norm_small",
    "norm_large",
    "rms_free",
    "rms_small_free",
    "layer_free",
    "layer_small_free",
)

WHY = Figure(
    "norms",
    "S2",
    "4.5",
    "Why do RMS and layer norm lag?",
    "The output of an RMS or layer norm starts √d times as large as that of an L2 norm (d = 16 is the width of a head). Here the L2 norm "
    "is also made as large, and the others as small, with and without a clamp on the scores. An L2 norm ÷ √d is smaller still.",
    lambda scale: (
        Panel("scores clamped at 5", scale.main, CLAMPED),
        Panel("scores not clamped", scale.main, UNCLAMPED),
    ),
    claims(
        "4.5",
        ours=True,
        rms_and_layer_lag=says(
            "RMS and layer norm are behind the L2 norm in a small model.",
            *(worse(name, "norm") for name in ("rms", "layer")),
        ),
        clamp_is_not_the_reason=says(
            "Without the clamp RMS and layer norm are still behind the L2 norm.",
            *(worse(name, "norm") for name in ("rms_free", "layer_free")),
        ),
        small_start_cures_the_lag=says(
            "RMS and layer norm match the L2 norm when their weight starts at 1/√d, with and without the clamp.",
            *(matches(a, "norm") for a in ("rms_small", "layer_small", "rms_small_free", "layer_small_free")),
        ),
        large_l2_lags=says(
            "An L2 norm times √d is behind the plain one, with and without the clamp.",
            worse("norm_large", "norm"),
            worse("norm_large_clamp", "norm_clamp"),
        ),
    ),
)

CODE = "stdlib"
SLOWER = Setting("large", lr=3e-3)  # half the learning rate

LAG = Figure(
    "lag",
    "S3",
    "4.2",
    "Does the norm fall behind in a larger model?",
    "The model that is twice as wide, on prose and on code, with what may keep the norm from falling behind: an output that starts "
    "1/√d as large (d = 32 is the width of a head), a gate on every head after the norm, and half the learning rate; and with four layers.",
    lambda scale: (
        Panel("prose", scale.main, ("softmax", "norm", "norm_small"), (LARGE,)),
        Panel("code", CODE, ("softmax", "norm", "norm_small"), (LARGE,)),
        Panel("code, a gate on every head", CODE, ("softmax_gated", "norm_gated"), (LARGE,)),
        Panel("code, half the learning rate", CODE, ("softmax", "norm"), (SLOWER,)),
        Panel("code, four layers", CODE, ("softmax", "norm"), (DEEP,)),
    ),
    claims(
        "4.2",
        ours=True,
        small_l2_is_no_worse=says(
            "An L2 norm ÷ √d matches the plain one, in the small model and in the larger.",
            *(matches("norm_small", "norm", size) for size in (BASE, LARGE)),
        ),
        small_l2_keeps_up=says(
            "In the larger model an L2 norm ÷ √d matches softmax, on prose and on code.",
            matches("norm_small", "softmax", LARGE),
            matches("norm_small", "softmax", LARGE, CODE),
        ),
        norm_keeps_up_on_code=says(
            "In the larger model the norm matches softmax on code, too.", matches("norm", "softmax", LARGE, CODE)
        ),
        gated_norm_keeps_up=says(
            "There the norm matches softmax when every head of both has a gate.",
            matches("norm_gated", "softmax_gated", LARGE, CODE),
        ),
        slower_norm_keeps_up=says(
            "There the norm matches softmax at half the learning rate.", matches("norm", "softmax", SLOWER, CODE)
        ),
        norm_keeps_up_when_deeper=says(
            "There the norm matches softmax with four layers in place of two.", matches("norm", "softmax", DEEP, CODE)
        ),
    ),
)

OURS = (STABILITY, WHY, LAG)
