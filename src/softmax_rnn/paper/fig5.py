"""Figure 5 (section 4.4): the series cut at order n, for the exponential and for three linear attentions (App. F).

Every order is trained with an L2 norm in place of the denominator, which any order may have. Even orders, whose weights are
positive everywhere, are trained with the sum as well; that is the one that becomes softmax.
"""

from itertools import pairwise

from .claims import Claim, matches, not_better, worse
from .figures import Figure, Panel
from .scales import Scale

FAMILIES = {"taylor": "softmax", "elu": "elu + 1", "relu": "ReLU", "cosine": "cosine"}
NORMED = {"taylor": (0, 1, 2, 4, 10), "elu": (1, 2, 10), "relu": (1, 2, 10), "cosine": (1, 2, 10)}
SUMMED = {"taylor": (2, 10), "elu": (10,), "relu": (10,), "cosine": (10,)}


def panels(scale: Scale) -> tuple[Panel, ...]:
    """One for each family, with the two full mechanisms to compare with."""
    main = scale.main
    return tuple(
        Panel(
            f"{name}, orders 0 to n",
            main,
            (
                "softmax",
                "norm",
                *(f"{family}{n}_norm" for n in NORMED[family]),
                *(f"{family}{n}" for n in SUMMED[family]),
            ),
        )
        for family, name in FAMILIES.items()
    )


MORE_ORDERS = Claim(
    "more_orders_help",
    "4.4",
    "The more orders of the series of softmax, the lower the loss.",
    tuple(worse(f"taylor{a}_norm", f"taylor{b}_norm", by=0.0) for a, b in pairwise(NORMED["taylor"])),
)
CLAIMS = (
    MORE_ORDERS,
    Claim(
        "order_10_matches_softmax",
        "4.4",
        "Ten orders are as good as softmax itself.",
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
)

FIGURE = Figure(
    "fig5",
    "5",
    "4.4",
    "What does each order of the series add?",
    "Models trained with the series cut at order n. Solid: an L2 norm in place of the denominator, which any order may have. "
    "Dashed: the sum, for even orders, whose weights are positive everywhere.",
    panels,
    CLAIMS,
)
