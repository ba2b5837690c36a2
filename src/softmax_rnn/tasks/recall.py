"""``softmax-rnn recall``: train small models on tasks and say how many answers are right, by mechanism and by size of the state.

    softmax-rnn recall                                                         MQAR with 16 pairs: linear, orders 2 and 4, softmax, norm
    softmax-rnn recall mqar forgetting --pairs 8 16 --orders 1 2 4 --key-dim 8 16 --seeds 3 --jobs 2

Every combination is trained at several learning rates, and the best one counts (the highest mean accuracy over the seeds): recurrent
models learn such tasks at some rates and not at others, so that a single rate would measure luck. Every run is an ordinary run of the
lab; the same command again continues what was stopped. Intervals are 95% over the seeds.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cli import Parser, decimal, whole
from ..errors import UserError
from . import TASKS, Task, task
from .findings import Cell, Result, draw, table, write

if TYPE_CHECKING:
    from ..lab.config import RunConfig

FIRST = ("linear_elu", "taylor1_norm", "taylor2_norm", "taylor3_norm", "taylor4_norm", "norm", "softmax")
FIRST_STEPS = 300
MECHANISMS = ("linear_elu", "softmax", "norm")
ORDERS = (2, 4)
BATCH = 64


@dataclass(frozen=True)
class Setting:
    """The model and its training, the same for all cells."""

    steps: int
    layers: int
    hidden: int
    heads: int
    conv: int
    rope: bool
    rates: tuple[float, ...]
    seeds: int
    out: Path

    def config(self, cell: Cell, lr: float, seed: int) -> RunConfig:
        """One run of the lab."""
        from ..lab.config import from_dict

        sizes = {
            "hidden_size": self.hidden,
            "intermediate_size": 2 * self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.hidden // self.heads,  # of the values
            "key_dim": cell.key_dim,
            "rope": self.rope,
            **({"conv": self.conv} if self.conv and not cell.task.both_sides else {}),
        }
        schedule = {
            "steps": self.steps,
            "warmup": self.steps // 10,
            "eval_every": max(1, self.steps // 4),
            "log_every": max(1, self.steps // 20),
        }
        values = {
            "seed": seed,
            "data": {"source": cell.source, "length": cell.length},
            "model": {"mechanism": cell.mechanism, "overrides": sizes},
            "train": {**schedule, "lr": lr, "batch": BATCH, "clip": 1.0},
            "run": {
                "root": str(self.out / "runs"),
                "save_every": self.steps,
                "threads": 1,
            },  # so small a model has no work for two
        }
        return from_dict(values, "tiny")


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    from ..files import check_folder
    from ..lab.sweep import run_all

    options = _parser().parse_args(argv)
    cells, setting = plan(options)
    for cell in cells:
        _model(cell, setting)  # one that cannot be built is refused before anything is written
    if options.dry_run:
        count = len(cells) * len(setting.rates) * setting.seeds
        print(f"{len(cells)} models x {len(setting.rates)} learning rates x {setting.seeds} seeds: {count:,} runs.")
        return 0
    check_folder(setting.out, "--out")
    code = run_all(configs(cells, setting), options, name="recall")
    if options.slurm or code not in (0, 1):  # submitted, or stopped
        return code
    found = [collect(cell, setting) for cell in cells]
    done = [result for result in found if result is not None]
    for line in table(done):
        print(line)
    if len(done) < len(cells):
        print(f"{len(cells) - len(done)} of {len(cells)} models have no finished run.")
    if done:
        about = {
            **asdict(setting),
            "out": str(setting.out),
            "batch": BATCH,
            "command": "softmax-rnn recall " + " ".join(argv),
        }
        print(write(done, about, setting.out / "recall.json"))
        print(draw(done, setting.out / "recall.svg"))
    return code


def _parser() -> argparse.ArgumentParser:
    from ..lab.sweep import add_options

    p = Parser("softmax-rnn recall", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "tasks",
        nargs="*",
        default=["mqar"],
        metavar="TASK",
        help=f"{', '.join(TASKS)} (default: mqar); sizes as in mqar,vocab=512",
    )
    p.add_argument(
        "--mechanisms",
        nargs="+",
        metavar="NAME",
        help=f"as softmax-rnn list shows them (default: {' '.join(MECHANISMS)})",
    )
    p.add_argument(
        "--orders",
        nargs="+",
        type=whole(0, 20),
        metavar="N",
        help="Taylor series of these orders (default: 2 4); odd orders use a norm, not a sum: their weights can be negative",
    )
    p.add_argument(
        "--key-dim",
        nargs="+",
        type=whole(2, 1024),
        default=[16],
        metavar="D",
        help="width of a head's keys (default: 16); its values are as wide as the model",
    )
    p.add_argument(
        "--pairs", nargs="+", type=whole(1, 2**16), metavar="N", help="pairs of key and value in a row (default: 16)"
    )
    p.add_argument(
        "--length",
        type=whole(2, 2**16),
        metavar="T",
        help="tokens per row (default: the task's own, or what its pairs need)",
    )
    p.add_argument(
        "--lr",
        nargs="+",
        type=decimal(1e-6, 1.0),
        default=[3e-3, 1e-2],
        help="learning rates to try (default: 0.003 0.01)",
    )
    p.add_argument("--seeds", type=whole(1, 1000), default=3, help="how many (default: 3)")
    p.add_argument("--steps", type=whole(1, 10**9), default=1000, help="of training, 64 rows each (default: 1000)")
    p.add_argument("--layers", type=whole(1, 1000), default=2, help="of the model (default: 2)")
    p.add_argument("--hidden", type=whole(2, 2**16), default=64, help="width of the model (default: 64)")
    p.add_argument("--heads", type=whole(1, 1024), default=1, help="per layer (default: 1)")
    p.add_argument(
        "--conv",
        type=whole(0, 64),
        default=3,
        help="width of the short convolution on q, k and v; 0 has none (default: 3)",
    )
    p.add_argument(
        "--no-rope",
        action="store_true",
        help="without rotary positions; a convolution or decay then tells the order of the tokens",
    )
    p.add_argument(
        "--out",
        type=Path,
        default=Path("out/recall"),
        metavar="DIR",
        help="where runs and results go (default: out/recall)",
    )
    add_options(p, jobs=os.cpu_count() or 1)
    return p


def plan(options: argparse.Namespace) -> tuple[list[Cell], Setting]:
    """What to compare; names, sizes and lengths that do not fit are refused here."""
    from .. import mechanism

    names = list(options.mechanisms or ()) if options.mechanisms or options.orders else list(MECHANISMS)
    orders = ORDERS if options.orders is None and not options.mechanisms else options.orders or ()
    names += [f"taylor{n}" if n % 2 == 0 else f"taylor{n}_norm" for n in orders]
    for name in names:
        mechanism(name)
    cells = []
    for source in _sources(options.tasks, options.pairs):
        chosen = task(source)
        length = options.length or _length(chosen)
        chosen.check(length)
        cells += [
            Cell(source, length, name, d) for name, d in product(dict.fromkeys(names), dict.fromkeys(options.key_dim))
        ]
    rates = tuple(sorted(set(options.lr)))
    setting = Setting(
        options.steps,
        options.layers,
        options.hidden,
        options.heads,
        options.conv,
        not options.no_rope,
        rates,
        options.seeds,
        options.out,
    )
    return cells, setting


def first(out: Path) -> tuple[list[Cell], Setting]:
    """What a newcomer sees: recall between linear attention and softmax, order by order, in a minute of two cores."""
    source = "task:mqar,pairs=8,vocab=64,rows=19200"
    setting = Setting(FIRST_STEPS, 2, 32, 1, 2, False, (3e-3, 1e-2), 1, out)
    return [Cell(source, 32, name, 8) for name in FIRST], setting


def configs(cells: Sequence[Cell], setting: Setting) -> list[RunConfig]:
    """All runs of the cells."""
    return [setting.config(*one) for one in product(cells, setting.rates, range(setting.seeds))]


def _sources(tasks: Sequence[str], pairs: Sequence[int] | None) -> list[str]:
    """Tasks with their sizes, as the lab names them; ``--pairs`` for those that have pairs and do not say how many."""
    found = []
    for text in tasks:
        has_pairs = hasattr(task(text), "pairs") and "pairs=" not in text
        if pairs and not has_pairs:
            raise UserError(f"The task {text} has no --pairs, or says itself how many.")
        for n in dict.fromkeys(pairs or [16]) if has_pairs else [None]:
            found.append(f"task:{text}" if n is None else f"task:{text},pairs={n}")
    for source in found:
        task(source)
    return list(dict.fromkeys(found))


def _length(chosen: Task) -> int:
    """The task's own length, or the next power of two that everything fits in."""
    return chosen.shortest if chosen.both_sides else max(chosen.length, 1 << (chosen.shortest - 1).bit_length())


def _model(cell: Cell, setting: Setting) -> Any:
    from ..lab.model import build_model
    from .base import tokenizer

    config = setting.config(cell, setting.rates[0], 0)
    return build_model(config.model, tokenizer(cell.task.vocabulary), cell.length, 0, cell.task.both_sides)


def state_bytes(cell: Cell, setting: Setting, length: int) -> int | None:
    """Bytes that one layer remembers after so many tokens of one row, measured on the model's cache; a model of both sides has none."""
    import torch

    from ..models.cache import cache_bytes

    if cell.task.both_sides:
        return None
    model = _model(cell, setting).eval()
    with torch.no_grad():
        cache = model(torch.zeros(1, length, dtype=torch.long), use_cache=True).past_key_values
    return cache_bytes(cache) // setting.layers


def collect(cell: Cell, setting: Setting) -> Result | None:
    """What the runs of a cell say; None if no learning rate has all of its seeds."""
    found = {lr: [_accuracies(setting.config(cell, lr, seed)) for seed in range(setting.seeds)] for lr in setting.rates}
    whole = {lr: [x for x in seeds if x is not None] for lr, seeds in found.items() if None not in seeds}
    if not whole:
        return None
    lr = max(whole, key=lambda rate: statistics.fmean(x[cell.length] for x in whole[rate]))
    mean, low, high = _interval([x[cell.length] for x in whole[lr]])
    longer = {n: statistics.fmean(x[n] for x in whole[lr]) for n in cell.task.longer(cell.length)}
    here, later = (state_bytes(cell, setting, n * cell.length) for n in (1, 2))
    rates = {rate: [x[cell.length] for x in seeds] for rate, seeds in whole.items()}
    return Result(cell, lr, mean, low, high, longer, here, here == later, rates)


def _accuracies(config: RunConfig) -> dict[int, float] | None:
    """Accuracy by length of a finished run; 0 for one that diverged; None for one that has not ended."""
    from ..lab.run import find_run

    run = find_run(config.folder)
    if run is None or not run.ended:
        return None
    length, bad = config.data.length, run.status == "diverged"
    names = {length: "test_accuracy", **{n: f"test_accuracy_{n}" for n in task(config.data.source).longer(length)}}
    return {n: 0.0 if bad else float(run.last(name)) for n, name in names.items()}


def _interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean and 95% interval, within 0 and 1; no interval for a single seed."""
    from ..paper.intervals import interval

    mean, low, high = interval(values)
    return (mean, None, None) if len(values) == 1 else (mean, max(0.0, low), min(1.0, high))
