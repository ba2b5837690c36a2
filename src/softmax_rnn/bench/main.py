"""``softmax-rnn bench``: measure, print a table, write JSON and pictures.

softmax-rnn bench all --json results/bench/bench.json --plot results/bench

softmax-rnn bench gpu --help         what a graphics card has to show

A single part with ``--json`` replaces its own entries in that file and keeps the others: each is a ratio within one run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cli import Parser, whole
from ..errors import UserError
from ..files import check_folder
from ..machine import keep_memory, mend_bfloat16

if TYPE_CHECKING:  # torch is imported when there is something to measure
    from .measure import Comparison

# The module and the function of each part: quick or not -> comparisons, as they come.
PARTS = {
    "ops": ("ops", "run"),
    "heads": ("ops", "heads"),
    "field": ("field", "run"),
    "decode": ("steps", "decode"),
    "train": ("steps", "train"),
    "memory": ("processes", "memory"),
    "startup": ("processes", "startup"),
}
QUICK = "Quick: the sizes are tiny and the numbers mean nothing, so no target was judged."


def main(argv: list[str]) -> int:
    """Run the parts asked for."""
    if argv[:1] == ["gpu"]:
        return int(importlib.import_module(".gpu", __package__).main(argv[1:]))
    parser = Parser("softmax-rnn bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "all"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements there")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write pictures there")
    parser.add_argument("--threads", type=whole(1, 1024), default=2, help="for torch (default: 2)")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that everything runs, the numbers mean nothing"
    )
    options = parser.parse_args(argv)
    for option, folder in (("--json", options.json and options.json.parent), ("--plot", options.plot)):
        if folder is not None:
            check_folder(folder, option)
    if mend_bfloat16():
        print("This machine announces AMX but stops programs that use it: bfloat16 is measured without it.")
    import torch

    keep_memory()  # as training does; all that takes turns here has it
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    about = environment(options.threads) | {"command": "softmax-rnn bench " + " ".join(argv)}
    machine = f"{about['cpu']}, {about['threads']} threads, torch {about['torch']}"
    print(f"{machine}; ratios are ours / anchor in one interleaved run\n")
    parts = list(PARTS) if options.part == "all" else [options.part]
    found = others(options.json, parts, about) if options.json else []
    for part, comparison in measure(parts, options.quick):
        found.append({"part": part, **comparison.to_dict()})
        print(comparison, flush=True)
        if options.json:
            write(options.json, found, about)
    met = [c["met"] for c in found]
    print(f"\n{QUICK}" if options.quick else f"\n{met.count(True)} targets met, {met.count(False)} missed")
    if options.plot:
        from .plots import draw

        for path in draw(found, options.plot):
            print(f"wrote {path}")
    return 0


def measure(parts: list[str], quick: bool) -> Iterator[tuple[str, Comparison]]:
    """The comparisons of the given parts, as they come; quick ones have no target."""
    for part in parts:
        module, function = PARTS[part]
        for comparison in getattr(importlib.import_module(f".{module}", __package__), function)(quick):
            yield part, replace(comparison, target=None) if quick else comparison


def environment(threads: int) -> dict[str, Any]:
    """The machine and the versions, so that a measurement says where it is from."""
    import torch

    from ..backends import native

    model = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "loops": native.describe(),
        "system": platform.platform(),
        "date": time.strftime("%Y-%m-%d"),
    }


def others(path: Path, parts: list[str], about: dict[str, Any]) -> list[dict[str, Any]]:
    """What the file has of other parts already, if it is from this machine and these versions."""
    if not path.exists():
        return []
    try:
        there = json.loads(path.read_text())
        where, entries = there["environment"], there["records"]
    except (OSError, ValueError, TypeError, KeyError):
        raise UserError(f"{path} is not a file that bench wrote: give another one with --json.") from None
    same = ("cpu", "cores", "threads", "python", "torch", "loops")
    if any(where.get(key) != about.get(key) for key in same):
        return []
    return [entry for entry in entries if entry["part"] not in parts]


def write(path: Path, found: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Everything as JSON, in the order of the parts, replacing the file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    data = {"environment": about, "records": sorted(found, key=lambda entry: list(PARTS).index(entry["part"]))}
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)
