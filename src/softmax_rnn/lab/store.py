"""Finished and unfinished runs as tables: what ``softmax-rnn list --runs`` shows and what figures read.

Nothing here needs torch: a run's ``config.yaml`` and ``metrics.jsonl`` are enough, so committed results without checkpoints count
too. A damaged run is one of the table, with the file and the line that are damaged; it never hides the others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import read_json, read_yaml
from .model import label
from .recorder import DamagedMetrics, read

DEPTH = 4  # how many folders down runs are looked for


@dataclass(frozen=True)
class Run:
    """One run, read from its folder or from packed files."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    damage: str | None = None
    packed_environment: dict[str, Any] | None = None

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
    def step(self) -> int:
        """How far it came."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def last(self, key: str) -> Any:
        """The newest value of a metric, or None."""
        return next((row[key] for row in reversed(self.rows) if row.get(key) is not None), None)

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


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Groups of options as ``group.option``; a mapping inside an option stays whole.

    >>> flat({"seed": 1, "model": {"overrides": {"hidden_size": 64}}})
    {'seed': 1, 'model.overrides': {'hidden_size': 64}}
    """
    out: dict[str, Any] = {}
    for key, value in config.items():
        out |= {f"{key}.{option}": v for option, v in value.items()} if isinstance(value, dict) else {key: value}
    return out


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


def find_runs(root: str | Path) -> list[Run]:
    """All runs in a folder, packed or in folders, by name; a damaged one is among them and says what is wrong with it."""
    from .packed import is_packed, read_packed

    packed = read_packed(Path(root)) if is_packed(Path(root)) else []
    found = [_read_or_damaged(folder) for folder in sorted(_folders(Path(root), DEPTH))]
    return packed + [run for run in found if run is not None]


def _read_or_damaged(folder: Path) -> Run | None:
    """None if there is no more than a ``config.yaml`` of somebody else."""
    try:
        return read_run(folder)
    except (DamagedRun, FileNotFoundError) as error:
        ours = any((folder / name).exists() for name in ("metrics.jsonl", "environment.json"))
        return Run(folder, damage=str(error)) if ours else None


def _folders(root: Path, depth: int) -> Iterator[Path]:
    """Run folders below ``root``: not inside of other runs, checkpoints, hidden folders or other disks."""
    try:
        entries = list(os.scandir(root))
        device = os.stat(root).st_dev
    except OSError:
        return
    if any(entry.name == "config.yaml" for entry in entries):
        yield root
        return
    for entry in entries if depth else []:
        try:
            is_place = entry.is_dir(follow_symlinks=depth == DEPTH) and not entry.name.startswith(".")
            if is_place and entry.stat().st_dev == device:
                yield from _folders(Path(entry.path), depth - 1)
        except OSError:
            continue


def runs_table(root: str | Path) -> list[dict[str, Any]]:
    """One row per run: run, status, mechanism, source, size, seed, step, steps, the newest train_loss, test_loss, test_accuracy and
    spikes, tokens, seconds, folder, and for a damaged run a note; an empty list if there are none.
    """
    return [
        run.columns()
        | {"status": run.status, "step": run.step, "steps": run.option("train.steps")}
        | {key: run.last(key) for key in ("train_loss", "test_loss", "test_accuracy", "spikes", "tokens", "seconds")}
        | {"folder": str(run.folder), "note": run.damage, "options": run.options()}
        for run in find_runs(root)
    ]


def tidy(root: str | Path) -> list[dict[str, Any]]:
    """One row per run, step and metric: columns run, mechanism, source, size, seed, step, tokens, metric, value.

    >>> curve = [r for r in tidy("runs") if r["metric"] == "test_loss" and r["mechanism"] == "norm"]
    """
    leave_out = {"step", "tokens", "event"}
    return [
        run.columns() | {"step": row["step"], "tokens": row["tokens"], "metric": metric, "value": value}
        for run in find_runs(root)
        for row in run.rows
        for metric, value in row.items()
        if metric not in leave_out
    ]
