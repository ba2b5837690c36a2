"""The command ``softmax-rnn``: a table of subcommands, each imported only when called, so that ``--help`` is instant.

A subcommand is a function ``main(argv: list[str]) -> int``. Wrong input raises ``UserError`` or ``MechanismError``:
one line on stderr, exit code 2, nothing written.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import NoReturn

from .errors import MechanismError, UserError

COMMANDS = {
    "list": ("softmax_rnn.listing", "mechanisms, model sizes (--sizes), finished runs (--runs)"),
    "train": ("softmax_rnn.lab.train", "train a model with any mechanism"),
    "sweep": ("softmax_rnn.lab.sweep", "train a grid of them, on this machine or on SLURM"),
    "reproduce": ("softmax_rnn.paper.reproduce", "the paper's figures and claims: train, judge, draw, report"),
    "report": ("softmax_rnn.paper.report", "verdicts, figures and an offline page from what was reproduced"),
    "inspect": ("softmax_rnn.microscope.command", "how many Taylor orders a trained model uses on a text"),
    "bench": ("softmax_rnn.bench.main", "measure speed and memory side by side with what people use instead"),
    "generate": ("softmax_rnn.generate", "write text with a trained model, token by token"),
}


class Parser(argparse.ArgumentParser):
    """argparse for subcommands, except that a wrong option is a ``UserError`` like everything else that is wrong."""

    def error(self, message: str) -> NoReturn:
        """One line, exit code 2, as ``main`` does it."""
        raise UserError(message)


def _help() -> str:
    lines = [
        "usage: softmax-rnn COMMAND [options]      softmax-rnn COMMAND --help",
        "",
        "Softmax attention as a sum of RNNs.",
        "",
    ]
    lines += [f"  {name:<10} {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"softmax-rnn {version('softmax-rnn')}")
        return 0
    if argv[0] not in COMMANDS:
        print(f"softmax-rnn: unknown command {argv[0]!r}; commands are {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    try:
        return int(importlib.import_module(COMMANDS[argv[0]][0]).main(argv[1:]) or 0)
    except (MechanismError, UserError) as error:
        print(f"softmax-rnn {argv[0]}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"softmax-rnn {argv[0]}: stopped.", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("softmax_rnn"):
            raise
        print(
            f"softmax-rnn {argv[0]}: needs the package {error.name}: pip install 'softmax-rnn[lab,report]'",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
