"""Figures 8 and 9 (appendix G): figures 2 and 6 drawn large, with a second look at the end of training. The same runs."""

from dataclasses import replace

from . import fig2, fig6

FIG8 = replace(
    fig2.FIGURE,
    name="fig8",
    number="8",
    section="G",
    title="Figure 2, expanded",
    caption="The curves of figure 2 in large; below, the last half of training.",
    claims=(),
    expanded=True,
)
FIG9 = replace(
    fig6.FIGURE,
    name="fig9",
    number="9",
    section="G",
    title="Figure 6, expanded",
    caption="The curves of figure 6 in large; below, the last half of training.",
    claims=(),
    expanded=True,
)
