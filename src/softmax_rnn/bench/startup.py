"""``bench startup``: how long until the first line of yours runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .measure import Record, Work, interleave


def _python(code: str) -> Work:
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def run(quick: bool = False) -> Iterator[Record]:
    """Importing the library and using a name of it, against importing torch; and the command's help."""
    script = str(Path(sys.executable).with_name("softmax-rnn"))
    work = {
        "torch": _python("import torch"),
        "ours": _python("import softmax_rnn; softmax_rnn.attention"),
        "help": lambda: subprocess.run([script, "--help"], check=True, capture_output=True),
    }
    t = interleave(work, 1 if quick else 7)
    yield Record(
        "import softmax_rnn",
        "and touch attention",
        "-",
        "import torch",
        t["ours"].best,
        t["torch"].best,
        "s",
        1.1,
        t["ours"].spread,
    )
    yield Record("softmax-rnn --help", "", "-", "0.5 s", t["help"].best, 0.5, "s", 1.0, t["help"].spread)
