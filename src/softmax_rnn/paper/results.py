"""What was run: the runs of a scale, found on disk by their configuration. What is missing or damaged is said, never invented."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from ..lab.store import Run, read_run
from .claims import Metric
from .scales import Cell, Scale

LAST_SHARE = 0.1  # of training, over which the final training loss is the mean


@dataclass(frozen=True)
class Record:
    """One cell as it is on disk: status ``done``, ``diverged``, ``unfinished``, ``damaged`` or ``missing``."""

    cell: Cell
    folder: Path
    status: str
    run: Run | None = None
    note: str | None = None

    @property
    def ended(self) -> bool:
        """True if its numbers are final."""
        return self.status in ("done", "diverged")

    def final(self, metric: Metric) -> float | None:
        """The final value; infinite where the run diverged; None where it has not ended."""
        if self.run is None or not self.ended:
            return None
        if metric == "spikes":
            return float(self.run.last("spikes") or 0)
        if self.status == "diverged":
            return math.inf
        if metric == "test_loss":
            return _finite(self.run.last("test_loss"))
        rows = [row for row in self.run.rows if "train_loss" in row]
        late = [row["train_loss"] for row in rows if row["step"] > (1 - LAST_SHARE) * rows[-1]["step"]]
        return None if None in late or not late else statistics.fmean(late)

    def curve(self, metric: str) -> dict[int, tuple[int, float | None]]:
        """step -> (tokens, value)."""
        rows = self.run.rows if self.run is not None else []
        return {row["step"]: (row["tokens"], row[metric]) for row in rows if metric in row}


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


class Results:
    """All runs of a scale under ``folder/runs``."""

    def __init__(self, scale: Scale, folder: Path, seeds: Sequence[int]) -> None:
        self.scale, self.folder, self.seeds = scale, folder, tuple(seeds)
        self._records: dict[Cell, Record] = {}

    def record(self, cell: Cell) -> Record:
        """What there is of a cell."""
        if cell not in self._records:
            self._records[cell] = _read(cell, self.scale.config(cell, self.folder / "runs").folder)
        return self._records[cell]

    def final(self, cell: Cell, metric: Metric) -> float | None:
        """Of a cell that has ended."""
        return self.record(cell).final(metric)

    @cached_property
    def environments(self) -> list[dict[str, Any]]:
        """What the runs that have ended say about where they ran."""
        files = [record.folder / "environment.json" for record in self._records.values() if record.ended]
        return [json.loads(file.read_text()) for file in files if file.exists()]

    @property
    def environment(self) -> dict[str, Any]:
        """Of the first run, flat."""
        for about in self.environments:
            return {**about["versions"], **{k: v for k, v in about["hardware"].items() if v}, "git": about["git"]}
        return {}

    @property
    def made(self) -> str:
        """The day on which the last run ended."""
        return max((about["sessions"][-1]["began"][:10] for about in self.environments), default="")


def _read(cell: Cell, folder: Path) -> Record:
    try:
        run = read_run(folder)
    except FileNotFoundError:
        return Record(cell, folder, "missing")
    except (OSError, ValueError, yaml.YAMLError) as error:
        return Record(cell, folder, "damaged", note=f"config.yaml cannot be read: {' '.join(str(error).split())[:120]}")
    if not isinstance(run.config, dict) or "model" not in run.config:
        return Record(cell, folder, "damaged", note="config.yaml is not that of a run")
    if any(not isinstance(row, dict) or "step" not in row or "tokens" not in row for row in run.rows):
        return Record(cell, folder, "damaged", note="metrics.jsonl has a row without step and tokens")
    steps = run.config["train"]["steps"]
    if run.status == "done" and run.rows[-1]["step"] != steps:
        return Record(cell, folder, "damaged", note=f"says done at step {run.rows[-1]['step']} of {steps}")
    if run.status == "done" and run.last("test_loss") is None:
        return Record(cell, folder, "damaged", note="has no test loss")
    reached = run.rows[-1]["step"] if run.rows else 0
    note = f"stopped at step {reached} of {steps}" if run.status == "unfinished" else None
    return Record(cell, folder, run.status, run, note)
