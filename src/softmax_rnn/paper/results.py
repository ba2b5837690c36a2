"""What was run: the runs of a scale, found on disk by their configuration. What is missing or damaged is said, never invented."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ..lab.store import DamagedRun, Run, read_run
from .scales import Cell, Scale

Metric = Literal["test_loss", "spikes"]


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
        diverged = self.status == "diverged"
        if metric == "spikes":  # the last one, from which a run did not recover, comes after its last row
            return float(self.run.last("spikes") or 0) + diverged
        return math.inf if diverged else float(self.run.last("test_loss"))

    def curve(self, metric: str) -> dict[int, tuple[int, float | None]]:
        """step -> (tokens, value)."""
        rows = self.run.rows if self.run is not None else []
        return {row["step"]: (row["tokens"], row[metric]) for row in rows if metric in row}


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
        """What the runs that have ended say about where they ran; a file that cannot be read says nothing."""
        found = []
        for record in self._records.values():
            with contextlib.suppress(OSError, ValueError):
                about = json.loads((record.folder / "environment.json").read_text())
                if record.ended and {"versions", "hardware", "git", "sessions"} <= set(about):
                    found.append(about)
        return found

    @property
    def environment(self) -> dict[str, Any]:
        """Of the first run, flat, with the revisions of all."""
        for about in self.environments:
            revisions = sorted({str(other["git"])[:10] for other in self.environments})
            return {
                **about["versions"],
                **{k: v for k, v in about["hardware"].items() if v},
                "git": ", ".join(revisions),
            }
        return {}

    @property
    def made(self) -> str:
        """The day on which the last run began."""
        return max((about["sessions"][-1]["began"][:10] for about in self.environments), default="")


def _read(cell: Cell, folder: Path) -> Record:
    try:
        run = read_run(folder)
    except FileNotFoundError:
        return Record(cell, folder, "missing")
    except DamagedRun as error:
        return Record(cell, folder, "damaged", note=str(error))
    reached, steps = run.rows[-1]["step"] if run.rows else 0, run.config["train"]["steps"]
    note = f"stopped at step {reached} of {steps}" if run.status == "unfinished" else None
    return Record(cell, folder, run.status, run, note)
