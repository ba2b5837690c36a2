"""The command ``softmax-rnn sweep``: a grid of runs, each an ordinary ``train``, through submitit.

    preset: laptop
    base:                                   # options that all runs share
      train: {steps: 200}
    grid:                                   # every combination of these is a run
      model.mechanism: [softmax, norm, gate]
      seed: [0, 1]

The same command again is always right: done runs are skipped, half-done ones go on. On this machine (``--jobs``) a table
shows where everything is. With ``--slurm`` the rest of the grid becomes one job array.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import yaml

from ..cli import Parser
from ..errors import MechanismError, UserError
from .config import RunConfig, from_dict
from .farm import ENDED, add_options, check_options, run_all, status


def read_sweep(file: Path) -> list[RunConfig]:
    """The runs of a sweep file, in the order of its grid; anything unknown in it is refused."""
    try:
        sweep = yaml.safe_load(file.read_text())
    except OSError as error:
        raise UserError(f"Cannot read {file}: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    known = ("preset", "base", "grid")
    if not isinstance(sweep, dict) or not isinstance(sweep.get("grid"), dict) or set(sweep) - set(known):
        raise UserError(f"{file} must have the keys {', '.join(known)} and no others, with lists of values under grid.")
    lists = {key: values if isinstance(values, list) else [values] for key, values in sweep["grid"].items()}
    runs = []
    for values in product(*lists.values()):
        options: dict[str, Any] = {}
        _merge(options, sweep.get("base") or {})
        for key, value in zip(lists, values, strict=True):
            _merge(options, _nested(key, value))
        try:
            runs.append(from_dict(options, sweep.get("preset", "laptop")))
        except (UserError, MechanismError) as error:
            raise UserError(f"{file}: {error}") from None
    twice = {run.folder for run in runs if [other.folder for other in runs].count(run.folder) > 1}
    if twice:
        raise UserError(f"{file}: two runs of the grid are the same ({sorted(twice)[0]}).")
    return runs


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif "." in key:
            _merge(into, _nested(key, value))
        else:
            into[key] = dict(value) if isinstance(value, dict) else value


def main(argv: list[str]) -> int:
    """The command; returns its exit code: 0 if every run is done."""
    parser = Parser(prog="softmax-rnn sweep", description="Train a grid of runs; the same command again goes on.")
    parser.add_argument("file", type=Path, help="a YAML file with preset, base and grid")
    add_options(parser)
    options = parser.parse_args(argv)
    check_options(options)
    runs = read_sweep(options.file)
    if options.dry_run or all(status(run) in ENDED for run in runs):
        from rich.console import Console

        from .board import table

        Console(stderr=True).print(table(runs, {}))
        return 0 if options.dry_run or all(status(run) == "done" for run in runs) else 1
    return run_all(runs, options, name=options.file.stem)
