"""``metrics.jsonl``: one JSON object per line, written as training goes, the truth about a run.

    {"step": 40, "train_loss": 3.1, "learning_rate": 1e-3, "grad_norm": 0.8, "tokens": 163840, "spikes": 0, ...timings}
    {"step": 40, "test_loss": 3.2, "tokens": 163840, ...timings}
    {"step": 300, "event": "done", ...}          or "diverged"

``train_loss`` is the mean over the steps since the row before. Of these fields only ``TIMINGS`` differ between two
executions of the same run, however often it was killed in between: what is not yet in the file is kept in the
checkpoint, and on resuming the rows after the checkpoint are cut off.

A **loss spike** is a step whose loss exceeds the median of the last 64 steps by more than 6 robust standard deviations
(1.4826 times the median absolute deviation) and by more than 0.1, or is not finite; steps in a row are one spike.
Counted after 16 steps.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

TIMINGS = ("seconds", "tokens_per_second", "data_share")
WINDOW, WARM, ROBUST_SIGMAS, MINIMUM = 64, 16, 6.0, 0.1


class Diverged(Exception):
    """The loss has not been finite for too long."""


@dataclass
class Progress:
    """All that a checkpoint must remember for the rows after it to come out the same."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)  # since the last row
    window: list[float] = field(default_factory=list)  # the last finite ones, for spikes
    spikes: int = 0
    in_spike: bool = False
    bad_steps: int = 0  # in a row, up to now, without a finite loss

    def add(self, loss: float, tokens: int) -> None:
        """Take in one step."""
        self.step += 1
        self.tokens += tokens
        self.losses.append(loss)
        self.bad_steps = 0 if math.isfinite(loss) else self.bad_steps + 1
        spiking = is_spike(loss, self.window)
        self.spikes += spiking and not self.in_spike
        self.in_spike = spiking
        if math.isfinite(loss):
            self.window = [*self.window[1 - WINDOW :], loss]


def is_spike(loss: float, window: Sequence[float]) -> bool:
    """Whether a loss stands out from those before it.

    >>> is_spike(4.0, [3.0, 3.1] * 16), is_spike(3.2, [3.0, 3.1] * 16)
    (True, False)
    """
    if not math.isfinite(loss):
        return True
    if len(window) < WARM:
        return False
    median = statistics.median(window)
    deviation = 1.4826 * statistics.median(abs(x - median) for x in window)
    return loss > median + max(ROBUST_SIGMAS * deviation, MINIMUM)


class Recorder:
    """Gathers steps, writes rows. In a distributed run every process gathers and the first one writes."""

    def __init__(self, file: Path, patience: int, writes: bool = True) -> None:
        self.file, self.patience, self.writes = file, patience, writes
        self.progress = Progress()
        self.started = time.monotonic()
        self.waited = 0.0  # seconds in this session in which training waited for data
        self._since = (self.started, 0, 0.0)

    def resume(self, checkpoint: Path | None) -> None:
        """Go back to a checkpoint, or to the beginning: state and file."""
        if checkpoint is not None:
            self.progress = Progress(**json.loads((checkpoint / "progress.json").read_text()))
        if self.writes:
            truncate(self.file, self.progress.step)
        self.started = time.monotonic()
        self._since = (self.started, self.progress.tokens, 0.0)

    def save(self, checkpoint: Path) -> None:
        """Put the state into a checkpoint that is being written; the rows up to it are made durable first."""
        if self.file.exists():
            with self.file.open("rb") as file:
                os.fsync(file.fileno())
        state = asdict(self.progress) | {"seconds": self.seconds}
        (checkpoint / "progress.json").write_text(json.dumps(state))

    def add(self, steps: Sequence[tuple[float, int]]) -> None:
        """Take in steps as (loss, tokens); raises ``Diverged`` after too many in a row without a finite loss."""
        for loss, tokens in steps:
            self.progress.add(loss, tokens)
            if self.progress.bad_steps >= self.patience:
                raise Diverged

    def train_row(self, **values: float) -> dict[str, Any]:
        """Write the row of the steps since the last one."""
        p = self.progress
        row = {"train_loss": statistics.fmean(p.losses) if p.losses else math.nan, **values, "spikes": p.spikes}
        p.losses = []
        now, (then, tokens, waited) = time.monotonic(), self._since
        self._since = (now, p.tokens, self.waited)
        spent = max(now - then, 1e-9)
        timings = {"tokens_per_second": (p.tokens - tokens) / spent, "data_share": (self.waited - waited) / spent}
        return self.write(row | timings)

    def test_row(self, loss: float) -> dict[str, Any]:
        """Write the row of an evaluation, whose time does not count as training."""
        row = self.write({"test_loss": loss})
        self._since = (time.monotonic(), self.progress.tokens, self.waited)
        return row

    @property
    def seconds(self) -> float:
        """Since the beginning of the run, over all its sessions."""
        return self.progress.seconds + time.monotonic() - self.started

    def write(self, row: dict[str, Any]) -> dict[str, Any]:
        """Append one row; numbers that are not finite become null."""
        row = {"step": self.progress.step, **row, "tokens": self.progress.tokens, "seconds": round(self.seconds, 3)}
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        if self.writes:
            with self.file.open("a") as file:
                file.write(json.dumps(clean) + "\n")
        return clean


def read(file: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a last line that a kill cut short is left out."""
    rows = []
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def truncate(file: Path, step: int) -> None:
    """Keep the rows up to a step, and drop what was said about the end."""
    rows = [row for row in read(file) if row["step"] <= step and "event" not in row]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if file.exists() and file.read_text() != text:
        from .checkpoint import write_atomically

        write_atomically(file, text)
