"""``softmax-rnn reproduce ... --dry-run``: the runs, what they cost, and the commands that would do them."""

from __future__ import annotations

import os
from pathlib import Path

from .estimate import Cost, cost, slurm, torchrun
from .results import Results
from .scales import Cell, Scale


def show(figure: str, scale: Scale, cells: list[Cell], out: Path, seeds: int) -> int:
    """Print it; returns the exit code."""
    results = Results(scale, out, range(seeds))
    rows = [(cell, cost(scale.config(cell, out / "runs")), results.record(cell).status) for cell in cells]
    print(f"{'run':<58} {'state':<11} {'parameters':>13} {'tokens':>15} {'FLOPs':>9}")
    for cell, run, state in rows:
        state = "to run" if state == "missing" else state
        print(f"{cell!s:<58} {state:<11} {run.parameters:>13,} {run.tokens:>15,} {run.flops:>9.1e}")
    left = [(cell, run) for cell, run, state in rows if state not in ("done", "diverged")]
    print(f"\n{len(rows)} runs, {len(rows) - len(left)} of them done; {_totals([run for _, run in left], scale)}")
    if scale.name == "paper":
        _commands(figure, scale, [cell for cell, _ in left], out, seeds)
    return 0


def _totals(costs: list[Cost], scale: Scale) -> str:
    flops, tokens = sum(c.flops for c in costs), sum(c.tokens for c in costs)
    if scale.name == "paper":
        time = f"about {sum(c.gpu_hours for c in costs):,.0f} GPU hours (A100 at 40% of its peak)"
    else:
        cores = os.cpu_count() or 1
        time = f"about {sum(c.core_minutes for c in costs) / cores:,.0f} minutes on {cores} cores"
    return f"left: at most {tokens:,} tokens, {flops:.1e} FLOPs, {time}."


def _commands(figure: str, scale: Scale, cells: list[Cell], out: Path, seeds: int) -> None:
    print("\nOne by one:\n")
    for cell in cells:
        print(torchrun(scale, cell, out / "runs"))
    print("\nOr as SLURM job arrays:\n")
    for size in dict.fromkeys(cell.setting.size for cell in cells):
        print(slurm(figure, scale, out, seeds, size))
