"""What a plan costs before anything is run: parameters, tokens, FLOPs, hours, and the commands that would do it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..lab.config import RunConfig
from .scales import Cell, Scale

A100_FLOPS = 312e12  # dense bfloat16, NVIDIA's data sheet
UTILISATION = 0.4
GPUS: dict[str, int] = {"base": 2, "large": 4, "long": 6}  # as in appendix D
CORE_FLOPS = 17e9  # of one CPU core in training these small models, start-up included


@dataclass(frozen=True)
class Cost:
    """Of one run."""

    parameters: int
    tokens: int
    flops: float

    @property
    def gpu_hours(self) -> float:
        """On A100s at 40% of their peak."""
        return self.flops / (A100_FLOPS * UTILISATION) / 3600

    @property
    def core_minutes(self) -> float:
        """On a CPU core."""
        return self.flops / CORE_FLOPS / 60


def cost(config: RunConfig) -> Cost:
    """6 FLOPs for each parameter and token (the embedding is a table, and free), and 6 T for each channel of each layer's attention."""
    vocab = config.tokenizer.vocab if config.tokenizer.source == "bpe" else 32000
    settings = tuple(sorted(config.model.overrides.items()))
    parameters, hidden, layers = _shape(config.model.size, settings, vocab)
    tokens = config.train.steps * config.train.batch * config.data.length
    per_token = 6 * (parameters - vocab * hidden) + 6 * layers * hidden * config.data.length
    return Cost(parameters, tokens, float(per_token * tokens))


@lru_cache
def _shape(size: str, overrides: tuple[tuple[str, int], ...], vocab: int) -> tuple[int, int, int]:
    from ..models.sizes import SIZES

    shape = SIZES[size] | dict(overrides)
    hidden, mlp, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
    layer = 4 * hidden**2 + 3 * hidden * mlp + 2 * hidden
    return 2 * vocab * hidden + layers * layer + hidden, hidden, layers


def torchrun(scale: Scale, cell: Cell, root: Path) -> str:
    """The command of one run of the paper's scale, with the number of GPUs that the paper used."""
    config = scale.config(cell, root)
    size = cell.setting.size
    preset = {"base": "paper", "large": "paper-large", "long": "paper-long"}[size]
    options = {
        "preset": preset,
        "name": config.name,
        "seed": cell.seed,
        "data.source": cell.corpus,
        "model.mechanism": cell.mechanism,
        "run.root": config.run.root,
    }
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    return f"torchrun --nproc-per-node {GPUS[size]} -m softmax_rnn.lab.train {shlex.join(words)}"


def reproduce(figure: str, scale: Scale, out: Path, seeds: int, *more: str) -> str:
    """The command that makes a figure."""
    words = ["softmax-rnn", "reproduce", figure]
    words += [] if scale.name == "quick" else ["--scale", scale.name]
    words += [] if seeds == scale.seeds else ["--seeds", str(seeds)]
    return shlex.join([*words, "--out", str(out), *more])


def slurm(figure: str, scale: Scale, out: Path, seeds: int, size: str) -> str:
    """The command that queues the runs of one size as a job array."""
    return reproduce(figure, scale, out, seeds, "--size", size, "--slurm", "--minutes", "2880", "--partition", "NAME")
