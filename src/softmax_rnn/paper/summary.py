"""From runs to a report: claims with their verdicts, curves, runs, the environment and the commands, as typed data."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..lab.packed import is_packed
from ..report.data import (
    Band,
    ClaimView,
    CurveView,
    Example,
    FigureView,
    JudgedTest,
    PanelView,
    Report,
    RunView,
    Spread,
)
from .catalog import of_scale
from .claims import UNITS, Claim, Judgement, Region, conclude, run_test
from .figures import Figure, Panel, color, dash, label
from .results import PlannedRun, Results
from .scales import SCALES, Scale, mechanism_of, scale

QUESTION = (
    "Softmax attention is a sum of recurrent networks, one for each term of the exponential's Taylor series, divided by a "
    "denominator. Which of its parts does a language model need? Each experiment replaces one part, trains the same small "
    "model again, and compares the losses."
)


@dataclass(frozen=True)
class Plan:
    """What a reproduction folder is about: ``plan.json``."""

    scale: Scale
    seeds: int


def read_plan(folder: Path) -> Plan:
    """``plan.json``; whatever is wrong with it is one sentence."""
    file = folder / "plan.json"
    try:
        plan = json.loads(file.read_text())
        if plan["scale"] in SCALES and isinstance(plan["seeds"], int) and plan["seeds"] > 0:
            return Plan(scale(plan["scale"]), plan["seeds"])
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no plan.json: make one with softmax-rnn reproduce quick --out {folder}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{file} is damaged: delete it and run softmax-rnn reproduce with --out {folder} again.")


def command(figure: str, chosen: Scale, out: Path, seeds: int, *more: str) -> str:
    """The command that makes a figure."""
    words = ["softmax-rnn", "reproduce", figure]
    words += [] if chosen.name == "quick" else ["--scale", chosen.name]
    words += [] if seeds == chosen.seeds else ["--seeds", str(seeds)]
    return shlex.join([*words, "--out", str(out), *more])


def summarise(folder: Path) -> Report:
    """The report on a reproduction folder, which says its scale and seeds in ``plan.json``."""
    plan = read_plan(folder)
    results = Results(plan.scale, folder, range(plan.seeds))
    figures = of_scale(plan.scale)
    claims = [_claim(claim, figure, results) for figure in figures for claim in figure.claims]
    cells = dict.fromkeys(cell for figure in figures for cell in figure.cells(plan.scale, results.seeds))
    runs = [results.planned(cell) for cell in cells]
    whole = "quick" if plan.scale.name == "quick" else "all"
    return Report(
        title="Softmax attention, taken apart",
        scale=plan.scale.name,
        question=QUESTION,
        setting=setting(plan.scale, plan.seeds),
        headline=figures[0].name,
        claims=claims,
        figures=[_figure(figure, results) for figure in figures],
        example=read_example(folder),
        runs=[_run(planned) for planned in runs],
        environment=results.environment,
        commands=[
            command(whole, plan.scale, _out(results), plan.seeds),
            f"softmax-rnn report {shlex.quote(str(folder))}",
        ],
        made=results.made,
        minutes=round(sum(p.run.last("seconds") or 0 for p in runs if p.run is not None) / 60, 1),
    )


def _out(results: Results) -> Path:
    """Where the same runs would go: packed results are kept as they are."""
    return Path("out") / results.scale.name if is_packed(results.folder) else results.folder


def setting(chosen: Scale, seeds: int) -> str:
    """One sentence about the size of it all."""
    base = chosen.recipe("base")
    rows, length, steps = base.train.batch, base.data.length, base.train.steps
    size = f"{steps:,} steps of {rows} × {length:,} tokens ({steps * rows * length / 1e6:,.2g} million)"
    return f"{chosen.about} {size}, {f'{seeds} seeds' if seeds > 1 else 'one seed'}."


def read_example(folder: Path) -> Example | None:
    """``example.json``, or None where it is not there or cannot be read."""
    try:
        return Example(**json.loads((folder / "example.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _claim(claim: Claim, figure: Figure, results: Results) -> ClaimView:
    judgements = [run_test(test, results) for test in claim.tests]
    runs = [results.planned(cell) for cell in claim.cells(results.scale, results.seeds)]
    return ClaimView(
        claim.name,
        claim.section,
        claim.sentence,
        figure.name,
        conclude(judgements),
        [_test(judgement) for judgement in judgements],
        [planned.folder.name for planned in runs if planned.ended],
        [f"{planned.cell} ({planned.note or planned.status})" for planned in runs if not planned.ended],
        claim.ours,
    )


def _test(judgement: Judgement) -> JudgedTest:
    test = judgement.test
    return JudgedTest(
        text=test.text,
        verdict=judgement.verdict,
        region=_bounds(test.region),
        mean=_number(judgement.mean),
        low=_number(judgement.low),
        high=_number(judgement.high),
        unit=UNITS[test.metric],
        seeds=list(judgement.values),
        values=[_number(value) for value in judgement.values.values()],
        note=judgement.note,
        equivalence=None if test.equivalence is None else _bounds(test.equivalence),
        equivalent=judgement.equivalent,
    )


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)


def _bounds(region: Region) -> tuple[float | None, float | None]:
    return _number(region[0]), _number(region[1])


def _figure(figure: Figure, results: Results) -> FigureView:
    return FigureView(
        name=figure.name,
        title=figure.title,
        number=figure.number,
        section=figure.section,
        caption=figure.caption,
        command=command(figure.name, results.scale, _out(results), len(results.seeds)),
        expanded=figure.expanded,
        panels=[_panel(panel, results) for panel in figure.panels(results.scale)],
    )


def _panel(panel: Panel, results: Results) -> PanelView:
    curves = [_curve(name, panel, results) for name in panel.mechanisms]
    return PanelView(panel.title, curves, "learning rate", "log") if panel.rates else PanelView(panel.title, curves)


def _curve(name: str, panel: Panel, results: Results) -> CurveView:
    runs = [results.planned(cell) for cell in panel.cells(results.seeds) if cell.mechanism == name]
    ended = [planned for planned in runs if planned.ended]
    diverged = sorted({str(p.cell.seed) for p in ended if p.status == "diverged"}) if not panel.rates else []
    finals = [value for p in ended if (value := p.final("test_loss")) is not None and math.isfinite(value)]
    return CurveView(
        label=label(name) + (f" (diverged: seed {', '.join(diverged)})" if diverged else ""),
        color=color(name),
        dash=dash(name),
        formula=str(mechanism_of(name)),
        mechanism=name,
        train=Band() if panel.rates else Band.over([p.curve("train_loss") for p in ended]),
        test=by_rate(ended) if panel.rates else Band.over([p.curve("test_loss") for p in ended]),
        seeds=sorted({p.cell.seed for p in ended}),
        missing=sorted({p.cell.seed for p in runs if not p.ended}),
        runs=[p.folder.name for p in ended],
        spikes=sum(p.final("spikes") or 0 for p in ended) / len(ended) if ended else None,
        final_test=Spread.of(finals),
    )


def by_rate(runs: Sequence[PlannedRun]) -> Band:
    """Final test losses over the seeds, at every learning rate; where a run diverged, a hole."""
    out = Band()
    for rate in sorted({planned.cell.setting.lr or 0.0 for planned in runs}):
        out.add(rate, [planned.final("test_loss") for planned in runs if planned.cell.setting.lr == rate])
    return out


def _run(planned: PlannedRun) -> RunView:
    run, cell = planned.run, planned.cell
    last = run.last if run is not None else lambda key: None
    return RunView(
        name=planned.folder.name,
        status=planned.status,
        keys={
            "mechanism": cell.mechanism,
            "corpus": cell.corpus,
            "setting": str(cell.setting),
            "seed": str(cell.seed),
        },
        steps=run.rows[-1]["step"] if run is not None and run.rows else 0,
        tokens=last("tokens"),
        test_loss=last("test_loss"),
        train_loss=last("train_loss"),
        spikes=last("spikes"),
        seconds=last("seconds"),
        note=planned.note,
    )
