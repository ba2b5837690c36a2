"""Reproduction folders with made-up metrics, for tests that need results but no training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from softmax_rnn.lab.config import to_yaml
from softmax_rnn.paper.scales import Cell, Scale


def write_plan(folder: Path, scale: Scale, seeds: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps({"scale": scale.name, "seeds": seeds}))


def write_run(folder: Path, scale: Scale, cell: Cell, loss: float, spikes: int = 0, event: str = "done") -> Path:
    """A run that fell to ``loss`` in a straight line."""
    config = scale.config(cell, folder / "runs")
    config.folder.mkdir(parents=True)
    (config.folder / "config.yaml").write_text(to_yaml(config))
    steps, rows = config.train.steps, []
    for step in range(config.train.log_every, steps + 1, config.train.log_every):
        row = {"step": step, "tokens": 2048 * step, "seconds": 0.1 * step}
        rows.append({**row, "train_loss": loss + 1 - step / steps, "spikes": spikes})
        if step % config.train.eval_every == 0:
            rows.append({**row, "test_loss": loss + 1 - step / steps})
    rows.append({"step": steps, "tokens": 2048 * steps, "seconds": 0.1 * steps, "event": event})
    (config.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return config.folder


def write_runs(folder: Path, scale: Scale, cells: Iterable[Cell], loss: Callable[[Cell], float]) -> None:
    cells = list(cells)
    write_plan(folder, scale, len({cell.seed for cell in cells}))
    for cell in cells:
        write_run(folder, scale, cell, loss(cell))
