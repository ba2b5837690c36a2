"""All figures by name, and what a scale's report is made of."""

from __future__ import annotations

from ..errors import UserError
from . import fig2, fig3, fig4, fig5, fig6, quick
from .expanded import FIG8, FIG9
from .figures import Figure
from .scales import Scale

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        quick.FIGURE, fig2.FIGURE, fig3.FIGURE, fig4.FIGURE, fig5.FIGURE, fig6.FIGURE, FIG8, FIG9,
    )
}  # fmt: skip


def of_scale(scale: Scale) -> list[Figure]:
    """The figures of a scale, in the order of the paper."""
    return [figure for figure in FIGURES.values() if (figure.name == "quick") == (scale.name == "quick")]


def choose(name: str, scale: Scale) -> list[Figure]:
    """``all``, or one by its name."""
    if name == "all":
        return of_scale(scale)
    if name not in FIGURES:
        raise UserError(f"Unknown figure {name!r}; figures are {', '.join(FIGURES)} and all.")
    return [FIGURES[name]]
