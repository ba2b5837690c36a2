"""``softmax-rnn bench``: measure, print a table, write JSON and pictures.

softmax-rnn bench all --json results/bench/bench.json --plot results/bench

A single part with ``--json`` replaces its own records in that file and keeps the others: each is a ratio within one run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cli import Parser
from ..errors import UserError

if TYPE_CHECKING:  # torch is imported when there is something to measure
    from .measure import Record

PARTS = ("ops", "decode", "train", "memory", "startup")


def environment(threads: int) -> dict[str, Any]:
    """The machine and the versions, so that a record says where it is from."""
    import torch

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
        "system": platform.platform(),
        "date": time.strftime("%Y-%m-%d"),
    }


def row(r: Record) -> str:
    """One record as a line."""
    value = f"{r.ours * 1e3:10.2f} ms" if r.unit == "s" else f"{r.ours:10.1f} {r.unit}"
    goal = "" if r.target is None else f"<= {r.target:.2f}  {'met' if r.met else 'MISSED'}"
    share = "" if r.share_of_matmul is None else f"{r.share_of_matmul:4.0%} of matmul"
    name = f"{r.name:<40} {r.shape:<44} {r.dtype:<9}"
    return f"{name} {value}   {r.ratio:6.2f}x {r.anchor_name:<28} {goal:<16} {share}".rstrip()


def measure(parts: list[str], quick: bool) -> Iterator[tuple[str, Record]]:
    """The records of the given parts, as they come."""
    for part in parts:
        for record in importlib.import_module(f"softmax_rnn.bench.{part}").run(quick):
            yield part, record


def others(path: Path, parts: list[str], about: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of other parts that the file has already, if they are from this machine and these versions."""
    if not path.exists():
        return []
    there = json.loads(path.read_text())
    same = ("cpu", "cores", "threads", "python", "torch")
    if any(there["environment"].get(key) != about[key] for key in same):
        return []
    return [record for record in there["records"] if record["part"] not in parts]


def write(path: Path, records: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """All records as JSON, in the order of the parts, replacing the file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    data = {"environment": about, "records": sorted(records, key=lambda r: PARTS.index(r["part"]))}
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(path)


def main(argv: list[str]) -> int:
    """Run the parts asked for."""
    parser = Parser("softmax-rnn bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "all"])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records there")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="write pictures there")
    parser.add_argument("--threads", type=int, default=2, help="for torch (default: 2)")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: checks the machinery, the numbers mean nothing"
    )
    options = parser.parse_args(argv)
    if options.threads < 1:
        raise UserError(f"--threads must be at least 1, got {options.threads}.")
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    about = environment(options.threads) | {"command": "softmax-rnn bench " + " ".join(argv)}
    print(
        f"{about['cpu']}, {about['threads']} threads, torch {about['torch']}; ratios are ours / anchor in one interleaved run\n"
    )
    parts = list(PARTS) if options.part == "all" else [options.part]
    records = others(options.json, parts, about) if options.json else []
    for part, record in measure(parts, options.quick):
        records.append({"part": part, **record.to_dict()})
        print(row(record), flush=True)
        if options.json:
            write(options.json, records, about)
    met = [r["met"] for r in records]
    print(f"\n{met.count(True)} targets met, {met.count(False)} missed")
    if options.plot:
        from .plots import draw

        for path in draw(records, options.plot):
            print(f"wrote {path}")
    return 0
