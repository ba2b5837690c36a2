"""The command ``softmax-rnn report``: from the metrics of a reproduction to verdicts, figures, and a page that opens offline."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ..cli import Parser
from ..errors import UserError
from ..lab.checkpoint import write_atomically


def main(argv: list[str]) -> int:
    """The command; returns its exit code."""
    parser = Parser(prog="softmax-rnn report", description="Verdicts, figures and a page from what was run.")
    parser.add_argument("folder", nargs="?", type=Path, help="what reproduce wrote (default: the newest in out/)")
    parser.add_argument("--out", type=Path, help="where to put the page (default: FOLDER/report)")
    options = parser.parse_args(argv)
    folder = options.folder or _newest()
    return build(folder, options.out or folder / "report")


def _newest() -> Path:
    plans = sorted(Path("out").glob("*/plan.json"), key=lambda p: p.stat().st_mtime)
    if not plans:
        raise UserError("Nothing to report on in out/: run softmax-rnn reproduce quick, or name a folder.")
    return plans[-1].parent


def build(folder: Path, site: Path) -> int:
    """Write ``row.json``, ``summary.json``, ``figures/`` and the page; print the verdicts."""
    from ..report.site import write_site
    from .headline import draw_headline
    from .plots import draw
    from .summary import read_plan, summarise

    read_plan(folder)
    try:
        _write_row(folder)
        summary = summarise(folder)
        write_atomically(folder / "summary.json", json.dumps(summary, ensure_ascii=False) + "\n")
        draw(summary, folder / "figures")
        draw_headline(summary, folder / "figures")
        index = write_site(summary, folder / "figures", site)
    except OSError as error:
        raise UserError(f"Cannot write to {folder} ({error.strerror}): make room, or check its permissions.") from None
    _print(summary)
    print(f"\nThe report: {index}")
    return 0


def _write_row(folder: Path) -> None:
    """Taken once, from the finished run, while its checkpoint is there."""
    from ..lab.sweep import status
    from .row import source, take_row
    from .scales import scale
    from .summary import read_plan, read_row

    chosen, there = scale(read_plan(folder)["scale"]), read_row(folder)
    run = source(chosen, folder)
    if status(run) == "done" and (there is None or there["model"] != run.folder.name):
        row = take_row(chosen, folder)
        if row is not None:
            write_atomically(folder / "row.json", json.dumps(row, ensure_ascii=False) + "\n")


def _print(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    styles = {
        "holds": "green",
        "does not hold": "red",
        "inconclusive": "yellow",
        "not testable here": "cyan",
        "not run": "dim",
    }
    table = Table("section", "claim", "verdict", title=summary["setting"], title_justify="left")
    for claim in summary["claims"]:
        table.add_row(claim["section"], claim["sentence"], f"[{styles[claim['verdict']]}]{claim['verdict']}")
    Console(file=sys.stdout).print(table)
    missing = sum(run["status"] in ("missing", "unfinished", "damaged") for run in summary["runs"])
    if missing:
        print(f"{missing} of {len(summary['runs'])} runs are missing; the report says which.")
