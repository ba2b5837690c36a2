"""What a report shows, as typed data: ``site.py`` writes the page from it, ``drawing.py`` the drawings, ``summary.json`` holds it.

A ``Report`` comes from a reproduction of the paper (``paper/summary.py``, with claims) or from any runs (``compare``, without).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..errors import is_number

if TYPE_CHECKING:
    from ..lab.run import Run

Verdict = Literal["holds", "does not hold", "inconclusive", "not testable here", "not run"]
# Every verdict, in the order in which they are counted, with a sign that does not rest on colour.
VERDICTS: dict[Verdict, str] = {
    "holds": "✓",
    "does not hold": "✗",
    "inconclusive": "?",
    "not testable here": "∅",
    "not run": "–",
}
Bound = float | None  # None is unbounded
Split = Literal["train", "test"]


@dataclass(frozen=True)
class Band:
    """A curve over the seeds: mean, lowest and highest at each x; None where one of them has no finite value."""

    x: list[float] = field(default_factory=list)
    mean: list[float | None] = field(default_factory=list)
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """True if there is nothing to draw."""
        return not any(is_number(value) for value in self.mean)

    def add(self, x: float, values: Sequence[float | None]) -> None:
        """Append what the seeds have at x: a hole if one of them has no finite value."""
        finite = [value for value in values if value is not None and math.isfinite(value)]
        whole = bool(finite) and len(finite) == len(values)
        self.x.append(x)
        self.mean.append(round(sum(finite) / len(finite), 5) if whole else None)
        self.low.append(round(min(finite), 5) if whole else None)
        self.high.append(round(max(finite), 5) if whole else None)

    @classmethod
    def over(cls, curves: Sequence[dict[int, tuple[int, float | None]]]) -> Band:
        """Of curves step -> (tokens, value), at every step that one of them has."""
        band = cls()
        for step in sorted({step for curve in curves for step in curve}):
            points = [curve[step] for curve in curves if step in curve]
            band.add(points[0][0], [value for _, value in points])
        return band


@dataclass(frozen=True)
class Spread:
    """Mean, lowest and highest of the final losses."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of no values."""
        return cls(round(sum(values) / len(values), 5), min(values), max(values)) if values else None


@dataclass(frozen=True)
class CurveView:
    """One line of a panel: what is the same in all its runs, which differ by their seed."""

    label: str
    color: str
    dash: str = "solid"
    formula: str = ""
    mechanism: str = ""
    train: Band = field(default_factory=Band)
    test: Band = field(default_factory=Band)
    seeds: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    spikes: float | None = None
    final_test: Spread | None = None

    def band(self, split: Split) -> Band:
        """Of training or test."""
        return self.train if split == "train" else self.test

    @property
    def empty(self) -> bool:
        """True if there is nothing to draw."""
        return self.train.empty and self.test.empty


@dataclass(frozen=True)
class PanelView:
    """Curves in one pair of axes."""

    title: str
    curves: list[CurveView] = field(default_factory=list)
    x_label: str = "tokens"
    x_scale: Literal["linear", "log"] = "linear"


@dataclass(frozen=True)
class FigureView:
    """Panels with a title; ``expanded`` are drawn large, with a second look at the end of training."""

    name: str
    title: str
    number: str = ""
    section: str = ""
    caption: str = ""
    command: str = ""
    expanded: bool = False
    panels: list[PanelView] = field(default_factory=list)

    @property
    def heading(self) -> str:
        """Its title, with its number where it has one."""
        return f"Figure {self.number}. {self.title}" if self.number else self.title

    @property
    def empty(self) -> bool:
        """True if no panel has anything to draw."""
        return all(curve.empty for panel in self.panels for curve in panel.curves)


@dataclass(frozen=True)
class JudgedTest:
    """A test after the runs: its interval, the region in which it holds, and whether it is also within ``equivalence``."""

    text: str
    verdict: Verdict
    region: tuple[Bound, Bound]
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "nats"
    seeds: list[int] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    note: str | None = None
    equivalence: tuple[Bound, Bound] | None = None
    equivalent: Verdict | None = None


@dataclass(frozen=True)
class ClaimView:
    """A claim with its verdict; ``ours`` are not the paper's."""

    name: str
    section: str
    sentence: str
    figure: str
    verdict: Verdict
    tests: list[JudgedTest] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    ours: bool = False

    @property
    def deciding(self) -> JudgedTest | None:
        """The test to show first: the first that came out as the claim did, since that one decided it."""
        same = [test for test in self.tests if test.verdict == self.verdict]
        return next(iter(same or self.tests), None)


@dataclass(frozen=True)
class RunView:
    """One run; ``keys`` is what tells it from the others, such as its mechanism and its seed."""

    name: str
    status: str
    keys: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    tokens: int | None = None
    test_loss: float | None = None
    train_loss: float | None = None
    test_accuracy: float | None = None  # of runs on tasks
    spikes: int | None = None
    seconds: float | None = None
    note: str | None = None

    @classmethod
    def of(cls, name: str, status: str, keys: dict[str, str], run: Run | None, note: str | None) -> RunView:
        """With the newest numbers of a run, where there is one."""
        names = ("tokens", "test_loss", "train_loss", "test_accuracy", "spikes", "seconds")
        newest: dict[str, Any] = {} if run is None else {metric: run.last(metric) for metric in names}
        return cls(name, status, keys, 0 if run is None else run.step, **newest, note=note)


@dataclass(frozen=True)
class Example:
    """One query of a trained model, with its scores of all keys so far: what the order slider takes apart."""

    model: str
    where: str
    tokens: list[str]
    query: int
    scores: list[float]
    head_dim: int
    note: str = ""


@dataclass(frozen=True)
class Bar:
    """A share of right answers, between 0 and 1, with what it is of."""

    label: str
    share: float
    note: str = ""
    strong: bool = False  # what the others are compared with


@dataclass(frozen=True)
class Report:
    """Everything that a page shows; ``scale`` is None where the runs are not a reproduction of the paper."""

    title: str = "Report"
    scale: str | None = None
    question: str = ""
    setting: str = ""
    headline: str | None = None  # the name of the figure on the first screen
    bars: list[Bar] = field(default_factory=list)  # recall, order by order: what the first screen begins with
    claims: list[ClaimView] = field(default_factory=list)
    figures: list[FigureView] = field(default_factory=list)
    example: Example | None = None
    runs: list[RunView] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    made: str = ""
    minutes: float | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How many claims have each verdict."""
        return {word: sum(claim.verdict == word for claim in self.claims) for word in VERDICTS}

    def figure(self, name: str | None) -> FigureView | None:
        """The figure of that name."""
        return next((figure for figure in self.figures if figure.name == name), None)

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        data = plain(self) | {"counts": self.counts}
        return data if self.bars else {key: value for key, value in data.items() if key != "bars"}

    def text(self) -> str:
        """The content of ``summary.json``."""
        return json.dumps(self.plain(), allow_nan=False, ensure_ascii=False) + "\n"


def finite(value: float | None) -> float | None:
    """A number with six decimals; None in place of one that JSON does not have."""
    return None if value is None or not math.isfinite(value) else round(value, 6)


def plain(view: Any) -> Any:
    """A dataclass of this file as plain data, with None in place of numbers that JSON does not have."""
    return _plain(asdict(view))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
