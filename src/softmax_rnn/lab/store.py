"""Finished and unfinished runs as tables: what ``softmax-rnn list --runs`` shows and what figures read.

Nothing here needs torch: a run's ``config.yaml`` and ``metrics.jsonl`` are enough, so committed results without
checkpoints count too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError
from .recorder import read

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same, ten times as fast, where libyaml is there

COLUMNS = ("run", "status", "mechanism", "source", "size", "seed", "step", "steps", "train_loss", "test_loss", "spikes")


@dataclass(frozen=True)
class Run:
    """One run folder, read."""

    folder: Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def status(self) -> str:
        """``done``, ``diverged``, or ``unfinished``."""
        return str(self.rows[-1].get("event", "unfinished")) if self.rows else "unfinished"

    def last(self, key: str) -> Any:
        """The newest value of a metric, or None."""
        return next((row[key] for row in reversed(self.rows) if row.get(key) is not None), None)

    def columns(self) -> dict[str, Any]:
        """What tells this run from others."""
        mechanism = self.config["model"]["mechanism"]
        return {
            "run": self.folder.name,
            "mechanism": mechanism if isinstance(mechanism, str) else "custom",
            "source": self.config["data"]["source"],
            "size": self.config["model"]["size"],
            "seed": self.config["seed"],
        }


class DamagedRun(UserError):
    """The files of a run contradict themselves or cannot be read."""


def read_run(folder: str | Path) -> Run:
    """One run; a folder without ``config.yaml`` raises ``FileNotFoundError``, files that make no sense ``DamagedRun``."""
    folder = Path(folder)
    try:
        config = yaml.load((folder / "config.yaml").read_text(), LOADER)
        steps, *_ = config["train"]["steps"], config["seed"], config["model"]["mechanism"], config["data"]["source"]
    except (ValueError, yaml.YAMLError, KeyError, TypeError):
        raise _damaged(folder, "config.yaml is not that of a run") from None
    try:
        run = Run(folder, config, read(folder / "metrics.jsonl"))
    except ValueError:
        raise _damaged(folder, "metrics.jsonl is not text") from None
    if any(not isinstance(row, dict) or "step" not in row or "tokens" not in row for row in run.rows):
        raise _damaged(folder, "metrics.jsonl has a row without step and tokens")
    if run.status == "done" and run.rows[-1]["step"] != steps:
        raise _damaged(folder, f"it says done at step {run.rows[-1]['step']} of {steps}")
    if run.status == "done" and run.last("test_loss") is None:
        raise _damaged(folder, "it says done and has no test loss")
    return run


def _damaged(folder: Path, why: str) -> DamagedRun:
    return DamagedRun(f"{folder} is damaged ({why}): delete the folder, then run the same command.")


def find_runs(root: str | Path) -> list[Run]:
    """All runs in a folder, up to two levels down, by name."""
    root = Path(root)
    found = [root, *root.glob("*"), *root.glob("*/*")]
    return [
        read_run(p) for p in sorted(found) if (p / "config.yaml").is_file() and not p.name.startswith("checkpoint-")
    ]


def runs_table(root: str | Path) -> list[dict[str, Any]]:
    """One row per run, with the keys of ``COLUMNS`` and ``tokens``, ``seconds``, ``folder``; an empty list if there
    are none.
    """
    return [
        run.columns()
        | {"status": run.status, "steps": run.config["train"]["steps"], "folder": str(run.folder)}
        | {"step": run.rows[-1]["step"] if run.rows else 0}
        | {key: run.last(key) for key in ("train_loss", "test_loss", "spikes", "tokens", "seconds")}
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
