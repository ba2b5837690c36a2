"""``metrics.jsonl``: one JSON object per line, written as training goes, the truth about a run.

    {"step": 40, "train_loss": 3.1, "learning_rate": 1e-3, "grad_norm": 0.8, "tokens": 163840, "spikes": 0, ...timings}
    {"step": 40, "test_loss": 3.2, "tokens": 163840, ...timings}              and "test_accuracy" where the data is a task
    {"step": 300, "event": "done", ...}          or "diverged"

``train_loss`` is the mean over the steps since the row before. Of these fields only ``TIMINGS`` differ between two
executions of the same run, however often it was killed in between: what is not yet in the file is kept in the
checkpoint, and on resuming the rows after the checkpoint are cut off.

**Damage.** A kill can cut the last line short, and nothing else: any other line that is not a row raises ``DamagedMetrics`` with its
number. Every checkpoint holds a copy of the rows up to it. A file that contradicts the copy is set aside under another name,
never written over, and the run continues from the copy.

A **loss spike** is a step whose loss exceeds the median of the last 64 steps by more than 6 robust standard deviations
(1.4826 times the median absolute deviation) and by more than 0.1, or is not finite; consecutive ones are one spike.
Counted after 16 steps.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import write_atomically

COPY = "metrics.jsonl"  # in a checkpoint
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
    bad_steps: int = 0  # consecutive ones up to now without a finite loss

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

    def resume(self, checkpoint: Path | None, warn: Callable[[str], None] = lambda text: None) -> None:
        """Go back to a checkpoint, or to the beginning: state and file. ``warn`` hears of damage."""
        if checkpoint is not None:
            self.progress = Progress(**json.loads((checkpoint / "progress.json").read_text()))
        if self.writes:
            restore(self.file, self.progress.step, checkpoint, warn)
        self.started = time.monotonic()
        self._since = (self.started, self.progress.tokens, 0.0)

    def save(self, checkpoint: Path) -> None:
        """Put the state and the rows up to here into a checkpoint that is being written; the rows are made durable first."""
        rows = b""
        if self.file.exists():
            with self.file.open("rb") as file:
                os.fsync(file.fileno())
                rows = file.read()
        state = asdict(self.progress) | {"seconds": self.seconds}
        (checkpoint / "progress.json").write_text(json.dumps(state))
        (checkpoint / COPY).write_bytes(rows)

    def add(self, steps: Sequence[tuple[float, int]]) -> None:
        """Take in steps as (loss, tokens); raises ``Diverged`` after too many consecutive ones without a finite loss."""
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

    def test_row(self, **values: float) -> dict[str, Any]:
        """Write the row of an evaluation, whose time does not count as training."""
        row = self.write(dict(values))
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


class DamagedMetrics(ValueError):
    """A line of a metrics file is not a row; the sentence names the file and the line."""


def read(file: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a last line that a kill cut short is left out. A missing file has no rows."""
    return [row for row, _ in _lines(file)]


def _lines(file: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Each row with the bytes it was read from."""
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise DamagedMetrics(f"{file.name} is not a file")
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return
    *lines, rest = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if isinstance(row, str):
            raise DamagedMetrics(f"line {number} of {file.name} {row}")
        yield row, line + b"\n"
    last = _row(rest)  # empty, unless a kill came while it was written
    if isinstance(last, dict):
        yield last, rest + b"\n"


def _row(line: bytes) -> dict[str, Any] | str:
    """The row, or what is wrong with it."""
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return "is not JSON" if line.strip() else "is empty"
    if not isinstance(row, dict) or not all(isinstance(row.get(key), int) for key in ("step", "tokens")):
        return "has no step and tokens"
    wrong = [key for key, value in row.items() if not isinstance(value, str if key == "event" else int | float | None)]
    return f"has no number for {wrong[0]}" if wrong else row


def restore(file: Path, step: int, checkpoint: Path | None, warn: Callable[[str], None]) -> None:
    """Make the file end where the checkpoint was saved, with the rows that the checkpoint holds."""
    held = _held(file, step, checkpoint)
    content = file.read_bytes() if file.exists() else b""
    if content == held:
        return
    place = _damage(file, content, held)
    if place is not None:
        aside = _free_name(file)
        if content:
            os.replace(file, aside)
        kept = f"it is now {aside.name}, and " if content else ""
        begin = f"the rows up to step {step} are those of {checkpoint.name}" if checkpoint else "the run begins again"
        warn(f"{file} is damaged ({place}): {kept}{begin}.")
    write_atomically(file, held.decode())


def _damage(file: Path, content: bytes, held: bytes) -> str | None:
    """Where a file is not what was written to it, or None."""
    if not content.startswith(held):
        return _first_difference(content, held)
    try:
        read(file)
    except DamagedMetrics as error:
        return str(error)
    return None


def _held(file: Path, step: int, checkpoint: Path | None) -> bytes:
    """The rows up to a checkpoint: its own copy, or, where an older edition saved none, the file's."""
    if checkpoint is None:
        return b""
    if (checkpoint / COPY).exists():
        return (checkpoint / COPY).read_bytes()
    try:
        return b"".join(line for row, line in _lines(file) if row["step"] <= step and "event" not in row)
    except DamagedMetrics as error:
        raise UserError(
            f"{file.parent}: {error}, and {checkpoint.name} is too old to hold a copy: restore the file from a backup, or "
            "move the folder away and begin again."
        ) from None


def _first_difference(content: bytes, held: bytes) -> str:
    """Which line of a file is not what the checkpoint says."""
    if not content:
        return "missing or empty"
    there, expected = content.splitlines(), held.splitlines()
    number = next((i for i, (a, b) in enumerate(zip(there, expected, strict=False)) if a != b), len(there))
    if number == len(there):
        return f"it ends after line {number} of {len(expected)}"
    return f"line {number + 1} is not what was written"


def _free_name(file: Path) -> Path:
    names = (file.with_name(f"damaged-{i or ''}{'-' if i else ''}{file.name}") for i in itertools.count())
    return next(name for name in names if not name.exists())
