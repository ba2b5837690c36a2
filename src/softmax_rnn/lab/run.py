"""One run, as its files tell: ``config.yaml`` and ``metrics.jsonl`` in its folder, or the same from packed results.

Nothing here needs torch, so committed results without checkpoints can be read anywhere. Files that contradict themselves raise
``DamagedRun``, which names the file and the line.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import nearest_name, read_json, read_yaml
from .model import label
from .options import flat
from .recorder import COPY, DamagedMetrics, read

ENDED = ("done", "diverged")  # the states of a run whose numbers are final


@dataclass(frozen=True, repr=False)
class Run:
    """One run, read from its folder or from packed files."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    damage: str | None = None
    packed_environment: dict[str, Any] | None = None

    def __repr__(self) -> str:
        losses = [
            f"{name} {self.last(name):.4g}" for name in ("test_loss", "test_accuracy") if self.last(name) is not None
        ]
        return f"<Run {self.folder}: {', '.join([self.status, f'step {self.step}', *losses])}>"

    @property
    def environment(self) -> dict[str, Any]:
        """What it ran on; nothing if that cannot be read."""
        if self.packed_environment is not None:
            return self.packed_environment
        with contextlib.suppress(OSError, UserError):
            about = read_json(self.folder / "environment.json")
            return about if isinstance(about, dict) else {}
        return {}

    @property
    def status(self) -> str:
        """``done``, ``diverged``, ``unfinished`` or ``damaged``."""
        if self.damage is not None:
            return "damaged"
        return str(self.rows[-1].get("event", "unfinished")) if self.rows else "unfinished"

    @property
    def ended(self) -> bool:
        """True if its numbers are final."""
        return self.status in ENDED

    @property
    def step(self) -> int:
        """How far it came."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def note(self) -> str | None:
        """What a table should say of it beside its numbers."""
        stopped = f"stopped at step {self.step} of {self.option('train.steps')}"
        return stopped if self.status == "unfinished" else self.damage

    def last(self, key: str) -> Any:
        """The newest value of a metric, or None."""
        return next((row[key] for row in reversed(self.rows) if row.get(key) is not None), None)

    def curve(self, metric: str) -> dict[int, tuple[int, float | None]]:
        """step -> (tokens, value)."""
        return {row["step"]: (row["tokens"], row[metric]) for row in self.rows if metric in row}

    def option(self, name: str) -> Any:
        """A value of the configuration by its dotted name, or None."""
        value: Any = self.config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def model(self) -> Any:
        """The model of the newest checkpoint."""
        from ..models import load_model

        return load_model(self.folder)

    def tokenizer(self) -> Any:
        """The tokenizer beside it."""
        from ..models import load_tokenizer

        return load_tokenizer(self.folder)

    def options(self) -> dict[str, Any]:
        """The configuration by dotted names, without where and how the work was done."""
        return flat({group: options for group, options in self.config.items() if group not in ("run", "name")})

    def columns(self) -> dict[str, Any]:
        """What tells this run from others."""
        mechanism = self.option("model.mechanism")
        return {
            "run": self.folder.name,
            "mechanism": None if mechanism is None else label(mechanism),
            "source": self.option("data.source"),
            "size": self.option("model.size"),
            "seed": self.option("seed"),
        }


def machine(environment: dict[str, Any]) -> dict[str, str]:
    """What a run ran on, as one list: versions, hardware and revision, as far as they are known."""
    known = environment.get("versions", {}) | environment.get("hardware", {}) | {"git": environment.get("git")}
    return {key: str(value) for key, value in known.items() if value}


class DamagedRun(UserError):
    """The files of a run contradict themselves or cannot be read."""


def read_run(folder: str | Path) -> Run:
    """One run; a folder without ``config.yaml`` raises ``FileNotFoundError``, files that make no sense ``DamagedRun``."""
    folder = Path(folder)
    if not os.path.lexists(folder / "config.yaml"):
        raise FileNotFoundError(f"{folder} is not a run: it has no config.yaml")
    config = _read_config(folder)
    try:
        rows = read(folder / "metrics.jsonl")
    except DamagedMetrics as error:
        raise _damaged(folder, str(error)) from None
    except OSError as error:
        raise _damaged(folder, f"metrics.jsonl cannot be read: {error.strerror}") from None
    if not rows and any(copy.stat().st_size for copy in folder.glob(f"checkpoint-*/{COPY}")):
        raise _damaged(folder, "metrics.jsonl is missing or empty, and a checkpoint has rows")
    run = Run(folder, config, rows)
    steps = config["train"]["steps"]
    if run.status == "done" and run.step != steps:
        raise _damaged(folder, f"it says done at step {run.step} of {steps}")
    if run.status == "done" and run.last("test_loss") is None:
        raise _damaged(folder, "it says done and has no test loss")
    return run


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_yaml(folder / "config.yaml")
        told = (config["train"]["steps"], config["seed"], config["model"]["mechanism"], config["data"]["source"])
    except (UserError, KeyError, TypeError):
        raise _damaged(folder, "config.yaml is not that of a run") from None
    if not isinstance(told[0], int) or not isinstance(told[1], int):
        raise _damaged(folder, "config.yaml is not that of a run")
    return dict(config)


def _damaged(folder: Path, why: str) -> DamagedRun:
    return DamagedRun(
        f"{folder} is damaged ({why}): train it again with the same command, which continues from its last checkpoint."
    )


def find_run(folder: str | Path) -> Run | None:
    """What there is in a folder: None if there is no run, and of a damaged one what is wrong with it (``damage``)."""
    try:
        return read_run(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except DamagedRun as error:
        return Run(Path(folder), damage=str(error))


def load_run(folder: str | Path) -> Run:
    """A run that is there: its configuration, metrics and checkpoints.

    >>> load_run("runs/norm-tunes-845a626a08").model()  # doctest: +SKIP
    """
    folder = Path(folder)
    try:
        return read_run(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"There is no run {folder}{nearest_name(folder)}") from None
