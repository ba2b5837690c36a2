"""Claims about expressiveness, ours and not the paper's, fixed before the runs; verdicts are computed as in ``paper/claims.py``.

A test is a signed sum over points, taken seed by seed, each at the learning rate that seed 0 chose. Its 95% Student-t interval over
the seeds is compared with a region: inside (holds), outside (does not hold), across its border (inconclusive).

``SHARE`` is the difference in accuracy that counts, 5 of 100 answers; of text, the margins are those that the sentences name.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..paper.claims import MARGIN, Claim, Test, claims, says
from ..paper.intervals import INFINITE, Region
from .design import WIDTHS, Point

if TYPE_CHECKING:
    from .results import Found

SHARE = 0.05
SOME = 1e-6  # more than nothing: two that are equal do not differ
Parts = tuple[tuple[float, Point], ...]


@dataclass(frozen=True)
class Contrast(Test):
    """A test whose terms are points of the frontier; ``longest`` asks for the accuracy at four times the length of training."""

    parts: Parts = ()
    longest: bool = False

    @property
    def points(self) -> list[Point]:
        """What must have been run."""
        return [point for _, point in self.parts]

    def value(self, results: Any, seed: int) -> float | None:
        """The statistic of one seed; None if a run is missing."""
        found: Found = results
        values = [(weight, found.value(point, seed, self.longest)) for weight, point in self.parts]
        if any(value is None for _, value in values):
            return None
        return sum(weight * value for weight, value in values if value is not None)

    def tally(self, results: Any) -> dict[str, int]:
        """Nothing here counts spikes."""
        return {}


def _contrast(text: str, parts: Parts, region: Region, equal: Region | None = None, longest: bool = False) -> Contrast:
    metric: Any = "test_loss" if parts[0][1].place.quantity == "loss" else "accuracy"
    return Contrast(text, (), region, metric, equal, parts, longest)


def _mean(arena: str, better: str, than: str, widths: tuple[int, ...]) -> Parts:
    share = 1 / len(widths)
    signed = ((share, better), (-share, than))
    return tuple((weight, Point(arena, name, width)) for width in widths for weight, name in signed)


def _more(arena: str, better: str, than: str, widths: tuple[int, ...] = (8,)) -> Contrast:
    """The first recalls more than the second."""
    return _contrast(f"{better} − {than}, accuracy", _mean(arena, better, than, widths), (SOME, INFINITE))


def _alone(text: str, point: Point, region: Region, longest: bool = False) -> Contrast:
    return _contrast(text, ((1.0, point),), region, longest=longest)


def _pair(arena: str, a: str, b: str, conv: tuple[int, int] = (0, 0)) -> Parts:
    """a - b, both with keys of 16."""
    return (1.0, Point(arena, a, 16, conv[0])), (-1.0, Point(arena, b, 16, conv[1]))


def _near(arena: str, a: str, b: str, within: float, conv: tuple[int, int] = (0, 0)) -> Contrast:
    """The loss of the first is not above that of the second by more than a margin."""
    text = f"{a}{', convolution' if conv[0] else ''} − {b}{', convolution' if conv[1] else ''}, test loss"
    return _contrast(text, _pair(arena, a, b, conv), (-INFINITE, within), (-within, within))


def _worse(arena: str, a: str, b: str, by: float) -> Contrast:
    """The loss of the first is above that of the second by more than a margin."""
    return _contrast(f"{a} − {b}, test loss", _pair(arena, a, b), (by, INFINITE))


def _as_right(a: str, b: str, within: float = 0.02) -> Contrast:
    """On images: not less accurate than another by more than a margin."""
    return _contrast(f"{a} − {b}, accuracy", _pair("digits", a, b), (-within, INFINITE), (-within, within))


def _less_right(a: str, b: str) -> Contrast:
    """On images: less accurate than another."""
    return _contrast(f"{b} − {a}, accuracy", _pair("digits", b, a), (SOME, INFINITE))


NORMED = [f"taylor{n}_norm" for n in range(5)]
CLAIMS: tuple[Claim, ...] = (
    *claims(
        "recall",
        ours=True,
        **{
            f"order_{n}_recalls_more": says(
                f"Order {n} recalls more than order {n - 1} at equal key width (mean over widths of {', '.join(map(str, WIDTHS))}).",
                _more("recall", better, than, WIDTHS),
            )
            for n, (than, better) in enumerate(pairwise(NORMED), start=1)
        },
        linear_fails_where_order_2_succeeds=says(
            "With keys of width 8, order 2 recalls at least 90% of the values and linear attention at most half.",
            _alone("taylor2, accuracy", Point("recall", "taylor2"), (0.9, INFINITE)),
            _alone("linear_elu, accuracy", Point("recall", "linear_elu"), (-INFINITE, 0.5)),
        ),
        norm_recalls_as_softmax=says(
            "With a norm in place of the denominator as much is recalled as with softmax (mean over key widths).",
            _contrast(
                "norm − softmax, accuracy",
                _mean("recall", "norm", "softmax", WIDTHS),
                (-SHARE, INFINITE),
                (-SHARE, SHARE),
            ),
        ),
    ),
    *claims(
        "forgetting",
        ours=True,
        decay_wins_on_forgetting=says(
            "Where keys are assigned again, decay recalls more than adding alone: at order 1, at order 2, and of the exponential.",
            _more("forgetting", "taylor1_norm_decay", "taylor1_norm"),
            _more("forgetting", "taylor2_norm_decay", "taylor2_norm"),
            _more("forgetting", "norm_decay", "norm"),
        ),
        delta_wins_on_reassigned_keys=says(
            "Where keys are assigned again, the delta rule recalls more than adding alone: at order 1, at order 2, and of the exponential.",
            _more("forgetting", "taylor1_norm_delta", "taylor1_norm"),
            _more("forgetting", "taylor2_norm_delta", "taylor2_norm"),
            _more("forgetting", "delta_softmax", "norm"),
        ),
        delta_beats_decay_on_reassigned_keys=says(
            "Where keys are assigned again, the delta rule recalls more than decay at equal order.",
            _more("forgetting", "taylor1_norm_delta", "taylor1_norm_decay"),
            _more("forgetting", "taylor2_norm_delta", "taylor2_norm_decay"),
        ),
    ),
    *claims(
        "parity",
        ours=True,
        parity_needs_beta_up_to_2=says(
            "At four times the trained length the delta rule has at least 95% of parities right with beta in [0, 2], at most 60% "
            "with [0, 1].",
            _alone("beta in [0, 2], accuracy", Point("parity", "deltanet", 16, 0, 2.0), (0.95, INFINITE), longest=True),
            _alone("beta in [0, 1], accuracy", Point("parity", "deltanet", 16, 0, 1.0), (-INFINITE, 0.6), longest=True),
        ),
    ),
    *claims(
        "text",
        ours=True,
        near2_within_two_hundredths=says(
            "Exact for the newest 64 keys and order 2 beyond, at a constant state, is within 0.02 nats of softmax.",
            _near("text", "near2_w64", "softmax", 0.02),
        ),
        order_2_with_decay_and_convolution=says(
            "Order 2 with decay and a convolution is within 0.03 nats of softmax.",
            _near("text", "taylor2_decay", "softmax", MARGIN, (2, 0)),
        ),
        order_2_with_decay_same_convolution=says(
            "Order 2 with decay and a convolution is within 0.03 nats of softmax with the same convolution.",
            _near("text", "taylor2_decay", "softmax", MARGIN, (2, 2)),
        ),
    ),
    *claims(
        "masked",
        ours=True,
        norm_matches_on_hidden_words=says(
            "The norm matches softmax on hidden words, both sides in view.", _near("masked", "norm", "softmax", MARGIN)
        ),
        linear_is_behind_on_hidden_words=says(
            "Every linear attention is clearly behind softmax on hidden words.",
            *(_worse("masked", name, "softmax", MARGIN) for name in ("linear_elu", "linear_relu", "linear_cosine")),
        ),
        orders_help_on_hidden_words=says(
            "More orders give a lower loss on hidden words, and ten orders match all of them.",
            _worse("masked", "taylor1_norm", "taylor2_norm", SOME),
            _worse("masked", "taylor2_norm", "taylor4_norm", SOME),
            _near("masked", "taylor10_norm", "norm", MARGIN),
        ),
        gate_and_rms_match_on_hidden_words=says(
            "A gate or an RMS norm in place of the denominator matches softmax on hidden words.",
            _near("masked", "gate", "softmax", MARGIN),
            _near("masked", "rms", "softmax", MARGIN),
        ),
    ),
    *claims(
        "digits",
        ours=True,
        norm_matches_on_images=says(
            "The norm is as right as softmax about images, within 2 of 100.", _as_right("norm", "softmax")
        ),
        orders_help_on_images=says(
            "More orders are more often right about images, and ten orders are as right as all of them.",
            _less_right("taylor1_norm", "taylor2_norm"),
            _less_right("taylor2_norm", "taylor4_norm"),
            _as_right("taylor10_norm", "norm"),
        ),
        linear_is_behind_on_images=says(
            "Every linear attention is less often right about images than softmax.",
            *(_less_right(name, "softmax") for name in ("linear_elu", "linear_relu", "linear_cosine")),
        ),
    ),
)


def decisive() -> set[Point]:
    """The points on which a claim rests."""
    return {point for claim in CLAIMS for test in claim.tests if isinstance(test, Contrast) for point in test.points}
