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

import math
from collections import Counter
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from ..cli import Parser
from ..errors import MechanismError, UserError
from ..files import read_yaml
from .config import RunConfig, build
from .farm import ENDED, add_options, run_all, status
from .options import merge, nested

MOST_RUNS = 100_000


def read_sweep(file: Path) -> list[RunConfig]:
    """The runs of a sweep file, in the order of its grid; anything unknown in it is refused."""
    sweep = read_yaml(file)
    known = ("preset", "base", "grid")
    if not isinstance(sweep, dict) or not isinstance(sweep.get("grid"), dict) or set(sweep) - set(known):
        raise UserError(f"{file} must have the keys {', '.join(known)} and no others, with lists of values under grid.")
    base = sweep.get("base") or {}
    if not isinstance(base, dict):
        raise UserError(f"{file}: base must hold options, such as train: {{steps: 500}}, got {base!r}.")
    lists = {key: values if isinstance(values, list) else [values] for key, values in sweep["grid"].items()}
    count = math.prod(len(values) for values in lists.values())
    if not 1 <= count <= MOST_RUNS:
        raise UserError(f"{file}: the grid has {count:,} runs, and 1 to {MOST_RUNS:,} are possible.")
    try:
        runs = [_one(base, lists, values, sweep.get("preset")) for values in product(*lists.values())]
    except (UserError, MechanismError) as error:
        raise UserError(f"{file}: {error}") from None
    first = Counter(run.folder for run in runs).most_common(1)[0]
    if first[1] > 1:
        raise UserError(f"{file}: two runs of the grid are the same ({first[0]}).")
    return runs


def _one(base: dict[str, Any], keys: Iterable[str], values: Iterable[Any], preset: Any) -> RunConfig:
    options: dict[str, Any] = {}
    merge(options, base)
    for key, value in zip(keys, values, strict=True):
        merge(options, nested(key, value))
    return build(options, preset)


def main(argv: list[str]) -> int:
    """The command; returns its exit code: 0 if every run is done."""
    parser = Parser(prog="softmax-rnn sweep", description="Train a grid of runs; the same command again goes on.")
    parser.add_argument("file", type=Path, help="a YAML file with preset, base and grid")
    add_options(parser)
    options = parser.parse_args(argv)
    runs = read_sweep(options.file)
    if options.dry_run or all(status(run) in ENDED for run in runs):
        from rich.console import Console

        from .board import table

        Console(stderr=True).print(table(runs, {}))
        return 0 if options.dry_run or all(status(run) == "done" for run in runs) else 1
    return run_all(runs, options, name=options.file.stem)
