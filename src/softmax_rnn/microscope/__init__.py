"""``softmax-rnn inspect MODEL --text FILE``: how many orders of the exponential's series a model uses on a text.

softmax-rnn inspect --redraw FOLDER ...     figures and pages again, from the JSON
softmax-rnn inspect --compare FOLDER ...    several inspections side by side: tables in Markdown
"""

# Beside the command:
#     inspection.py  ``inspect``, which measures the heads, and then the model with its series cut
#     probe.py       a layer's attention: reached, in tiles of queries; the series, at any size of score
#     heads.py       the statistics of one head, a layer with its series cut, constants that bring scores close to 0
#     results.py     what was found, as JSON, lines and tables
#     page.py        its pictures and its page
# Nothing heavy is imported here: ``softmax_rnn.inspect`` is the function, and the command answers ``--help`` without torch.

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cli import Parser, decimal, notice, place_of, quieten, whole
from ..errors import UserError, first_line, printable
from ..files import check_folder, writing
from ..files import read_text as text_of
from . import results

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

ENCODERS = ("bert", "roberta", "xlm-roberta", "electra")


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(prog="softmax-rnn inspect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "model",
        nargs="?",
        help="a checkpoint folder, a run, a GGUF file, 'smollm2' (the installed package), or a name on the hub",
    )
    p.add_argument("--text", metavar="FILE", help="what the model reads")
    p.add_argument("--out", metavar="DIR", help="where to write (default: out/inspect/MODEL-FILE)")
    p.add_argument(
        "--max-tokens", type=whole(1, 2**31 - 1), default=512, help="how much of the text to read (default: 512)"
    )
    p.add_argument(
        "--orders", type=whole(1, 128), default=128, help="the highest order to try, at most 128 (default: 128)"
    )
    p.add_argument(
        "--tolerance",
        type=decimal(1e-12, 1.0),
        default=0.01,
        help="a head's output counts as equal to softmax's if their relative difference is at most this (default: 0.01)",
    )
    p.add_argument(
        "--center",
        choices=("none", "mean", "best"),
        help="none; mean: also measure with the mean key subtracted from all keys; best: also with a learned constant subtracted "
        "(default: best, if that leaves the model's own output as it is and there is text to calibrate on; else none)",
    )
    p.add_argument(
        "--calibrate",
        metavar="FILE",
        help="another text, to calibrate centring on (default: what follows in the same text)",
    )
    p.add_argument(
        "--layer-tokens",
        type=whole(0, 2**31 - 1),
        default=256,
        help="how much of the text to use when one layer is cut at a time; 0 leaves that part out (default: 256)",
    )
    p.add_argument("--threads", type=whole(1, 1024), help="processor threads (default: torch's choice)")
    p.add_argument("--quiet", action="store_true", help="no progress bar")
    p.add_argument("--redraw", nargs="+", type=Path, metavar="FOLDER", help="draw inspections again, without the model")
    p.add_argument("--compare", nargs="+", type=Path, metavar="FOLDER", help="print inspections side by side")
    return p


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    args = parser().parse_args(argv)
    if args.redraw or args.compare:
        return _again(args)
    out = _check(args)
    quieten()
    import torch

    from .. import __version__
    from .inspection import inspect

    if args.threads:
        torch.set_num_threads(args.threads)
    model, ids, rest = _open(args)
    center = _center(args.center, model, rest)
    layers: dict[str, Any] = {
        "layer_orders": (2, 10, 32) if args.layer_tokens else (),
        "layer_tokens": max(args.layer_tokens, 1),
    }
    with progress(args.quiet) as tick:
        found = inspect(
            model,
            ids,
            orders=args.orders,
            tolerance=args.tolerance,
            center=center,
            calibration_ids=rest,
            tick=tick,
            **layers,
        )
    about = {
        "command": "softmax-rnn inspect " + " ".join(argv),
        "versions": {"softmax-rnn": __version__, "torch": torch.__version__},
        "model": args.model,
        "text": Path(args.text).name,
        "calibration": _calibration(args, center, rest),
    }
    with writing(out, "make room, or choose another --out"):
        results.save(found, about, out)
    for line in results.sentences(found.summary):
        print(line)
    print(printable(f"{out}/index.html"))
    return 0


def _check(args: argparse.Namespace) -> Path:
    """Where the results go, if everything that can be judged without the model is in order."""
    if args.model is None or args.text is None:
        raise UserError("Give a model and a text: softmax-rnn inspect MODEL --text FILE.")
    for package in ("matplotlib", "rich"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"inspect needs {package}: pip install 'softmax-rnn[lab,report]'")
    for path in (args.text, args.calibrate):
        if path is not None:
            read_text(path)
    out = Path(args.out or Path("out/inspect") / f"{Path(args.model).stem}-{Path(args.text).stem}")
    check_folder(out, "--out")
    return out


def _open(args: argparse.Namespace) -> tuple[PreTrainedModel, Tensor, Tensor | None]:
    """The model, the tokens to look at, and others to calibrate on."""
    from ..models import load_tokenizer

    model, where = open_model(args.model)
    tokenizer = load_tokenizer(where)
    limit = longest(model, args.max_tokens)
    ids, rest = split(tokens(tokenizer, read_text(args.text), 2 * limit), limit, args.text)
    if args.calibrate is not None:
        rest, _ = split(tokens(tokenizer, read_text(args.calibrate), limit), limit, args.calibrate)
    return model, ids, rest


def _again(args: argparse.Namespace) -> int:
    """What can be made from the JSON alone."""
    if args.redraw:
        from .page import write_page

        for folder in results.folders(args.redraw):
            check_folder(folder, "--redraw")
            write_page(folder)
            print(printable(f"{folder}/index.html"))
    if args.compare:
        found = {folder.name: results.load(folder) for folder in results.folders(args.compare)}
        print(results.compare(found), end="")
    return 0


def open_model(name: str) -> tuple[PreTrainedModel, str | Path]:
    """The model, in evaluation mode, and where it lies; encoders come without a head."""
    notice(f"loading torch, transformers and {name}")
    from transformers import AutoModel

    from ..models import load_model
    from ..models.folders import locate
    from ..models.patching import restore

    where = place_of(name)
    place, extra = locate(where)
    if not extra and _is_encoder(place):
        try:
            loaded: Any = AutoModel.from_pretrained(place, output_loading_info=True, trust_remote_code=False)
        except Exception as error:  # a damaged file can fail anywhere in its reader
            raise UserError(f"Cannot load a model from {name}: {first_line(error)}") from None
        model, found = loaded
        missing = sorted(k for k in found.get("missing_keys", ()) if "pooler" not in k)  # not used here
        if missing:
            raise UserError(f"{name} lacks {len(missing)} tensors that its config asks for, among them {missing[0]}.")
        return restore(model).eval(), where
    return load_model(where).eval(), where


def _is_encoder(place: str | Path) -> bool:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
    except Exception:  # load_model will say what is wrong
        return False
    return config.model_type in ENCODERS and not getattr(config, "is_decoder", False)


def read_text(path: str) -> str:
    """The text of a file."""
    text = text_of(path)
    if not text.strip():
        raise UserError(f"{path} is empty: there is nothing to look at.")
    return text


def tokens(tokenizer: Any, text: str, limit: int) -> Tensor:
    """At most ``limit`` tokens, (1, T), and no more of the text than that can be."""
    import torch

    ids = tokenizer(text[: 64 * limit], verbose=False)["input_ids"][:limit]
    return torch.tensor([ids], dtype=torch.long)


def longest(model: PreTrainedModel, limit: int) -> int:
    """``limit``, or what the model has positions for."""
    positions = getattr(model.config, "max_position_embeddings", None) or limit
    if model.config.model_type in ("roberta", "xlm-roberta"):
        positions -= 2  # its positions start at 2
    return min(limit, positions)


def split(ids: Tensor, limit: int, path: str) -> tuple[Tensor, Tensor | None]:
    """The first ``limit`` tokens, and up to as many after them, if enough for a calibration."""
    from .inspection import SHORTEST

    if ids.shape[1] < SHORTEST:
        raise UserError(f"{path} is too short: {ids.shape[1]} tokens, and at least {SHORTEST} are needed.")
    rest = ids[:, limit : 2 * limit]
    return ids[:, :limit], rest if rest.shape[1] >= 4 * SHORTEST else None


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
        print("Centring is left out: it would change what this model computes.", file=sys.stderr)
        return "none"
    if rest is None:
        print(
            "Centring is left out: the file has no text left to calibrate it on (give --calibrate FILE).",
            file=sys.stderr,
        )
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
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        tasks: dict[str, TaskID] = {}

        def tick(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield tick
