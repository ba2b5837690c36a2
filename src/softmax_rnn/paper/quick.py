"""The first look: six mechanisms on one corpus, in minutes; what ``make demo`` shows."""

from .claims import Claim, worse
from .fig2 import GATE_WORSE, NORM_MATCHES
from .figures import Figure, Panel
from .scales import Scale

MECHANISMS = ("softmax", "norm", "gate", "linear_elu", "taylor0_norm", "taylor2_norm")


def panels(scale: Scale) -> tuple[Panel, ...]:
    """One corpus."""
    return (Panel(scale.corpora[scale.main], scale.main, MECHANISMS),)


FIGURE = Figure(
    "quick",
    "2, 4, 5",
    "4",
    "Softmax, and what becomes of it when parts are replaced",
    "The denominator replaced by a norm or a gate; linear attention; the series cut at order 0 and at order 2.",
    panels,
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
