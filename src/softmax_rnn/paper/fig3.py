"""Figure 3 (section 4.2): the same with a larger model, and with rows four times as long."""

from .claims import Claim, gap_does_not_grow, matches, more_spikes, worse
from .fig2 import MECHANISMS
from .figures import Figure, Panel
from .scales import Scale


def panels(scale: Scale) -> tuple[Panel, ...]:
    """The larger model and the longer rows, on the main corpus; the base setting beside them, to compare with."""
    main = scale.main
    return (
        Panel("base", main, MECHANISMS),
        Panel("larger model", main, MECHANISMS, "large"),
        Panel("rows four times as long", main, MECHANISMS, "long"),
    )


CLAIMS = (
    Claim(
        "ranking_kept_larger",
        "4.2",
        "In a larger model the order stays: norm with softmax, gate behind.",
        (matches("norm", "softmax", "large"), worse("gate", "norm", "large", by=0.0)),
    ),
    Claim(
        "ranking_kept_longer",
        "4.2",
        "On longer sequences the order stays: norm with softmax, gate behind.",
        (matches("norm", "softmax", "long"), worse("gate", "norm", "long", by=0.0)),
    ),
    Claim(
        "norm_scales_as_softmax",
        "4.2",
        "Norm scales as softmax does: its distance from softmax does not grow with the model or the sequence.",
        (gap_does_not_grow("norm", "softmax", "large"), gap_does_not_grow("norm", "softmax", "long")),
    ),
    Claim(
        "norm_more_stable_when_scaled",
        "4.2",
        "In a larger model and on longer sequences the norm is more stable than the gate.",
        (more_spikes("gate", "norm", "large"), more_spikes("gate", "norm", "long")),
    ),
)

FIGURE = Figure(
    "fig3",
    "3",
    "4.2",
    "Does it stay so when the model or the sequence grows?",
    "The same mechanisms in a wider model (on the laptop twice as wide, with four times the parameters without embeddings), "
    "and on rows four times as long.",
    panels,
    CLAIMS,
)
