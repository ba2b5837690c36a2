"""``softmax-rnn export RUN FOLDER``: a clean folder with one model, to give to a friend or to push to a hub.

It holds weights, config, tokenizer, the stub by which plain transformers finds this package, and a model card that says what
was trained, on what, and how well. Nothing of the training itself: no optimizer, no metrics, no paths of this machine.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cli import Parser, notice, place_of, quieten
from .errors import UserError, printable
from .files import writing

if TYPE_CHECKING:
    from .lab.run import Run


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(prog="softmax-rnn export", description=__doc__.split("\n\n")[0] if __doc__ else None)
    p.add_argument("run", help="a run, a checkpoint folder, or any model that generate opens")
    p.add_argument("folder", type=Path, help="where to write; must not exist, or be empty")
    p.add_argument("--name", help="the title of the model card (default: the run's name)")
    p.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code that lies beside the weights, if needed"
    )
    return p


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    args = parser().parse_args(argv)
    folder: Path = args.folder.expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder: give a new one.")
    notice(f"loading torch, transformers and {args.run}")
    quieten()
    from .models import load_model, load_tokenizer

    where = place_of(args.run)
    trust = {"trust_remote_code": args.trust_remote_code}
    model, tokenizer = load_model(where, **trust), load_tokenizer(where, **trust)
    run = _run(Path(where))
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
            _write(Path(place) / "model", model, tokenizer, args.name or Path(args.run).resolve().name, _facts(run))
            if folder.exists():
                folder.rmdir()
            shutil.move(Path(place) / "model", folder)  # whole, or not at all
    print(printable(f"{folder}: " + ", ".join(sorted(p.name for p in folder.iterdir()))))
    return 0


def _write(folder: Path, model: Any, tokenizer: Any, name: str, facts: dict[str, str]) -> None:
    from .models.config import SoftmaxRnnConfig
    from .models.folders import card, patched_card

    folder.mkdir()
    kind, count = type(model).__name__, model.num_parameters()
    text = card if isinstance(model.config, SoftmaxRnnConfig) else patched_card
    (folder / "README.md").write_text(text(model.config, kind, count, name, facts))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is said of a patched model stands in the card
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    mode = (folder / "README.md").stat().st_mode & 0o777
    for path in folder.iterdir():
        path.chmod(mode)  # safetensors makes its files private


def _run(where: Path) -> Run | None:
    """The run that a folder is, or that a checkpoint belongs to."""
    from .lab.run import read_run

    for folder in (where, where.parent):
        if (folder / "config.yaml").is_file():
            return read_run(folder)
    return None


def _facts(run: Run | None) -> dict[str, str]:
    """What the card says of the training: data, how long, how well."""
    if run is None:
        return {}
    tokens, losses = run.last("tokens"), {"train loss": run.last("train_loss"), "test loss": run.last("test_loss")}
    facts = {
        "data": run.option("data.source"),
        "training": f"{run.step:,} steps" + (f", {int(tokens):,} tokens" if tokens else "") + f" ({run.status})",
        **{what: f"{loss:.4f} nats per token" for what, loss in losses.items() if loss is not None},
        "seed": run.option("seed"),
    }
    return {key: str(value) for key, value in facts.items() if value is not None}
