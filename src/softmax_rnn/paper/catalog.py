"""All figures by name, and which of them a scale has."""

from __future__ import annotations

from ..errors import UserError
from .experiments import FIG2, FIG3, FIG4, FIG5, FIG6, FIG8, FIG9, QUICK
from .figures import Figure
from .followups import STABILITY, WHY
from .scales import Scale

FIGURES: dict[str, Figure] = {
    figure.name: figure for figure in (QUICK, FIG2, FIG3, FIG4, FIG5, FIG6, STABILITY, WHY, FIG8, FIG9)
}
OURS = ("stability", "norms")  # only at the laptop scale


def of_scale(scale: Scale) -> list[Figure]:
    """The figures of a scale, in the order of the paper."""
    if scale.name == "quick":
        return [QUICK]
    return [f for f in FIGURES.values() if f.name != "quick" and (f.name not in OURS or scale.name == "cpu")]


def choose(name: str, scale: Scale) -> list[Figure]:
    """``all``, or one by its name."""
    if name == "all":
        return of_scale(scale)
    if name not in FIGURES:
        raise UserError(f"Unknown figure {name!r}; figures are {', '.join(FIGURES)} and all.")
    if FIGURES[name] not in of_scale(scale):
        raise UserError(f"The scale {scale.name} has no figure {name!r}: it is for --scale cpu.")
    return [FIGURES[name]]
