"""Figure 4 (section 4.3): linear attention with elu + 1, ReLU and cosine features, against softmax, norm and gate."""

from .claims import Claim, Test, worse
from .fig2 import MECHANISMS
from .figures import Figure, Panel
from .scales import Scale

LINEAR = ("linear_elu", "linear_relu", "linear_cosine")


def panels(scale: Scale) -> tuple[Panel, ...]:
    """The main corpus."""
    return (Panel(scale.corpora[scale.main], scale.main, MECHANISMS + LINEAR),)


def _each_worse(than: str) -> tuple[Test, ...]:
    return tuple(worse(name, than) for name in LINEAR)


LINEAR_WORSE = Claim(
    "linear_clearly_worse",
    "4.3",
    "Every linear attention is clearly worse than softmax.",
    _each_worse("softmax"),
)
CLAIMS = (
    LINEAR_WORSE,
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
)

FIGURE = Figure(
    "fig4",
    "4",
    "4.3",
    "How far behind is linear attention?",
    "Linear attention is the first-order term alone, with a feature map on queries and keys.",
    panels,
    CLAIMS,
)
