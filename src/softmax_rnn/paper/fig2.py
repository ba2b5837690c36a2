"""Figure 2 (section 4.1): softmax, and its denominator replaced by a vector norm or by a gate, on three corpora."""

from .claims import Claim, matches, more_spikes, no_more_spikes, worse
from .figures import Figure, Panel
from .scales import Scale

MECHANISMS = ("softmax", "norm", "gate")


def panels(scale: Scale) -> tuple[Panel, ...]:
    """One for each corpus."""
    return tuple(Panel(name, corpus, MECHANISMS) for corpus, name in scale.corpora.items())


NORM_MATCHES = Claim(
    "norm_matches_softmax",
    "4.1",
    "With a vector norm in place of the denominator the loss is that of softmax, on average over the corpora.",
    (matches("norm", "softmax", where="all"),),
)
GATE_WORSE = Claim(
    "gate_slightly_worse",
    "4.1",
    "With a gate in place of the denominator the loss is slightly worse than softmax's: above it, but below linear attention's.",
    (worse("gate", "softmax", where="all", by=0.0), worse("linear_elu", "gate", by=0.0)),
)
GATE_SPIKES = Claim(
    "gate_has_spikes",
    "4.1",
    "With a gate, training has loss spikes.",
    (more_spikes("gate", "softmax", where="all"),),
)
NORM_STABLE = Claim(
    "norm_is_stable",
    "4.1",
    "With a vector norm training is stable: no more loss spikes than with softmax.",
    (no_more_spikes("norm", "softmax", where="all"),),
)

FIGURE = Figure(
    "fig2",
    "2",
    "4.1",
    "Is the denominator a norm or a gate?",
    "Softmax, and its denominator replaced by an L2 norm of the output or by a learned output gate (divided by the length).",
    panels,
    (NORM_MATCHES, NORM_STABLE, GATE_WORSE, GATE_SPIKES),
)
