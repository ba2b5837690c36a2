"""The command ``softmax-rnn reproduce``: train what a figure needs, judge the paper's claims, draw, and write the report.

    softmax-rnn reproduce quick                       minutes: recall order by order, five mechanisms on one corpus
    softmax-rnn reproduce all --scale cpu             every figure on a laptop, over as many sessions as it takes
    softmax-rnn reproduce fig2 --scale night          a model twenty times as large, one seed
    softmax-rnn reproduce norm_matches_softmax --seeds 6   more seeds for one claim, or one figure
    softmax-rnn reproduce fig2 --scale paper --dry-run

Stop it in any way, and run the same command again: it continues where it stopped. Runs that several figures share are run once, and
runs that are packed in the folder (``softmax-rnn pack``) are not run again.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import get_args

from ..cli import Parser, whole
from ..errors import UserError
from ..lab.config import RunConfig
from ..lab.sweep import ENDED, add_options, run_all, status
from ..tasks.recall import configs, first
from .figures import FIGURES, choose, find_claim, of_scale
from .results import Plan, PlannedRun, Results, command, read_plan, write_plan
from .scales import SCALES, Cell, Scale, Size, scale

MEGABYTES = 2  # of disk for the text of a run; a checkpoint has 12 bytes for each parameter
A100_FLOPS = 312e12  # dense bfloat16, NVIDIA's data sheet
UTILISATION = 0.4
GPUS: dict[str, int] = {"base": 2, "large": 4, "long": 6}  # as in appendix D
CORE_FLOPS = 40e9  # of one idle CPU core in training these small models in float32
START = 6.0  # seconds of a core before a run begins to train


def read_options(argv: list[str]) -> argparse.Namespace:
    """The command line, with its defaults filled in."""
    parser = Parser(
        prog="softmax-rnn reproduce", description="The paper's figures and claims, from training to report."
    )
    parser.add_argument("figure", help=f"{', '.join(FIGURES)}, all, or the name of a claim, for its runs alone")
    parser.add_argument("--scale", choices=[s for s in SCALES if s != "quick"], help="how large (default: cpu)")
    parser.add_argument(
        "--seeds", type=whole(1, 100), help="how many seeds (quick and cpu: 3, night and paper: 1, early: 5)"
    )
    parser.add_argument("--out", type=Path, help="where to put everything (default: out/SCALE)")
    parser.add_argument("--size", "--variant", choices=get_args(Size), help="only runs of this size")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="train through torch.compile: long runs are faster, results differ by rounding",
    )
    add_options(parser, jobs=os.cpu_count() or 1)
    options = parser.parse_args(argv)
    if options.figure == "quick" and options.scale is not None:
        raise UserError("quick is a scale of its own: leave --scale out, or name a figure.")
    options.scale = scale("quick" if options.figure == "quick" else options.scale or "cpu")
    options.out = options.out or Path("out") / options.scale.name
    options.plan = _asked(options)
    around = [
        figure.name for figure in of_scale(options.scale) for claim in figure.claims if claim.name == options.figure
    ]
    options.seeds = options.seeds or len(options.plan.seeds_of(options.figure, *around))
    return options


def _asked(options: argparse.Namespace) -> Plan:
    """The plan with the seeds that are asked for: of one claim, or of one figure of a plan that is there, for these alone."""
    name, chosen, planned = options.figure, options.scale, (options.out / "plan.json").exists()
    there = read_plan(options.out) if planned else Plan(chosen, chosen.seeds)
    alone = find_claim(name, chosen) is not None or (planned and name not in ("quick", "all"))
    if not alone or not options.seeds:
        return Plan(chosen, options.seeds or there.seeds, there.more)
    return Plan(chosen, there.seeds, there.more | {name: options.seeds})


def main(argv: list[str]) -> int:
    """The command; returns its exit code."""
    options = read_options(argv)
    cells = plan(options.figure, options.scale, options.seeds, options.size)
    results = Results(options.scale, options.out, range(options.seeds))
    if options.dry_run:
        _show(options, [results.planned(cell) for cell in cells])
        if options.figure == "quick":
            print(f"And before these, recall: {len(configs(*first(options.out)))} runs of a few seconds.")
        return 0
    runs = _runs([results.planned(cell) for cell in cells], options.scale, options.out, options.compile)
    if options.figure == "quick":
        runs = [*configs(*first(options.out)), *runs]
    _check(options, runs)
    write_plan(options.out, options.plan)
    code = run_all(runs, options, name=f"reproduce-{options.figure}") if runs else 0
    if code == 130 or options.slurm:
        return code
    from .summary import build

    return max(build(options.out, options.out / "report"), _failures(runs))


def plan(figure: str, chosen: Scale, seeds: int, size: str | None = None) -> list[Cell]:
    """The runs of a figure, of a claim, or of all, each once; seed by seed, so that an early stop leaves something to see."""
    claim = find_claim(figure, chosen)
    parts = choose(figure, chosen) if claim is None else [claim]
    found = [cell for part in parts for cell in part.cells(chosen, range(seeds))]
    cells = [cell for cell in dict.fromkeys(found) if size in (None, cell.setting.size)]
    if not cells:
        raise UserError(f"{figure} has no runs of the size {size}.")
    return cells


def _runs(planned: Sequence[PlannedRun], chosen: Scale, out: Path, compiled: bool) -> list[RunConfig]:
    """The runs to bring to their end. One that has ended is where it was found; one that is packed needs nothing more."""
    runs = []
    for one in planned:
        config = chosen.config(one.cell, out / "runs")
        config = replace(config, run=replace(config.run, compile=compiled))
        if one.ended and one.folder.is_dir():
            config = replace(config, run=replace(config.run, folder=str(one.folder)))
        if not one.ended or one.folder.is_dir():
            runs.append(config)
    return runs


def _check(options: argparse.Namespace, runs: Sequence[RunConfig]) -> None:
    """Whatever can be known to be wrong before hours are spent."""
    for package in ("matplotlib", "plotly"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"The report needs the package {package}: pip install 'softmax-rnn[lab,report]'")
    if options.scale.name == "paper":
        _check_cluster(options)
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


def _failures(runs: Sequence[RunConfig]) -> int:
    """1 if a run has not come to an end, with a sentence."""
    left = [run.folder.name for run in runs if status(run) not in ENDED]
    if left:
        print(f"{len(left)} runs did not end, among them {left[0]}: run the same command again.", file=sys.stderr)
    return 1 if left else 0


# What a plan costs before anything is run.


@dataclass(frozen=True)
class Work:
    """Of one run."""

    parameters: int
    tokens: int
    flops: float


def cost(config: RunConfig) -> Work:
    """6 FLOPs for each parameter and token (the embedding is a table, and free), and 6 T for each channel of each layer's attention."""
    vocab = config.tokenizer.vocab if config.tokenizer.source == "bpe" else 32000
    shape = {key: value for key, value in config.model.overrides.items() if isinstance(value, int)}
    parameters, hidden, layers = _shape(config.model.size, tuple(sorted(shape.items())), vocab, config.model.label)
    tokens = config.train.steps * config.train.batch * config.data.length
    per_token = 6 * (parameters - vocab * hidden) + 6 * layers * hidden * config.data.length
    return Work(parameters, tokens, float(per_token * tokens))


@lru_cache
def _shape(size: str, overrides: tuple[tuple[str, int], ...], vocab: int, mechanism: str) -> tuple[int, int, int]:
    """Parameters (gates and norms included), hidden size, layers."""
    from ..lab.model import ModelConfig, check_model
    from ..models import SIZES

    shape = SIZES[size] | dict(overrides)
    known = "softmax" if mechanism in ("custom", "hybrid") else mechanism
    parameters = check_model(ModelConfig(known, size, dict(overrides)), vocab, length=2048)
    return parameters, shape["hidden_size"], shape["num_hidden_layers"]


def _show(options: argparse.Namespace, planned: list[PlannedRun]) -> None:
    """``--dry-run``: the runs, what they cost, and at the paper's scale the commands that would do them."""
    chosen, root = options.scale, options.out / "runs"
    print(f"{'run':<58} {'state':<11} {'parameters':>13} {'tokens':>15} {'FLOPs':>9}")
    for one in planned:
        state, run = "to run" if one.status == "missing" else one.status, cost(chosen.config(one.cell, root))
        print(f"{one.cell!s:<58} {state:<11} {run.parameters:>13,} {run.tokens:>15,} {run.flops:>9.1e}")
    left = [one.cell for one in planned if not one.ended]
    costs = [cost(chosen.config(cell, root)) for cell in left]
    print(f"\n{len(planned)} runs, {len(planned) - len(left)} of them done; {_totals(costs, chosen)}")
    if chosen.name == "paper":
        print("\nOne by one:\n")
        print("\n".join(torchrun(chosen, cell, root) for cell in left))
        print("\nOr as SLURM job arrays:\n")
        for size in dict.fromkeys(cell.setting.size for cell in left):
            more = ("--size", size, "--slurm", "--minutes", "2880", "--partition", "NAME")
            print(command(options.figure, chosen, options.out, options.seeds, *more))


def _totals(costs: list[Work], chosen: Scale) -> str:
    flops, tokens = sum(c.flops for c in costs), sum(c.tokens for c in costs)
    if chosen.name == "paper":
        hours = flops / (A100_FLOPS * UTILISATION) / 3600
        time = f"about {hours:,.0f} GPU hours (A100 at 40% of its peak)"
    else:
        cores = os.cpu_count() or 1
        minutes = math.ceil((flops / CORE_FLOPS + START * len(costs)) / 60 / cores)
        half = chosen.recipe("base").train.precision == "bf16"
        less = ", half of it or less where the processor computes in bfloat16" if half else ""
        time = f"about {minutes:,} minutes on {cores} idle core{'s' if cores > 1 else ''}{less}"
    return f"left: at most {tokens:,} tokens, {flops:.1e} FLOPs, {time}."


def torchrun(chosen: Scale, cell: Cell, root: Path) -> str:
    """The command of one run of the paper's scale, with the number of GPUs that the paper used."""
    config, size = chosen.config(cell, root), cell.setting.size
    options = {
        "preset": {"base": "paper", "large": "paper-large", "long": "paper-long"}[size],
        "name": config.name,
        "seed": cell.seed,
        "data.source": cell.corpus,
        "model.mechanism": cell.mechanism,
        "run.root": config.run.root,
    }
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    return f"torchrun --nproc-per-node {GPUS[size]} -m softmax_rnn train {shlex.join(words)}"
