"""The command ``softmax-rnn reproduce``: train what a figure needs, judge the paper's claims, draw, and write the report.

    softmax-rnn reproduce quick                       minutes: six mechanisms on one corpus
    softmax-rnn reproduce all --scale cpu             every figure on a laptop, over as many sessions as it takes
    softmax-rnn reproduce fig2 --scale paper --dry-run

Stop it in any way: the same command goes on. Runs that several figures share are run once.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from ..cli import Parser, whole
from ..errors import UserError
from ..lab.sweep import ENDED, add_options, run_all, status
from .catalog import FIGURES, choose
from .estimate import GPUS, cost
from .scales import Cell, Scale, scale

MEGABYTES = 2  # of disk for the text of a run; a checkpoint has 12 bytes for each parameter


def read_options(argv: list[str]) -> argparse.Namespace:
    """The command line, with its defaults filled in."""
    parser = Parser(
        prog="softmax-rnn reproduce", description="The paper's figures and claims, from training to report."
    )
    parser.add_argument("figure", help=f"{', '.join(FIGURES)} or all")
    parser.add_argument(
        "--scale",
        help="cpu, paper, or early (the first edition's); quick has its own",
        choices=["cpu", "paper", "early"],
    )
    parser.add_argument("--seeds", type=whole(1, 100), help="how many seeds (cpu and quick: 3, paper: 1, early: 5)")
    parser.add_argument("--out", type=Path, help="where to put everything (out/quick, out/cpu, out/paper)")
    parser.add_argument(
        "--size", "--variant", choices=["base", "large", "long", "short"], help="only the runs of this size"
    )
    add_options(parser, jobs=os.cpu_count() or 1)
    options = parser.parse_args(argv)
    if options.figure == "quick" and options.scale is not None:
        raise UserError("quick is a scale of its own: leave --scale out, or name a figure.")
    options.scale = scale("quick" if options.figure == "quick" else options.scale or "cpu")
    options.out = options.out or Path("out") / options.scale.name
    options.seeds = options.seeds or _planned_seeds(options.out) or options.scale.seeds
    return options


def _planned_seeds(out: Path) -> int | None:
    from .summary import read_plan

    return int(read_plan(out)["seeds"]) if (out / "plan.json").exists() else None


def main(argv: list[str]) -> int:
    """The command; returns its exit code."""
    options = read_options(argv)
    cells = plan(options.figure, options.scale, options.seeds, options.size)
    if options.dry_run:
        from .dry import show

        return show(options.figure, options.scale, cells, options.out, options.seeds)
    _check(options, cells)
    _write_plan(options)
    runs = [options.scale.config(cell, options.out / "runs") for cell in cells]
    code = run_all(runs, options, name=f"reproduce-{options.figure}")
    if code == 130 or options.slurm:
        return code
    from .report import build

    return max(build(options.out, options.out / "report"), _failures(runs))


def plan(figure: str, chosen: Scale, seeds: int, size: str | None = None) -> list[Cell]:
    """The runs of a figure, or of all, each once; seed by seed, so that an early stop leaves something to see."""
    found = [cell for f in choose(figure, chosen) for cell in f.cells(chosen, range(seeds))]
    cells = [cell for cell in dict.fromkeys(found) if size in (None, cell.setting.size)]
    if not cells:
        raise UserError(f"{figure} has no runs of the size {size}.")
    return cells


def _check(options: argparse.Namespace, cells: list[Cell]) -> None:
    """Whatever can be known to be wrong before hours are spent."""
    for package in ("matplotlib", "plotly"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"The report needs the package {package}: pip install 'softmax-rnn[lab,report]'")
    if options.scale.name == "paper":
        _check_cluster(options)
    runs = [options.scale.config(cell, options.out / "runs") for cell in cells]
    left = [run for run in runs if status(run) not in ENDED]
    need = sum(MEGABYTES + cost(run).parameters * 12 * (run.run.keep + 1) // 2**20 for run in left)
    where = next(p for p in (options.out.absolute(), *options.out.absolute().parents) if p.exists())
    free = shutil.disk_usage(where).free // 2**20
    if free < need:
        raise UserError(
            f"{len(left)} runs need about {need:,} MB in {options.out}, and {free:,} MB are free: make room."
        )


def _check_cluster(options: argparse.Namespace) -> None:
    """One process per GPU is what torchrun and SLURM do; each size needs its own number of them."""
    if not options.slurm:
        raise UserError(
            "The paper's scale runs under torchrun or SLURM: --dry-run prints the commands; --scale cpu is for this machine."
        )
    if options.size is None:
        raise UserError("The sizes need different numbers of GPUs: queue each with --size base, large or long.")
    options.gpus = options.gpus or GPUS[options.size]
    options.processes = max(options.processes, options.gpus)


def _write_plan(options: argparse.Namespace) -> None:
    from ..lab.checkpoint import write_atomically
    from .summary import read_plan

    file: Path = options.out / "plan.json"
    seeds = options.seeds
    if file.exists():
        there = read_plan(options.out)
        if there["scale"] != options.scale.name:
            raise UserError(f"{options.out} holds the scale {there['scale']}: choose another --out.")
        seeds = max(seeds, there["seeds"])
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps({"scale": options.scale.name, "seeds": seeds}) + "\n")
    except OSError as error:
        raise UserError(f"Cannot write to {options.out} ({error.strerror}): choose another --out.") from None


def _failures(runs: list[Any]) -> int:
    """1 if a run has not come to an end, with a sentence."""
    left = [run.folder.name for run in runs if status(run) not in ENDED]
    if left:
        print(f"{len(left)} runs did not end, among them {left[0]}; the same command goes on.", file=sys.stderr)
    return 1 if left else 0
