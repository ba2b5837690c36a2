"""Claims as code: a sentence, a statistic that was fixed before the runs, and a verdict that is computed. A **figure** has panels, which
say what is run, and the claims that rest on it (``figures.py`` lists them all).

A **test** is a signed sum over mechanisms, for example norm - softmax, taken seed by seed: two runs with one seed see the same
batches, and begin with the same weights unless one of them has gates. What is summed is the final test loss, the number of loss
spikes in a run, or the sensitivity to the learning rate. The region that the claim names decides over its interval
(``intervals.py``); a test is inconclusive while a seed is missing, and where no run of a spike test has a single spike, nothing
could have been seen: not testable here.

``MARGIN`` is the difference in loss that counts, in nats per token: 3% of perplexity. "Matches" means not worse by more than
that; whether the two are equivalent (neither worse nor better by more) is computed beside it and decides nothing. ``LEEWAY`` is
the difference in sensitivity that counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..report.data import Verdict
from .intervals import INFINITE, Region, interval, judge, sensitivity, why_open
from .scales import BASE, GRID, Cell, Scale, Setting

if TYPE_CHECKING:
    from .results import Results

Metric = Literal["test_loss", "spikes", "sensitivity", "accuracy"]
Where = str  # a corpus; or "main", that of the figures with one; or "all"

MARGIN = 0.03
LEEWAY = 0.1
UNITS = {"test_loss": "nats", "spikes": "spikes per run", "sensitivity": "nats", "accuracy": "of the answers"}


@dataclass(frozen=True)
class Term:
    """A signed summand: a mechanism in one or several settings, on one corpus or on all."""

    weight: float
    mechanism: str
    settings: tuple[Setting, ...] = (BASE,)
    where: Where = "main"

    def cells(self, scale: Scale, seed: int) -> list[Cell]:
        """The runs it needs."""
        corpora = list(scale.corpora) if self.where == "all" else [scale.main if self.where == "main" else self.where]
        return [Cell(self.mechanism, corpus, setting, seed) for corpus in corpora for setting in self.settings]


@dataclass(frozen=True)
class Test:
    """What is computed from each seed, where its interval must lie, and for "matches" where it would be equivalent."""

    text: str
    terms: tuple[Term, ...]
    region: Region
    metric: Metric = "test_loss"
    equivalence: Region | None = None

    def cells(self, scale: Scale, seed: int) -> list[Cell]:
        """The runs of one seed."""
        return [cell for term in self.terms for cell in term.cells(scale, seed)]

    def value(self, results: Results, seed: int) -> float | None:
        """The statistic of one seed; None if a run is missing."""
        total = 0.0
        for term in self.terms:
            cells = term.cells(results.scale, seed)
            values = [results.final(cell, "spikes" if self.metric == "spikes" else "test_loss") for cell in cells]
            found = [value for value in values if value is not None]
            if len(found) < len(values):
                return None
            worst = math.log(results.scale.recipe("base").tokenizer.vocab)
            total += term.weight * (
                sensitivity(found, worst) if self.metric == "sensitivity" else statistics.fmean(found)
            )
        return total

    def tally(self, results: Results) -> dict[str, int]:
        """How many spikes each mechanism has in all runs; nothing for other metrics."""
        counted: dict[str, int] = {}
        for term in self.terms if self.metric == "spikes" else ():
            cells = [cell for seed in results.seeds for cell in term.cells(results.scale, seed)]
            counted[f"{term.mechanism} in {len(cells)} runs"] = sum(int(results.final(c, "spikes") or 0) for c in cells)
        return counted


@dataclass(frozen=True)
class Claim:
    """A sentence that the experiments can decide: of the paper, in our words, or (``ours``) about our own question."""

    name: str
    section: str
    sentence: str
    tests: tuple[Test, ...]
    ours: bool = False

    def cells(self, scale: Scale, seeds: Sequence[int]) -> list[Cell]:
        """The runs it needs, each once."""
        return list(dict.fromkeys(c for test in self.tests for seed in seeds for c in test.cells(scale, seed)))


Saying = tuple[str, tuple[Test, ...]]


def says(sentence: str, *tests: Test) -> Saying:
    """What a claim says, and the tests that decide it."""
    return sentence, tests


def claims(section: str, *, ours: bool = False, **sayings: Saying) -> tuple[Claim, ...]:
    """The claims of a section by their names."""
    return tuple(Claim(name, section, sentence, tests, ours) for name, (sentence, tests) in sayings.items())


@dataclass(frozen=True)
class Panel:
    """Several mechanisms on one corpus: their curves in one setting, or their final losses in several (learning rates)."""

    title: str
    corpus: str
    mechanisms: tuple[str, ...]
    settings: tuple[Setting, ...] = (BASE,)

    @property
    def rates(self) -> bool:
        """True if it shows final losses against the learning rate."""
        return len(self.settings) > 1

    def cells(self, seeds: Sequence[int]) -> list[Cell]:
        """Its runs."""
        return [
            Cell(name, self.corpus, setting, seed)
            for seed in seeds
            for name in self.mechanisms
            for setting in self.settings
        ]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper: ``panels`` depends on the scale, whose corpora it names."""

    name: str
    number: str
    section: str
    title: str
    caption: str
    panels: Callable[[Scale], tuple[Panel, ...]]
    claims: tuple[Claim, ...] = ()
    expanded: bool = False  # large panels, and a second look at the end of training (appendix G)

    def cells(self, scale: Scale, seeds: Sequence[int]) -> list[Cell]:
        """The runs of its panels and claims, each once, seed by seed."""
        found = [cell for panel in self.panels(scale) for cell in panel.cells(seeds)]
        found += [cell for claim in self.claims for cell in claim.cells(scale, seeds)]
        return sorted(dict.fromkeys(found), key=lambda cell: cell.seed)  # stable: in the order of the panels


@dataclass(frozen=True)
class Judgement:
    """A test after the runs."""

    test: Test
    values: dict[int, float]
    mean: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    note: str | None = None
    equivalent: Verdict | None = None


def run_test(test: Test, results: Results) -> Judgement:
    """Compute a test from the runs that are there."""
    found = {seed: test.value(results, seed) for seed in results.seeds}
    missing = [seed for seed, value in found.items() if value is None]
    both = [seed for seed, value in found.items() if value is not None and math.isnan(value)]  # infinite - infinite
    values = {seed: value for seed, value in found.items() if value is not None and seed not in both}
    notes = _notes(values, missing, both)
    if not values:
        return Judgement(
            test, {}, None, None, None, "inconclusive" if both else "not run", _joined(notes) if both else None
        )
    mean, low, high = interval(list(values.values()))
    if missing or both:
        return Judgement(test, values, mean, low, high, "inconclusive", _joined(notes))
    tally = test.tally(results)
    if tally and not any(tally.values()):
        return Judgement(test, values, mean, low, high, "not testable here", "no run had a loss spike")
    if tally:
        notes.append("spikes: " + ", ".join(f"{name} {many}" for name, many in tally.items()))
    verdict = judge(low, high, test.region)
    if verdict == "inconclusive" and len(values) > 1:
        notes.append(why_open(list(values.values()), test.region))
    equivalent = None if test.equivalence is None else judge(low, high, test.equivalence)
    return Judgement(test, values, mean, low, high, verdict, _joined(notes), equivalent)


def _joined(notes: Sequence[str]) -> str | None:
    return "; ".join(notes) or None


def _notes(values: dict[int, float], missing: list[int], both: list[int]) -> list[str]:
    notes = []
    if any(math.isinf(value) for value in values.values()):
        notes.append("a run diverged: its loss counts as infinite")
    if both:
        notes.append(f"both sides diverged with seed {', '.join(map(str, both))}")
    if len(values) == 1:
        notes.append("one seed has no interval")
    if missing:
        notes.append(f"without seed {', '.join(map(str, missing))}")
    return notes


def conclude(judgements: Sequence[Judgement]) -> Verdict:
    """The verdict on a claim: one refuted test refutes it; else an open test leaves it open, a silent one untestable."""
    verdicts = {judgement.verdict for judgement in judgements}
    if "does not hold" in verdicts:
        return "does not hold"
    if verdicts == {"not run"}:
        return "not run"
    if verdicts & {"inconclusive", "not run"}:
        return "inconclusive"
    return "not testable here" if "not testable here" in verdicts else "holds"


# The kinds of tests. A name such as norm - softmax is a difference of what the metric says.


def _difference(
    a: str, b: str, setting: Setting, where: Where, region: Region, metric: Metric = "test_loss", equal: bool = False
) -> Test:
    places = {"large": ", larger model", "deep": ", larger and deeper model", "long": ", longer rows"}
    rate = "" if setting.lr is None else f", learning rate {setting.lr:g}"
    text_of = {"main": "", "all": ", mean over the corpora"}.get(where, f", {where}")
    text = f"{a} − {b}{places.get(setting.size, '')}{rate}{text_of}, {metric.replace('_', ' ')}"
    terms = Term(1.0, a, (setting,), where), Term(-1.0, b, (setting,), where)
    return Test(text, terms, region, metric, (-MARGIN, MARGIN) if equal else None)


def matches(a: str, b: str, setting: Setting = BASE, where: Where = "main") -> Test:
    """The loss of ``a`` is not above that of ``b`` by more than the margin; beside it, whether it is also not below."""
    return _difference(a, b, setting, where, (-INFINITE, MARGIN), equal=True)


def worse(a: str, b: str, setting: Setting = BASE, where: Where = "main", by: float = MARGIN) -> Test:
    """The loss of ``a`` is above that of ``b`` by more than the margin, or by more than ``by``."""
    return _difference(a, b, setting, where, (by, INFINITE))


def not_better(a: str, b: str) -> Test:
    """The loss of ``a`` is not below that of ``b`` by more than the margin."""
    return _difference(a, b, BASE, "main", (-MARGIN, INFINITE))


def more_spikes(a: str, b: str, setting: Setting = BASE, where: Where = "main") -> Test:
    """``a`` has at least one loss spike more than ``b`` in every second run."""
    return _difference(a, b, setting, where, (0.5, INFINITE), "spikes")


def no_more_spikes(a: str, b: str, where: Where = "main") -> Test:
    """``a`` has no more loss spikes than ``b``."""
    return _difference(a, b, BASE, where, (-INFINITE, 0.0), "spikes")


def gap_does_not_grow(a: str, b: str, setting: Setting) -> Test:
    """The loss of ``a`` above that of ``b`` is no more than at the base setting, within the margin."""
    terms = (Term(1.0, a, (setting,)), Term(-1.0, b, (setting,)), Term(-1.0, a), Term(1.0, b))
    grown = {"large": "larger model", "long": "longer rows"}[setting.size]
    return Test(f"({a} − {b}, {grown}) − ({a} − {b}), test loss", terms, (-INFINITE, MARGIN))


Settings = tuple[Setting, ...]


def _over_rates(metric: Metric, a: str, b: str, region: Region, how: tuple[Settings, Settings], equal: bool) -> Test:
    names = [name + ("" if all(s.clip for s in grid) else " unclipped") for name, grid in zip((a, b), how, strict=True)]
    text = f"{names[0]} − {names[1]}, {metric} over the learning rates"
    terms = Term(1.0, a, how[0]), Term(-1.0, b, how[1])
    return Test(text, terms, region, metric, (-LEEWAY, LEEWAY) if equal else None)


def as_stable(a: str, b: str) -> Test:
    """``a`` is not more sensitive to the learning rate than ``b`` by more than the leeway."""
    return _over_rates("sensitivity", a, b, (-INFINITE, LEEWAY), (GRID, GRID), equal=True)


def less_stable(a: str, b: str, how: tuple[Settings, Settings] = (GRID, GRID)) -> Test:
    """``a`` is more sensitive to the learning rate than ``b``."""
    return _over_rates("sensitivity", a, b, (0.0, INFINITE), how, equal=False)


def more_spikes_over_rates(a: str, b: str, how: tuple[Settings, Settings] = (GRID, GRID)) -> Test:
    """``a`` has at least one loss spike more than ``b`` in every second run, over all learning rates."""
    return _over_rates("spikes", a, b, (0.5, INFINITE), how, equal=False)
