"""The command ``softmax-rnn``: a table of subcommands, each imported only when called, so that ``--help`` is instant.

A subcommand is a function ``main(argv: list[str]) -> int``. Whatever a user can cause ends here, as one line on stderr and exit
code 2 (``errors.sentence``); a traceback is a defect of ours.
"""

from __future__ import annotations

import argparse
import importlib
import io
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from .errors import UserError, printable, sentence

COMMANDS = {
    "list": ("softmax_rnn.listing", "mechanisms, model sizes (--sizes), finished runs (--runs)"),
    "train": ("softmax_rnn.lab.train", "train a model with any mechanism"),
    "sweep": ("softmax_rnn.lab.sweep", "train a grid of models, on this machine or on SLURM"),
    "recall": (
        "softmax_rnn.tasks.recall",
        "compare how much mechanisms recall, and how large a state they need for it, on generated tasks",
    ),
    "frontier": (
        "softmax_rnn.frontier",
        "compare quality with the memory and work it takes, and test claims about expressiveness",
    ),
    "reproduce": ("softmax_rnn.paper", "the paper's figures and claims: train, judge, draw, report"),
    "report": ("softmax_rnn.report", "an offline page from any runs: curves, tables, the paper's verdicts"),
    "pack": ("softmax_rnn.lab.store", "put finished runs into a few files, to keep or commit"),
    "inspect": ("softmax_rnn.microscope", "how many Taylor orders a trained model uses on a text"),
    "bench": ("softmax_rnn.bench.main", "measure speed and memory side by side with what people use instead"),
    "generate": ("softmax_rnn.generate", "write text with a trained model, token by token"),
    "export": ("softmax_rnn.export", "a clean folder with one model, to give away or push to a hub"),
}
STOPPED = 130


class Parser(argparse.ArgumentParser):
    """argparse for subcommands, except that a wrong option is a ``UserError`` like everything else that is wrong."""

    def error(self, message: str) -> NoReturn:
        """One line, exit code 2, as ``main`` does it."""
        left = message.removeprefix("unrecognized arguments: ")
        if left != message and not left.startswith("-"):
            message += " (one too many: does a pattern such as runs/name-* match several runs?)"
        raise UserError(message)

    def format_help(self) -> str:
        """Descriptions are docstrings, whose markup is not for the terminal."""
        return super().format_help().replace("``", "")


def whole(least: int, most: int = 10**12) -> Callable[[str], int]:
    """The type of an option that takes a whole number in a range.

    >>> whole(1)("3")
    3
    """

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most:,}, got {text[:40]!r}")
        return value

    return number


def decimal(least: float, most: float) -> Callable[[str], float]:
    """The type of an option that takes a number in a range; nan and inf are none.

    >>> decimal(0, 1)("0.5")
    0.5
    """

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a number from {least:g} to {most:g}, got {text[:40]!r}")
        return value

    return number


def notice(text: str) -> None:
    """A word to the person at a terminal, before something that takes seconds; programs that read our output get none.

    >>> notice("loading torch")
    """
    if sys.stderr.isatty():
        print(printable(f"{text} ..."), file=sys.stderr, flush=True)


def quieten() -> None:
    """Our sentences and bars are the output of a command; Hugging Face's chatter is not. Call it before anything of theirs is used."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is first imported
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # or it warns of every fork
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def place_of(model: str) -> str | Path:
    """Where a model that was named is: ``smollm2`` is the file in the installed package."""
    if model != "smollm2":
        return model
    from .models import smollm2_path

    return smollm2_path()


def import_plugins(names: list[str]) -> None:
    """Import the user's own modules, also from the working folder; their mechanisms can then be named."""
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UserError(f"--plugins takes names of Python modules such as my_module, got {name!r}.")
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            importlib.import_module(name)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"The plugin {name} cannot be imported: {type(error).__name__}: {error}") from error


def _take_plugins(argv: list[str]) -> list[str]:
    """Import what ``--plugins A,B`` names; returns the other words. Processes that the command starts import the same."""
    rest: list[str] = []
    names = [name for name in os.environ.get("SOFTMAX_RNN_PLUGINS", "").split(",") if name]
    words = iter(argv)
    for word in words:
        if word == "--plugins" or word.startswith("--plugins="):
            value = word.partition("=")[2] if "=" in word else next(words, "")
            names += [name.strip() for name in value.strip("[] ").split(",")]
        else:
            rest.append(word)
    import_plugins(names)
    if names:
        os.environ["SOFTMAX_RNN_PLUGINS"] = ",".join(dict.fromkeys(names))
    return rest


def _help() -> str:
    lines = [
        "usage: softmax-rnn COMMAND [options]      softmax-rnn COMMAND --help",
        "",
        "Softmax attention as a sum of RNNs.",
        "",
    ]
    lines += [f"  {name:<10} {what}" for name, (_, what) in COMMANDS.items()]
    lines += [
        "",
        "Every command takes --plugins my_module: a module of yours that is imported first, for mechanisms of your own.",
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; returns the exit code."""
    if argv is None:
        argv = sys.argv[1:]
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without Σ is no reason to fail
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0
    if argv[0] == "--version":
        from . import __version__

        print(f"softmax-rnn {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"softmax-rnn: unknown command {printable(repr(argv[0]))}; commands are {known}.", file=sys.stderr)
        return 2
    return _run(argv[0], argv[1:])


def _run(name: str, argv: list[str]) -> int:
    """A subcommand, with everything that a user can cause turned into one line."""
    try:
        rest = _take_plugins(argv)
        argv = argv if name == "train" else rest  # a run keeps them in its configuration
        code = int(importlib.import_module(COMMANDS[name][0]).main(argv) or 0)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(f"softmax-rnn {name}: stopped.", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        said = sentence(error)
        if said is None:
            raise
        print(f"softmax-rnn {name}: {said}", file=sys.stderr)
        return 2
