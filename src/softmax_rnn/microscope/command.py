"""``softmax-rnn inspect MODEL --text FILE``: how many orders of the exponential's series a model uses on a text."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cli import Parser
from ..errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(prog="softmax-rnn inspect", description=__doc__)
    p.add_argument(
        "model", help="a checkpoint folder, a run, a GGUF file, 'smollm2' (the installed package), or a name on the hub"
    )
    p.add_argument("--text", required=True, metavar="FILE", help="what the model reads")
    p.add_argument("--out", metavar="DIR", help="where to write (default: out/inspect/MODEL-FILE)")
    p.add_argument("--max-tokens", type=int, default=512, help="how much of the text (default: 512)")
    p.add_argument("--orders", type=int, default=128, help="the highest order, up to 128 (default)")
    p.add_argument(
        "--tolerance", type=float, default=0.01,
        help="how far a head's output may be from softmax's, relative, to count as equal (default: 0.01)",
    )  # fmt: skip
    p.add_argument(
        "--center", choices=("none", "mean", "best"),
        help="compare with keys centred by their mean, or also by a learned constant (default: best where it changes nothing for the "
        "model itself and there is text to calibrate on, else none)",
    )  # fmt: skip
    p.add_argument(
        "--calibrate", metavar="FILE", help="other text, for centring (default: what follows in the same text)"
    )
    p.add_argument(
        "--layer-tokens", type=int, default=256, help="of the text, when one layer is cut at a time; 0 leaves that out"
    )
    p.add_argument("--threads", type=int, help="processor threads (default: torch's choice)")
    p.add_argument("--quiet", action="store_true", help="no progress bar")
    return p


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    args = parser().parse_args(argv)
    if args.max_tokens < 1 or args.layer_tokens < 0 or (args.threads is not None and args.threads < 1):
        raise UserError("--max-tokens and --threads must be at least 1, --layer-tokens at least 0.")
    for package in ("matplotlib", "rich"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"inspect needs {package}: pip install 'softmax-rnn[lab,report]'")
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is first imported
    import torch
    from transformers.utils import logging

    from .. import __version__
    from ..models import load_tokenizer
    from . import opening, saving
    from .inspection import inspect

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if args.threads:
        torch.set_num_threads(args.threads)
    text = opening.read_text(args.text)
    other = None if args.calibrate is None else opening.read_text(args.calibrate)
    out = Path(args.out or Path("out/inspect") / f"{Path(args.model).stem}-{Path(args.text).stem}")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: give a folder with --out.")
    model, where = opening.open_model(args.model)
    tokenizer = load_tokenizer(where)
    limit = opening.longest(model, args.max_tokens)
    ids, rest = opening.split(opening.tokens(tokenizer, text, 2 * limit), limit, args.text)
    if other is not None:
        rest, _ = opening.split(opening.tokens(tokenizer, other, limit), limit, args.calibrate)
    center = _center(args.center, model, rest)
    with progress(args.quiet) as tick:
        found = inspect(
            model, ids, orders=args.orders, tolerance=args.tolerance, center=center, calibration_ids=rest,
            layer_orders=(2, 10, 32) if args.layer_tokens else (), layer_tokens=max(args.layer_tokens, 1), tick=tick,
        )  # fmt: skip
    about = {
        "command": "softmax-rnn inspect " + " ".join(argv),
        "versions": {"softmax-rnn": __version__, "torch": torch.__version__},
        "model": args.model,
        "text": Path(args.text).name,
        "calibration": _calibration(args, center, rest),
    }
    saving.save(found, about, out)
    for line in saving.lines(found):
        print(line)
    print(f"{out}/index.html")
    return 0


def _calibration(args: argparse.Namespace, center: str, rest: Tensor | None) -> str | None:
    if center == "none" or rest is None:
        return None
    source = (
        f"{Path(args.text).name}, after the inspected part" if args.calibrate is None else Path(args.calibrate).name
    )
    return f"{source}, {rest.shape[1]} tokens"


def _center(asked: str | None, model: Any, rest: Tensor | None) -> str:
    """What was asked for, or ``best`` if it can be had; says so if not."""
    if asked is not None:
        if asked != "none" and rest is None:
            raise UserError(
                "Centring is calibrated on other text, and this file has too little left: give --calibrate FILE."
            )
        return asked
    mechanisms = model.config.layer_mechanisms() if model.config.model_type == "softmax_rnn" else []
    if not all(m.kernel.shiftable and m.cancels_scale for m in mechanisms):
        print("Centring would change what this model computes: left out.", file=sys.stderr)
        return "none"
    if rest is None:
        print("No text is left to calibrate centring on (--calibrate FILE): left out.", file=sys.stderr)
        return "none"
    return "best"


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each stage, with the time it still takes."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        tasks: dict[str, TaskID] = {}

        def tick(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield tick


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
