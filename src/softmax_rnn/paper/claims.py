"""Claims as code: a sentence of the paper, a statistic fixed beforehand, and a verdict that is computed.

A **test** is a sum of final losses (or spike counts) with signs, for example norm - softmax, taken seed by seed: two runs with
one seed see the same batches, and begin with the same weights unless one of them has gates. Its 95% Student-t interval over the
seeds lies inside the region that the claim names (holds), outside of it (does not hold), or across its border (inconclusive,
as it is while a seed is missing). A claim holds if all its tests do, and does not if one of them does not.

``MARGIN`` is the difference that counts, in nats per token: 3% of perplexity. "Matches" means within it, "worse" beyond it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .scales import Cell, Scale, Variant

if TYPE_CHECKING:
    from .results import Results

Metric = Literal["test_loss", "spikes"]
Verdict = Literal["holds", "does not hold", "inconclusive", "not run"]
Where = Literal["main", "all"]

MARGIN = 0.03
INFINITE = math.inf
# Two-sided 95% points of Student's t by degrees of freedom; more than nine take the last, which is on the safe side.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Term:
    """A signed summand: the final value of a mechanism, on the main corpus or the mean over all."""

    weight: float
    mechanism: str
    variant: Variant = "base"
    where: Where = "main"

    def cells(self, scale: Scale, seed: int) -> list[Cell]:
        """The runs it needs."""
        corpora = [scale.main] if self.where == "main" else list(scale.corpora)
        return [Cell(self.mechanism, corpus, self.variant, seed) for corpus in corpora]


@dataclass(frozen=True)
class Test:
    """What is computed from each seed, and where its interval must lie."""

    text: str
    terms: tuple[Term, ...]
    region: tuple[float, float]
    metric: Metric = "test_loss"

    @property
    def unit(self) -> str:
        """Of the statistic."""
        return "spikes per run" if self.metric == "spikes" else "nats"

    def value(self, results: Results, seed: int) -> float | None:
        """The statistic of one seed; None if a run is missing. A run that diverged has an infinite loss."""
        total = 0.0
        for term in self.terms:
            values = [results.final(cell, self.metric) for cell in term.cells(results.scale, seed)]
            if any(value is None for value in values):
                return None
            total += term.weight * statistics.fmean(value for value in values if value is not None)
        return total


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that its experiments support, in our words."""

    name: str
    section: str
    sentence: str
    tests: tuple[Test, ...]

    def cells(self, scale: Scale, seeds: Sequence[int]) -> list[Cell]:
        """The runs it needs, each once."""
        found = [c for test in self.tests for term in test.terms for seed in seeds for c in term.cells(scale, seed)]
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Outcome:
    """A test after the runs."""

    test: Test
    values: dict[int, float]
    mean: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    note: str | None = None


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95% interval; without bounds for a single value. Some infinite values leave it open above.

    >>> interval([0.0, 0.1, 0.2])[1] < 0 < interval([0.0, 0.1, 0.2])[2]
    True
    """
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, -INFINITE, INFINITE
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < len(values):
        direction = next(value for value in values if math.isinf(value))
        _, low, high = interval(finite) if finite else (0.0, direction, direction)
        return direction, min(low, direction), max(high, direction)
    half = STUDENT[min(len(values) - 2, len(STUDENT) - 1)] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def judge(low: float, high: float, region: tuple[float, float]) -> Verdict:
    """Where an interval lies with respect to a region.

    >>> judge(0.05, 0.2, (0.03, INFINITE)), judge(-0.1, 0.0, (0.03, INFINITE)), judge(0.0, 0.1, (0.03, INFINITE))
    ('holds', 'does not hold', 'inconclusive')
    """
    if region[0] <= low and high <= region[1]:
        return "holds"
    if high < region[0] or low > region[1]:
        return "does not hold"
    return "inconclusive"


def run_test(test: Test, results: Results) -> Outcome:
    """Compute a test from the runs that are there."""
    found = {seed: test.value(results, seed) for seed in results.seeds}
    missing = [seed for seed, value in found.items() if value is None]
    both = [seed for seed, value in found.items() if value is not None and math.isnan(value)]  # infinite - infinite
    values = {seed: value for seed, value in found.items() if value is not None and seed not in both}
    notes = []
    if any(math.isinf(value) for value in values.values()):
        notes.append("a run diverged: its loss counts as infinite")
    if both:
        notes.append(f"both sides diverged with seed {', '.join(map(str, both))}")
    if len(values) == 1:
        notes.append("one seed has no interval")
    if missing:
        notes.append(f"without seed {', '.join(map(str, missing))}")
    note = "; ".join(notes) or None
    if not values:
        return Outcome(test, {}, None, None, None, "inconclusive" if both else "not run", note if both else None)
    mean, low, high = interval(list(values.values()))
    verdict = "inconclusive" if missing or both else judge(low, high, test.region)
    return Outcome(test, values, mean, low, high, verdict, note)


def conclude(outcomes: Sequence[Outcome]) -> Verdict:
    """The verdict on a claim from those on its tests: one refuted test refutes it, one missing leaves it open."""
    verdicts = {outcome.verdict for outcome in outcomes}
    if "does not hold" in verdicts:
        return "does not hold"
    if verdicts == {"holds"}:
        return "holds"
    return "not run" if verdicts == {"not run"} else "inconclusive"


def _difference(a: str, b: str, variant: Variant, where: Where) -> tuple[Term, Term]:
    return Term(1.0, a, variant, where), Term(-1.0, b, variant, where)


def _text(a: str, b: str, variant: Variant, where: Where, metric: Metric = "test_loss") -> str:
    place = {"base": "", "large": ", larger model", "long": ", longer rows"}[variant]
    return f"{a} − {b}{place}{', mean over the corpora' if where == 'all' else ''}, {metric.replace('_', ' ')}"


def matches(a: str, b: str, variant: Variant = "base", where: Where = "main") -> Test:
    """The loss of ``a`` is that of ``b``, within the margin."""
    return Test(_text(a, b, variant, where), _difference(a, b, variant, where), (-MARGIN, MARGIN))


def worse(a: str, b: str, variant: Variant = "base", where: Where = "main", by: float = MARGIN) -> Test:
    """The loss of ``a`` is above that of ``b`` by more than the margin, or by more than ``by``."""
    return Test(_text(a, b, variant, where), _difference(a, b, variant, where), (by, INFINITE))


def not_better(a: str, b: str) -> Test:
    """The loss of ``a`` is not below that of ``b`` by more than the margin."""
    return Test(_text(a, b, "base", "main"), _difference(a, b, "base", "main"), (-MARGIN, INFINITE))


def more_spikes(a: str, b: str, variant: Variant = "base", where: Where = "main") -> Test:
    """``a`` has at least one loss spike more than ``b`` in every second run."""
    return Test(_text(a, b, variant, where, "spikes"), _difference(a, b, variant, where), (0.5, INFINITE), "spikes")


def no_more_spikes(a: str, b: str, where: Where = "main") -> Test:
    """``a`` has no more loss spikes than ``b``."""
    return Test(_text(a, b, "base", where, "spikes"), _difference(a, b, "base", where), (-INFINITE, 0.0), "spikes")


def gap_does_not_grow(a: str, b: str, variant: Variant) -> Test:
    """The loss of ``a`` above that of ``b`` is no more than at the base setting, within the margin."""
    terms = (*_difference(a, b, variant, "main"), Term(-1.0, a), Term(1.0, b))
    grown = {"base": "", "large": "larger model", "long": "longer rows"}[variant]
    return Test(f"({a} − {b}, {grown}) − ({a} − {b}), test loss", terms, (-INFINITE, MARGIN))
