"""Everything that a report shows, as plain data: claims with their verdicts, curves, runs, the environment and the commands."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from .catalog import of_scale
from .claims import UNITS, Claim, Judgement, conclude, run_test
from .estimate import reproduce
from .figures import Figure, Panel, color, dash, label
from .results import Record, Results
from .scales import SCALES, Scale, mechanism_of, scale

VERDICTS = ("holds", "does not hold", "inconclusive", "not testable here", "not run")
QUESTION = (
    "Softmax attention is a sum of recurrent networks, one for each term of the exponential's Taylor series, divided by a "
    "denominator. Which of its parts does a language model need? Each experiment replaces one part, trains the same small "
    "model again, and compares the losses."
)


def summarise(folder: Path) -> dict[str, Any]:
    """The summary of a reproduction folder, which says its scale and seeds in ``plan.json``."""
    plan = read_plan(folder)
    chosen = scale(plan["scale"])
    results = Results(chosen, folder, range(plan["seeds"]))
    figures = of_scale(chosen)
    claims = [(claim, figure) for figure in figures for claim in figure.claims]
    judged = [_claim(claim, figure, results) for claim, figure in claims]
    cells = list(dict.fromkeys(cell for figure in figures for cell in figure.cells(chosen, results.seeds)))
    records = [results.record(cell) for cell in cells]
    return {
        "title": "Softmax attention, taken apart",
        "scale": chosen.name,
        "question": QUESTION,
        "setting": setting(chosen, len(results.seeds)),
        "headline": {"figure": figures[0].name, "caption": figures[0].caption},
        "counts": {verdict: sum(c["verdict"] == verdict for c in judged) for verdict in VERDICTS},
        "claims": judged,
        "figures": [_figure(figure, results) for figure in figures],
        "row": read_row(folder),
        "runs": [_run(record) for record in records],
        "environment": results.environment,
        "commands": [_command(_whole(chosen), results), f"softmax-rnn report {shlex.quote(str(folder))}"],
        "made": results.made,
        "minutes": round(sum(r.run.last("seconds") or 0 for r in records if r.run is not None) / 60, 1),
    }


def read_plan(folder: Path) -> dict[str, Any]:
    """``plan.json``; whatever is wrong with it is one sentence."""
    file = folder / "plan.json"
    try:
        plan = json.loads(file.read_text())
        if plan["scale"] in SCALES and isinstance(plan["seeds"], int) and plan["seeds"] > 0:
            return dict(plan)
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no plan.json: make one with softmax-rnn reproduce quick --out {folder}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{file} is damaged: delete it and run softmax-rnn reproduce with --out {folder} again.")


def read_row(folder: Path) -> dict[str, Any] | None:
    """``row.json``, or None where it is not there or cannot be read."""
    try:
        row = json.loads((folder / "row.json").read_text())
        return row if isinstance(row, dict) and {"model", "tokens", "scores", "query"} <= set(row) else None
    except (OSError, ValueError):
        return None


def setting(chosen: Scale, seeds: int) -> str:
    """One sentence about the size of it all."""
    base = chosen.recipe("base")
    rows, length, steps = base.train.batch, base.data.length, base.train.steps
    size = f"{steps:,} steps of {rows} × {length:,} tokens ({steps * rows * length / 1e6:,.2g} million)"
    return f"{chosen.about} {size}, {f'{seeds} seeds' if seeds > 1 else 'one seed'}."


def _claim(claim: Claim, figure: Figure, results: Results) -> dict[str, Any]:
    judgements = [run_test(test, results) for test in claim.tests]
    records = [results.record(cell) for cell in claim.cells(results.scale, results.seeds)]
    return {
        "name": claim.name,
        "section": claim.section,
        "sentence": claim.sentence,
        "figure": figure.name,
        "ours": claim.ours,
        "verdict": conclude(judgements),
        "tests": [_test(judgement) for judgement in judgements],
        "runs": [record.folder.name for record in records if record.ended],
        "missing": [f"{record.cell} ({record.note or record.status})" for record in records if not record.ended],
    }


def _test(judgement: Judgement) -> dict[str, Any]:
    test = judgement.test
    return {
        "text": test.text,
        "mean": _number(judgement.mean),
        "low": _number(judgement.low),
        "high": _number(judgement.high),
        "unit": UNITS[test.metric],
        "region": [_number(bound) for bound in test.region],
        "seeds": list(judgement.values),
        "values": [_number(value) for value in judgement.values.values()],
        "verdict": judgement.verdict,
        "note": judgement.note,
        "equivalence": None if test.equivalence is None else list(test.equivalence),
        "equivalent": judgement.equivalent,
    }


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)


def _figure(figure: Figure, results: Results) -> dict[str, Any]:
    return {
        "name": figure.name,
        "number": figure.number,
        "title": figure.title,
        "section": figure.section,
        "caption": figure.caption,
        "command": _command(figure.name, results),
        "expanded": figure.expanded,
        "panels": [_panel(panel, results) for panel in figure.panels(results.scale)],
    }


def _whole(chosen: Scale) -> str:
    return "quick" if chosen.name == "quick" else "all"


def _command(figure: str, results: Results) -> str:
    return reproduce(figure, results.scale, results.folder, len(results.seeds))


def _panel(panel: Panel, results: Results) -> dict[str, Any]:
    curves = [_curve(name, panel, results) for name in panel.mechanisms]
    return {
        "title": panel.title,
        "x_label": "tokens" if len(panel.settings) == 1 else "learning rate",
        "curves": curves,
    }


def _curve(name: str, panel: Panel, results: Results) -> dict[str, Any]:
    cells = [cell for cell in panel.cells(results.seeds) if cell.mechanism == name]
    records = [results.record(cell) for cell in cells]
    ended = [record for record in records if record.ended]
    diverged = sorted({str(record.cell.seed) for record in ended if record.status == "diverged"})
    final = [value for record in ended if (value := record.final("test_loss")) is not None and math.isfinite(value)]
    return {
        "label": label(name) + (f" (diverged: seed {', '.join(diverged)})" if diverged else ""),
        "mechanism": name,
        "formula": str(mechanism_of(name)),
        "color": color(name),
        "dash": dash(name),
        "train": band(ended, "train_loss") if len(panel.settings) == 1 else by_rate(ended, "train_loss"),
        "test": band(ended, "test_loss") if len(panel.settings) == 1 else by_rate(ended, "test_loss"),
        "seeds": sorted({record.cell.seed for record in ended}),
        "missing": sorted({record.cell.seed for record in records if not record.ended}),
        "runs": [record.folder.name for record in ended],
        "spikes": sum(record.final("spikes") or 0 for record in ended) / len(ended) if ended else None,
        "final_test": {"mean": round(sum(final) / len(final), 5), "low": min(final), "high": max(final)} if final else None,
    }  # fmt: skip


def band(records: Sequence[Record], metric: str) -> dict[str, list[Any]]:
    """Mean, lowest and highest over the seeds, at every step that one of them has; one that has diverged is no longer in it."""
    curves = [record.curve(metric) for record in records]
    out: dict[str, list[Any]] = {"x": [], "mean": [], "low": [], "high": []}
    for step in sorted({step for curve in curves for step in curve}):
        points = [curve[step] for curve in curves if step in curve]
        finite = [value for _, value in points if value is not None and math.isfinite(value)]
        whole = len(finite) == len(points)  # one seed without a finite loss leaves a hole in the curve
        out["x"].append(points[0][0])
        out["mean"].append(round(sum(finite) / len(finite), 5) if whole else None)
        out["low"].append(round(min(finite), 5) if whole else None)
        out["high"].append(round(max(finite), 5) if whole else None)
    return out


def by_rate(records: Sequence[Record], metric: str) -> dict[str, list[Any]]:
    """Mean, lowest and highest final value over the seeds at every learning rate; a diverged run leaves a hole."""
    out: dict[str, list[Any]] = {"x": [], "mean": [], "low": [], "high": []}
    for rate in sorted({record.cell.setting.lr or 0.0 for record in records}):
        at = [record for record in records if record.cell.setting.lr == rate]
        values = [record.run.last(metric) for record in at if record.run is not None and record.status == "done"]
        whole = len(values) == len(at)
        out["x"].append(rate)
        out["mean"].append(round(sum(values) / len(values), 5) if whole else None)
        out["low"].append(round(min(values), 5) if whole else None)
        out["high"].append(round(max(values), 5) if whole else None)
    return out


def _run(record: Record) -> dict[str, Any]:
    run, cell = record.run, record.cell
    last = {
        key: run.last(key) if run is not None else None
        for key in ("tokens", "train_loss", "test_loss", "spikes", "seconds")
    }
    return {
        "name": record.folder.name,
        "mechanism": cell.mechanism,
        "corpus": cell.corpus,
        "setting": str(cell.setting),
        "seed": cell.seed,
        "status": record.status,
        "steps": run.rows[-1]["step"] if run is not None and run.rows else 0,
        **last,
        "note": record.note,
    }  # fmt: skip
