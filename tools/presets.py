"""Trains every preset with one recipe, packs the runs into results/presets, and writes their table, results/presets/README.md.

python tools/presets.py            train what is missing, pack, write (the same command again continues)
python tools/presets.py --table    write the table from what is packed

The plan is results/presets/sweep.yaml. ``softmax-rnn sweep`` starts a process for each run; so short a run takes less time than that, so
here they follow one another in this process.
"""

import argparse
import math
import os
import statistics
import sys
from pathlib import Path

import torch

from softmax_rnn.lab.model import ModelConfig, check_model
from softmax_rnn.lab.store import Run, is_packed, pack, read_packed
from softmax_rnn.lab.sweep import ENDED, read_sweep, status
from softmax_rnn.lab.train import train
from softmax_rnn.nn import Attention
from softmax_rnn.state import readable_bytes

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results" / "presets"


def run_all() -> None:
    """Train what has not ended and is not packed."""
    there = {run.folder.name for run in read_packed(FOLDER)} if is_packed(FOLDER) else set()
    todo = [run for run in read_sweep(FOLDER / "sweep.yaml") if run.folder.name not in there]
    for number, run in enumerate(todo):
        if status(run) not in ENDED:
            outcome = train(run, quiet=True)
            print(f"{number + 1}/{len(todo)} {run.folder.name}: {outcome.ending}", flush=True)
            if outcome.ending not in ENDED:
                sys.exit(outcome.message)
    if todo:
        pack(Path(todo[0].run.root), FOLDER)


def state_bytes(mechanism: str, model: dict) -> str:
    """What one layer remembers of one sequence: the same after any text, or so much after 128 tokens and growing."""
    layer = Attention(model["hidden_size"], model["num_attention_heads"], mechanism)
    with torch.no_grad():
        sizes = [layer(torch.randn(1, T, model["hidden_size"]), return_state=True)[1].nbytes for T in (128, 256)]
    return readable_bytes(sizes[0]) + ("" if sizes[0] == sizes[1] else " after 128 tokens, and growing")


def table(runs: list[Run]) -> str:
    """A line per preset, the lowest loss without a convolution first."""
    losses = {}
    for run in runs:
        cell = run.config["model"]["mechanism"], run.config["model"]["overrides"]["conv"]
        losses[cell] = math.inf if run.status == "diverged" else run.last("test_loss")
    names = sorted({name for name, _ in losses}, key=lambda name: (losses[name, 0], name))
    model, lines = runs[0].config["model"]["overrides"], []
    for name in names:
        cells = " | ".join(loss(losses.get((name, conv))) for conv in (0, 2))
        lines.append(f"| `{name}` | {cells} | {parameters(name, runs[0]):,} | {state_bytes(name, model)} |")
    return "\n".join([HEAD.format(**about(runs)), *lines, ""])


HEAD = """# Every preset, one recipe

Made by `python tools/presets.py` from the runs packed here ([the plan](sweep.yaml)).

{steps} steps of {batch} rows of {length} tokens of the corpus `{source}`, width {hidden_size}, {num_hidden_layers} layers,
{num_attention_heads} heads, learning rate {lr}, one seed; {runs} runs of about {seconds:.0f} seconds each on one thread of a busy machine.
**All of them are far from trained**, the learning rate was chosen for none of them, and there is one seed: the table shows that every
preset trains from the command line, how fast it begins, and what it remembers, not which is best. The convolution starts as the identity,
and in so few steps has hardly moved.
Parameters are those of the whole model without the convolution; the state is one layer's for one sequence, in float32.

| preset | test loss | with conv 2 | parameters | state of a layer |
|---|---|---|---|---|"""


def about(runs: list[Run]) -> dict:
    """What all runs have in common, in words and numbers."""
    config = runs[0].config
    seconds = statistics.median(run.last("seconds") for run in runs)
    return config["train"] | config["data"] | config["model"]["overrides"] | {"runs": len(runs), "seconds": seconds}


def parameters(mechanism: str, run: Run) -> int:
    """Of the whole model, without the convolution."""
    overrides = run.config["model"]["overrides"] | {"conv": 0}
    return check_model(
        ModelConfig(mechanism, run.config["model"]["size"], overrides),
        run.config["tokenizer"]["vocab"],
        run.config["data"]["length"],
    )


def loss(found: float | None) -> str:
    """As a cell."""
    return "not run" if found is None else "diverged" if found == math.inf else f"{found:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="train nothing")
    if not parser.parse_args().table:
        os.chdir(ROOT)
        run_all()
    (FOLDER / "README.md").write_text(table(read_packed(FOLDER)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
