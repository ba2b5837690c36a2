"""From runs to a page: claims with their verdicts, curves, runs, the environment and the commands as typed data (``summarise``), and
the report that is drawn and written from it (``build``)."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError
from ..files import write_atomically
from ..lab.store import is_packed
from ..report.data import (
    Band,
    Bar,
    ClaimView,
    CurveView,
    FigureView,
    JudgedTest,
    PanelView,
    Report,
    RunView,
    Spread,
    finite,
)
from .claims import UNITS, Claim, Figure, Judgement, Panel, conclude, run_test
from .figures import FAMILIES, of_scale
from .intervals import Region
from .results import PlannedRun, Results, command, read_example, read_plan, write_example
from .scales import Scale, mechanism_of

QUESTION = (
    "Softmax attention is a sum of recurrent networks, one for each term of the exponential's Taylor series, divided by a "
    "denominator. Which of its parts does a language model need? Each experiment replaces one part, trains the same small "
    "model again, and compares the losses."
)
# One colour and label for a mechanism wherever it appears.
LOOK = {
    "softmax": ("softmax", "#1b1b1b"),
    "norm": ("norm (L2)", "#d1495b"),
    "gate": ("gate", "#2a78c2"),
    "linear_elu": ("linear, elu + 1", "#2e8b57"),
    "linear_relu": ("linear, ReLU", "#c8860d"),
    "linear_cosine": ("linear, cosine", "#8a4fbf"),
    "undivided": ("no denominator", "#8c8c8c"),
    "length": ("÷ length", "#2e8b57"),
    "clamp_sum": ("sum, at least 1", "#5d7f9e"),
    "detach_sum": ("sum, detached", "#c8860d"),
    "detach_sum_gate": ("sum, detached, with gate", "#8a4fbf"),
    "in_gate": ("input gate ÷ length", "#c8860d"),
    "in_out_gate": ("both gates ÷ length", "#8a4fbf"),
    "gate_nolength": ("gate, not ÷ length", "#2e8b57"),
    "relu_gate": ("ReLU kernel, gate ÷ length", "#8c8c8c"),
    "rms": ("RMS norm", "#8a4fbf"),
    "layer": ("layer norm", "#c8860d"),
    "norm_length": ("L2 norm ÷ length", "#e39aa4"),
    "rms_length": ("RMS norm ÷ length", "#c3a3e0"),
    "layer_length": ("layer norm ÷ length", "#e3bf7a"),
    "relu_norm": ("ReLU kernel, L2 norm", "#8c8c8c"),
    "norm_clamp": ("L2 norm, clamped", "#d1495b"),
    "norm_small": ("L2 norm ÷ √d", "#e377c2"),
    "norm_gated": ("L2 norm, gated heads", "#d1495b"),
    "softmax_gated": ("softmax, gated heads", "#1b1b1b"),
    "norm_large": ("L2 norm × √d", "#2a78c2"),
    "norm_large_clamp": ("L2 norm × √d, clamped", "#2a78c2"),
    "rms_small": ("RMS norm, weight 1/√d", "#1b9e9e"),
    "layer_small": ("layer norm, weight 1/√d", "#2e8b57"),
    "rms_free": ("RMS norm, no clamp", "#8a4fbf"),
    "layer_free": ("layer norm, no clamp", "#c8860d"),
    "rms_small_free": ("RMS norm, weight 1/√d, no clamp", "#1b9e9e"),
    "layer_small_free": ("layer norm, weight 1/√d, no clamp", "#2e8b57"),
    "gate_free": ("gate, no clamp", "#1b9e9e"),
    "length_free": ("÷ length, no clamp", "#2e8b57"),
}
ORDERS = {0: "#c6dbef", 1: "#9ecae1", 2: "#6baed6", 4: "#3182bd", 10: "#08519c"}  # the darker, the more orders


def build(folder: Path, site: Path | None = None, *, update: bool = False) -> int:
    """The report on a reproduction: its page in ``site``, with verdicts printed.

    ``example.json``, ``summary.json`` and ``figures`` go to the folder itself, unless its results are packed and ``update`` is False.
    """
    from ..report.site import write_site

    read_plan(folder)
    site = site or _beside(folder)
    home = site if is_packed(folder) and not update else folder
    try:
        if home is folder:
            write_example(folder)
        report = summarise(folder)
        draw_all(report, home)
        index = write_site(report, home / "figures", site)
    except OSError as error:
        raise UserError(f"Cannot write to {site} ({error.strerror}): make room, or check its permissions.") from None
    _print(report)
    print(f"\nThe report: {index}")
    return 0


def _beside(folder: Path) -> Path:
    """Packed results are kept as they are: their page goes to out/."""
    return Path("out") / f"{folder.resolve().name}-report" if is_packed(folder) else folder / "report"


def draw_all(report: Report, folder: Path) -> None:
    """``summary.json`` and the static drawings."""
    from ..report.drawing import draw, draw_headline

    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "summary.json", report.text())
    draw(report.figures, folder / "figures")
    draw_headline(report, FAMILIES, folder / "figures")


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    from ..tasks.findings import picture

    if report.bars:
        print("\nEight pairs of a key and a value, read once: which value came with a key?\n")
        print("\n".join(picture(report.bars)) + "\n")
    styles = {"holds": "green", "does not hold": "red", "inconclusive": "yellow"}
    table = Table("section", "claim", "verdict", title=report.setting, title_justify="left")
    for claim in report.claims:
        table.add_row(claim.section, claim.sentence, f"[{styles.get(claim.verdict, 'dim')}]{claim.verdict}")
    Console(file=sys.stdout).print(table)
    missing = sum(run.status in ("missing", "unfinished", "damaged") for run in report.runs)
    if missing:
        print(f"{missing} of {len(report.runs)} runs are missing; the report says which.")


def summarise(folder: Path) -> Report:
    """The report on a reproduction folder, which says its scale and seeds in ``plan.json``."""
    plan = read_plan(folder)
    results = Results(plan.scale, folder, range(plan.seeds))
    figures = of_scale(plan.scale)
    stated = [(claim, figure) for figure in figures for claim in figure.claims]
    claims = [_claim(claim, figure, results.over(plan.seeds_of(figure.name, claim.name))) for claim, figure in stated]
    cells = [cell for figure in figures for cell in figure.cells(plan.scale, plan.seeds_of(figure.name))]
    cells += [cell for claim, _ in stated for cell in claim.cells(plan.scale, plan.seeds_of(claim.name))]
    runs = [results.planned(cell) for cell in dict.fromkeys(cells)]
    whole = "quick" if plan.scale.name == "quick" else "all"
    return Report(
        title="Softmax attention, taken apart",
        scale=plan.scale.name,
        question=QUESTION,
        setting=setting(plan.scale, plan.seeds),
        headline=figures[0].name,
        bars=_recalled(folder) if plan.scale.name == "quick" else [],
        claims=claims,
        figures=[_figure(figure, results.over(plan.seeds_of(figure.name))) for figure in figures],
        example=read_example(folder),
        runs=[_run(planned) for planned in runs],
        environment=results.environment,
        commands=[
            command(whole, plan.scale, _out(results), plan.seeds),
            *(command(name, plan.scale, _out(results), seeds) for name, seeds in plan.more.items()),
            f"softmax-rnn report {shlex.quote(str(folder))}",
        ],
        made=results.last_day,
        minutes=round(sum(p.run.last("seconds") or 0 for p in runs if p.run is not None) / 60, 1),
    )


def _recalled(folder: Path) -> list[Bar]:
    """Recall, order by order, as far as it was run."""
    from ..tasks.findings import bars
    from ..tasks.recall import collect, first

    cells, setting = first(folder)
    return bars([found for cell in cells if (found := collect(cell, setting)) is not None])


def _out(results: Results) -> Path:
    """Where the same runs would go: packed results are kept as they are."""
    return Path("out") / results.scale.name if is_packed(results.folder) else results.folder


def setting(chosen: Scale, seeds: int) -> str:
    """One sentence about the size of it all."""
    base = chosen.recipe("base")
    rows, length, steps = base.train.batch, base.data.length, base.train.steps
    size = f"{steps:,} steps of {rows} × {length:,} tokens ({steps * rows * length / 1e6:,.2g} million)"
    return f"{chosen.about} {size}, {f'{seeds} seeds' if seeds > 1 else 'one seed'}."


def _claim(claim: Claim, figure: Figure, results: Results) -> ClaimView:
    judgements = [run_test(test, results) for test in claim.tests]
    runs = [results.planned(cell) for cell in claim.cells(results.scale, results.seeds)]
    return ClaimView(
        claim.name,
        claim.section,
        claim.sentence,
        figure.name,
        conclude(judgements),
        [judged(judgement) for judgement in judgements],
        [planned.folder.name for planned in runs if planned.ended],
        [f"{planned.cell} ({planned.note or planned.status})" for planned in runs if not planned.ended],
        claim.ours,
    )


def judged(judgement: Judgement) -> JudgedTest:
    """A test after the runs, as a page shows it."""
    test = judgement.test
    return JudgedTest(
        text=test.text,
        verdict=judgement.verdict,
        region=_bounds(test.region),
        mean=finite(judgement.mean),
        low=finite(judgement.low),
        high=finite(judgement.high),
        unit=UNITS[test.metric],
        seeds=list(judgement.values),
        values=[finite(value) for value in judgement.values.values()],
        note=judgement.note,
        equivalence=None if test.equivalence is None else _bounds(test.equivalence),
        equivalent=judgement.equivalent,
    )


def _bounds(region: Region) -> tuple[float | None, float | None]:
    return finite(region[0]), finite(region[1])


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
    cell = planned.cell
    keys = {"mechanism": cell.mechanism, "corpus": cell.corpus, "setting": str(cell.setting), "seed": str(cell.seed)}
    return RunView.of(planned.folder.name, planned.status, keys, planned.run, planned.note)


# How a mechanism looks on figures.


def label(mechanism: str) -> str:
    """What a mechanism is called on figures."""
    if mechanism in LOOK:
        return LOOK[mechanism][0]
    name, _, norm = mechanism.partition("_")
    order = name.lstrip("abcdefghijklmnopqrstuvwxyz")
    return f"order {order}, {'L2 norm' if norm else 'sum'}" if order else mechanism


def color(mechanism: str) -> str:
    """The line's colour."""
    if mechanism in LOOK:
        return LOOK[mechanism][1]
    order = mechanism.partition("_")[0].lstrip("abcdefghijklmnopqrstuvwxyz")
    return ORDERS.get(int(order or 0), "#6baed6")


def dash(mechanism: str) -> str:
    """Dashed where the denominator is a sum and a norm's line is in the same panel."""
    return "dash" if mechanism not in LOOK and not mechanism.endswith("_norm") else "solid"
