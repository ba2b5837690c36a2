"""The lab from Python: in a script or a notebook, the same runs as on the command line.

>>> from softmax_rnn.lab import configure
>>> configure("tiny", mechanism="norm", steps=100, data={"source": "sotu"}).train.steps
100

A configuration begins with a preset (or is a ``RunConfig``) and is changed by keyword: an option by its own name where only one option
has it (``steps=100``), else in its group (``data={"source": "my.txt"}``) or dotted (``**{"data.source": "my.txt"}``).
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import nearest_name
from .config import RunConfig, from_dict
from .options import all_options
from .store import Run, read_run


def configure(base: str | RunConfig = "laptop", **options: Any) -> RunConfig:
    """A configuration: a preset's, or another one's, with some options changed; all are checked."""
    changes = {_full_name(name): value for name, value in options.items()}
    if isinstance(base, RunConfig):
        return from_dict({**asdict(base), **_merged(asdict(base), changes)})
    return from_dict(changes, base)


def _merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    from .options import merge

    merge(values, changes)
    return values


def _full_name(name: str) -> str:
    """``steps`` is ``train.steps``, because no other group has steps."""
    known = [option for option, _, _ in all_options(RunConfig)]
    groups = {option.partition(".")[0] for option in known if "." in option}
    if name in known or name.partition(".")[0] in groups:
        return name
    found = [option for option in known if option.rpartition(".")[2] == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{name} may mean {' or '.join(found)}: give the one you mean, as in **{{{found[0]!r}: ...}}.")
    near = difflib.get_close_matches(name, [option.rpartition(".")[2] for option in known], n=1)
    raise UserError(f"There is no option {name!r}{f': did you mean {near[0]}?' if near else '.'}")


def train(base: str | RunConfig = "laptop", *, quiet: bool = False, **options: Any) -> Run:
    """Begin or continue a run, with a progress bar unless ``quiet``; returns it with its metrics, whether or not it came to its end.

    Interrupting the kernel saves, and the same call continues.

    >>> run = train("tiny", mechanism="norm")  # doctest: +SKIP
    >>> run.status, run.last("test_loss")  # doctest: +SKIP
    ('done', 5.21)
    """
    from .train import train as session

    outcome = session(configure(base, **options), quiet=quiet)
    if outcome.ending == "failed":
        raise UserError(outcome.message)
    return read_run(outcome.folder) if (outcome.folder / "config.yaml").exists() else Run(outcome.folder)


def sweep(grid: Mapping[str, Sequence[Any]], *, preset: str = "laptop", jobs: int = 1, **options: Any) -> list[Run]:
    """Every combination of the values in ``grid``, each run in a process of its own; what is done already is not done again.

    >>> runs = sweep({"mechanism": ["softmax", "norm"], "seed": [0, 1]}, preset="tiny", jobs=2)  # doctest: +SKIP
    >>> [(run.option("model.mechanism"), run.last("test_loss")) for run in runs]  # doctest: +SKIP
    """
    from . import sweep as command

    plan = {
        "preset": preset,
        "base": {_full_name(name): value for name, value in options.items()},
        "grid": {_full_name(name): list(values) for name, values in grid.items()},
    }
    runs = command.grid(plan)  # type: ignore[attr-defined]
    command.run_all(runs, argparse.Namespace(jobs=jobs, slurm=False), "sweep")  # type: ignore[attr-defined]
    return [load_run(run.folder) for run in runs]


def load_run(folder: str | Path) -> Run:
    """A run that is there: its configuration, metrics and checkpoints.

    >>> load_run("runs/norm-tunes-845a626a08").model()  # doctest: +SKIP
    """
    folder = Path(folder)
    try:
        return read_run(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"There is no run {folder}{nearest_name(folder)}") from None
