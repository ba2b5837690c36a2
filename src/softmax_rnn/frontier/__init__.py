"""``softmax-rnn frontier``: train what the frontier compares, judge the claims, and draw quality against cost.

    softmax-rnn frontier                                     everything, a working day of one core; the same command continues it
    softmax-rnn frontier recall parity                       some arenas only
    softmax-rnn frontier --from results/frontier --draw      the page of runs that are there, without training

It writes ``frontier.json``, ``frontier.svg`` and ``index.html`` to ``--out``. Runs are ordinary runs of the lab, in ``--out``/runs.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..cli import Parser
from ..errors import UserError

if TYPE_CHECKING:
    from .design import Point
    from .results import Found

TOGETHER = 12  # points


def main(argv: list[str]) -> int:
    """The command; returns its exit code."""
    options = _parser().parse_args(argv)
    from ..files import check_folder
    from .design import ARENAS, POINTS
    from .results import Found

    unknown = [name for name in options.arenas if name not in ARENAS]
    if unknown:
        raise UserError(f"Unknown arena {unknown[0]!r}: arenas are {', '.join(ARENAS)}.")
    for folder in options.packed:
        if not (folder / "runs.json").is_file():
            raise UserError(f"{folder} holds no packed runs: name a folder that softmax-rnn pack wrote.")
    chosen = [point for point in POINTS if not options.arenas or point.arena in options.arenas]
    found = Found(options.out / "runs", options.packed)
    if options.dry_run:
        left = sum(bool(found.wanted(point)) for point in chosen)
        print(f"{len(chosen)} points, {len(chosen) - left} of them done.")
        return 0
    check_folder(options.out, "--out")
    code = 0 if options.draw else _train(chosen, found, options)
    if options.slurm or code not in (0, 1):  # submitted, or stopped
        return code
    return max(code, _write(found, options.out))


def _parser() -> argparse.ArgumentParser:
    from ..lab.sweep import add_options

    p = Parser("softmax-rnn frontier", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("arenas", nargs="*", metavar="ARENA", help="recall, forgetting, parity, text, masked, digits (all)")
    p.add_argument(
        "--out", type=Path, default=Path("out/frontier"), metavar="DIR", help="where everything goes (out/frontier)"
    )
    p.add_argument(
        "--from",
        dest="packed",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="folders with packed runs, which are not trained again",
    )
    p.add_argument("--draw", action="store_true", help="train nothing: draw what is there")
    add_options(p, jobs=os.cpu_count() or 1)
    return p


def _train(points: list[Point], found: Found, options: argparse.Namespace) -> int:
    """Some points at a time: the learning rate is chosen first, then come the seeds that count."""
    from ..lab.sweep import run_all

    if options.slurm:  # what can be queued now; the same command again queues the rest
        return run_all(
            [p.config(*one, found.root) for p in points for one in found.wanted(p)], options, name="frontier"
        )
    worst = 0
    for begin in range(0, len(points), TOGETHER):
        for _ in range(2):
            some = points[begin : begin + TOGETHER]
            runs = [point.config(lr, seed, found.root) for point in some for lr, seed in found.wanted(point)]
            if not runs:
                continue
            code = run_all(runs, options, name="frontier")
            if code not in (0, 1):
                return code
            worst = max(worst, code)
            found.forget()
    return worst


def _write(found: Found, out: Path) -> int:
    from .page import write
    from .results import summarise, table

    report = summarise(found)
    if not report.points:
        print("No point has all of its runs yet: nothing to draw.")
        return 1
    for line in table(report):
        print(line)
    for path in write(report, out):
        print(path)
    return 0
