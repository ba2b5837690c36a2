"""Everything that a report shows, as plain data: claims with their verdicts, curves, runs, the environment and the commands."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from .catalog import of_scale
from .claims import Claim, Outcome, conclude, run_test
from .figures import Figure, Panel, color, dash, label
from .results import Record, Results
from .scales import SCALES, Cell, Scale, scale

VERDICTS = ("holds", "does not hold", "inconclusive", "not run")
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
    row = folder / "row.json"
    return {
        "title": "Softmax attention, taken apart",
        "scale": chosen.name,
        "question": QUESTION,
        "setting": setting(chosen, len(results.seeds)),
        "headline": {"figure": figures[0].name, "caption": figures[0].caption},
        "counts": {verdict: sum(c["verdict"] == verdict for c in judged) for verdict in VERDICTS},
        "claims": judged,
        "figures": [_figure(figure, results) for figure in figures],
        "row": json.loads(row.read_text()) if row.exists() else None,
        "runs": [_run(record) for record in records],
        "environment": results.environment,
        "commands": [f"softmax-rnn reproduce all --scale {chosen.name} --out {folder}", f"softmax-rnn report {folder}"],
        "made": results.made,
        "minutes": round(sum(r.run.last("seconds") or 0 for r in records if r.run is not None) / 60, 1),
    }


def read_plan(folder: Path) -> dict[str, Any]:
    """``plan.json``; whatever is wrong with it is one sentence."""
    file = folder / "plan.json"
    try:
        plan = json.loads(file.read_text())
        if plan["scale"] in SCALES and int(plan["seeds"]) > 0:
            return dict(plan)
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no plan.json: make one with softmax-rnn reproduce quick --out {folder}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{file} is damaged: delete it and run softmax-rnn reproduce with --out {folder} again.")


def setting(chosen: Scale, seeds: int) -> str:
    """One sentence about the size of it all."""
    base = chosen.recipe("base")
    rows, length, steps = base.train.batch, base.data.length, base.train.steps
    size = f"{steps:,} steps of {rows} × {length:,} tokens ({steps * rows * length / 1e6:,.2g} million)"
    return f"{chosen.about} {size}, {f'{seeds} seeds' if seeds > 1 else 'one seed'}."


def _claim(claim: Claim, figure: Figure, results: Results) -> dict[str, Any]:
    outcomes = [run_test(test, results) for test in claim.tests]
    records = [results.record(cell) for cell in claim.cells(results.scale, results.seeds)]
    return {
        "name": claim.name,
        "section": claim.section,
        "sentence": claim.sentence,
        "figure": figure.name,
        "verdict": conclude(outcomes),
        "tests": [_test(outcome) for outcome in outcomes],
        "runs": [record.folder.name for record in records if record.ended],
        "missing": [f"{record.cell} ({record.note or record.status})" for record in records if not record.ended],
    }


def _test(outcome: Outcome) -> dict[str, Any]:
    test = outcome.test
    return {
        "text": test.text,
        "mean": _number(outcome.mean),
        "low": _number(outcome.low),
        "high": _number(outcome.high),
        "unit": test.unit,
        "region": [_number(bound) for bound in test.region],
        "seeds": list(outcome.values),
        "values": [_number(value) for value in outcome.values.values()],
        "verdict": outcome.verdict,
        "note": outcome.note,
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
        "command": f"softmax-rnn reproduce {figure.name} --scale {results.scale.name}",
        "panels": [_panel(panel, results) for panel in figure.panels(results.scale)],
    }


def _panel(panel: Panel, results: Results) -> dict[str, Any]:
    curves = [_curve(name, panel, results) for name in panel.mechanisms]
    return {"title": panel.title, "x_label": "tokens", "curves": curves}


def _curve(name: str, panel: Panel, results: Results) -> dict[str, Any]:
    from ..presets import mechanism

    records = [results.record(Cell(name, panel.corpus, panel.variant, seed)) for seed in results.seeds]
    ended = [record for record in records if record.ended]
    final = [value for record in ended if (value := record.final("test_loss")) is not None and math.isfinite(value)]
    return {
        "label": label(name),
        "mechanism": name,
        "formula": str(mechanism(name)),
        "color": color(name),
        "dash": dash(name),
        "train": band(ended, "train_loss"),
        "test": band(ended, "test_loss"),
        "seeds": [record.cell.seed for record in ended],
        "missing": [record.cell.seed for record in records if not record.ended],
        "runs": [record.folder.name for record in ended],
        "spikes": sum(record.final("spikes") or 0 for record in ended) / len(ended) if ended else None,
        "final_test": {"mean": round(sum(final) / len(final), 5), "low": min(final), "high": max(final)} if final else None,
    }  # fmt: skip


def band(records: Sequence[Record], metric: str) -> dict[str, list[Any]]:
    """Mean, lowest and highest over the seeds, at the steps that all of them have."""
    curves = [record.curve(metric) for record in records]
    steps = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    out: dict[str, list[Any]] = {"x": [], "mean": [], "low": [], "high": []}
    for step in steps:
        values = [curve[step][1] for curve in curves]
        finite = [value for value in values if value is not None and math.isfinite(value)]
        whole = len(finite) == len(values)  # one seed without a finite loss leaves a hole in the curve
        out["x"].append(curves[0][step][0])
        out["mean"].append(round(sum(finite) / len(finite), 5) if whole else None)
        out["low"].append(round(min(finite), 5) if whole else None)
        out["high"].append(round(max(finite), 5) if whole else None)
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
        "variant": cell.variant,
        "seed": cell.seed,
        "status": record.status,
        "steps": run.rows[-1]["step"] if run is not None and run.rows else 0,
        **last,
        "note": record.note,
    }  # fmt: skip
