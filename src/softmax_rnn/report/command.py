"""The command ``softmax-rnn report``: from runs to verdicts (where they reproduce the paper), curves, and a page that opens offline.

softmax-rnn report                        the newest reproduction in out/
softmax-rnn report out/quick              a reproduction of the paper: verdicts, figures, page
softmax-rnn report runs                   any runs: a folder of them, a sweep, or several by name
softmax-rnn report runs/a runs/b --out compared
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from ..cli import Parser
from ..errors import UserError
from ..lab.checkpoint import write_atomically
from .data import Report


def main(argv: list[str]) -> int:
    """The command; returns its exit code."""
    parser = Parser(prog="softmax-rnn report", description="Curves, tables and a page from what was run.")
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        help="what reproduce wrote, a folder of runs, a sweep, or runs (default: newest in out/)",
    )
    parser.add_argument("--out", type=Path, help="where to put the page (default: FOLDER/report)")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="write summary.json and figures into packed results, which stay as they are otherwise",
    )
    options = parser.parse_args(argv)
    runs: list[Path] = options.runs or [_newest()]
    if len(runs) == 1 and (runs[0] / "plan.json").exists():
        return build(runs[0], options.out or _beside(runs[0]), keep=options.keep)
    return _compare(runs, options.out)


def _newest() -> Path:
    plans = sorted(Path("out").glob("*/plan.json"), key=lambda p: p.stat().st_mtime)
    if not plans:
        raise UserError("Nothing to report on in out/: run softmax-rnn reproduce quick, or name a folder of runs.")
    return plans[-1].parent


def _beside(folder: Path) -> Path:
    """Packed results are kept as they are: their page goes to out/."""
    from ..lab.packed import is_packed

    return Path("out") / f"{folder.resolve().name}-report" if is_packed(folder) else folder / "report"


def build(folder: Path, site: Path, *, keep: bool = False) -> int:
    """The report on a reproduction: its page in ``site``, with verdicts printed.

    ``example.json``, ``summary.json`` and ``figures`` go to the folder itself, unless its results are packed and ``keep`` is False.
    """
    from ..lab.packed import is_packed
    from ..paper.summary import read_plan, summarise
    from .site import write_site

    read_plan(folder)
    kept = site if is_packed(folder) and not keep else folder
    try:
        if kept is folder:
            _write_example(folder)
        report = summarise(folder)
        draw_all(report, kept)
        index = write_site(report, kept / "figures", site)
    except OSError as error:
        raise UserError(f"Cannot write to {site} ({error.strerror}): make room, or check its permissions.") from None
    _print(report)
    print(f"\nThe report: {index}")
    return 0


def draw_all(report: Report, folder: Path) -> None:
    """``summary.json`` and the static drawings."""
    from ..paper.headline import draw_headline
    from .drawing import draw

    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "summary.json", report.text())
    draw(report.figures, folder / "figures")
    draw_headline(report, folder / "figures")


def _write_example(folder: Path) -> None:
    """Taken once, from the finished run, while its checkpoint is there."""
    from ..lab.sweep import status
    from ..paper.example import source, take_example
    from ..paper.summary import read_example, read_plan

    chosen, there = read_plan(folder).scale, read_example(folder)
    run = source(chosen, folder)
    if status(run) == "done" and (there is None or there.model != run.folder.name):
        example = take_example(chosen, folder)
        if example is not None:
            write_atomically(folder / "example.json", json.dumps(asdict(example), ensure_ascii=False) + "\n")


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    styles = {"holds": "green", "does not hold": "red", "inconclusive": "yellow"}
    table = Table("section", "claim", "verdict", title=report.setting, title_justify="left")
    for claim in report.claims:
        table.add_row(claim.section, claim.sentence, f"[{styles.get(claim.verdict, 'dim')}]{claim.verdict}")
    Console(file=sys.stdout).print(table)
    missing = sum(run.status in ("missing", "unfinished", "damaged") for run in report.runs)
    if missing:
        print(f"{missing} of {len(report.runs)} runs are missing; the report says which.")


def _compare(runs: list[Path], out: Path | None) -> int:
    """The report on any runs."""
    from .compare import compare, find
    from .drawing import draw
    from .site import write_site

    report = compare(find(runs))
    site = out or (runs[0] / "report" if len(runs) == 1 else Path("out") / "compared")
    try:
        (site / "figures").mkdir(parents=True, exist_ok=True)
        draw(report.figures, site / "figures")
        index = write_site(report, site / "figures", site)
    except OSError as error:
        raise UserError(f"Cannot write to {site} ({error.strerror}): choose another --out.") from None
    print(f"{len(report.runs)} runs; the report: {index}")
    return 0
