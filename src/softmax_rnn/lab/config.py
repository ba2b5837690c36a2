"""What a run is: one dataclass per component, read from YAML and the command line.

    softmax-rnn train --preset laptop --config run.yaml --model.mechanism norm --train.steps 500 --print-config

Later wins: the preset, then the files, then the options. ``run`` says how and where the work is done, everything else what is computed:
the hash that names the folder covers the latter only, so a run may go on with other workers or processes, never another learning rate.

Presets are recipes: functions that return a complete configuration. To make one, copy a function and change two lines. ``paper`` is
appendix D with the details of the authors' training script that the appendix leaves out (eps, the horizon of the decay, evaluation
every 10,000 steps). The laptop recipes keep its optimiser and shrink the rest.

In Python ``configure`` begins with a preset (or another configuration) and changes it by keyword: an option by its own name where
only one option has it (``steps=100``), else in its group (``data={"source": "my.txt"}``) or dotted (``**{"data.source": "my.txt"}``).
"""

from __future__ import annotations

import hashlib
import json
import re
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from ..cli import Parser, import_plugins
from ..errors import UserError
from ..files import read_yaml
from .data import DataConfig
from .model import ModelConfig, is_gated
from .options import add_options, check_range, full_name, merge, nested_all, replaced, typed_options
from .tokenizer import TokenizerConfig

Tracker = Literal["none", "trackio", "tensorboard", "wandb"]
ADDED: dict[str, dict[str, Any]] = {  # since 0.1.0
    "model": {"init": None, "train": "all"},
    "data": {"masked": 0.0},
    "": {"plugins": []},
}
LONGEST_NAME = 255  # of a file, in bytes


@dataclass(frozen=True)
class TrainConfig:
    """What the optimiser does.

    Args:
        steps: optimiser steps.
        schedule_steps: where the linear decay reaches 0; the last step if not given.
        warmup: steps of linear warm-up from 0.
        lr: the highest learning rate.
        beta1: AdamW's decay of the mean gradient.
        beta2: AdamW's decay of the mean square.
        eps: AdamW's epsilon.
        weight_decay: AdamW's weight decay, not applied to norms and biases.
        clip: the largest norm of the gradient; 0 is no limit; gated is 1.0 for mechanisms with a gate and no limit for others,
            as in the paper.
        batch: rows per step, over all processes.
        precision: fp32, or bf16 for autocast.
        eval_every: steps between two evaluations on the test set; there is always one at the end.
        log_every: steps between two rows of training metrics.
    """

    steps: int = 300
    schedule_steps: int | None = None
    warmup: int = 30
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip: float | Literal["gated"] = "gated"
    batch: int = 16
    precision: Literal["fp32", "bf16"] = "fp32"
    eval_every: int = 100
    log_every: int = 10

    def __post_init__(self) -> None:
        often = (1, 10**12)
        check_range("train", self, steps=(1, 10**9), schedule_steps=often, warmup=(0, 10**12), batch=(1, 10**6))
        check_range("train", self, eval_every=often, log_every=often)
        check_range("train", self, lr=(1e-12, 1e6), eps=(1e-30, 1.0), weight_decay=(0.0, 1e6), clip=(0.0, 1e12))
        if self.schedule_steps is not None and self.schedule_steps < self.steps:
            raise UserError(
                f"train.schedule_steps ({self.schedule_steps}) must not be below train.steps ({self.steps})."
            )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"train.{name} must be at least 0 and below 1, got {getattr(self, name)}.")


@dataclass(frozen=True)
class RunSettings:
    """How and where the work is done; none of this enters the run's hash.

    Args:
        root: runs are folders <name>-<hash> in here.
        folder: the folder of this run; <name>-<hash> in root if not given.
        save_every: steps between two checkpoints; there is always one at the end.
        keep: how many checkpoints to keep.
        micro_batch: rows that one process computes at once; its whole share of the batch if not given.
        sharded: shard parameters, gradients and optimiser state over the processes (fully_shard).
        tracker: also report to trackio, tensorboard or wandb.
        patience: stop after this many consecutive steps whose loss is not finite.
        device: auto (a CUDA GPU if there is one, else the processor), cpu, cuda, or mps (Apple).
        threads: torch threads of each process; as many as torch chooses if not given.
        workers: extra processes that load data; usually none are needed.
        compile: train through torch.compile; the first step then takes long, and says how long.
    """

    root: str = "runs"
    folder: str | None = None
    save_every: int = 100
    keep: int = 2
    micro_batch: int | None = None
    sharded: bool = False
    tracker: Tracker = "none"
    patience: int = 10
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: int | None = None
    workers: int = 0
    compile: bool = False

    def __post_init__(self) -> None:
        check_range("run", self, save_every=(1, 10**12), keep=(1, 10**6), micro_batch=(1, 10**6))
        check_range("run", self, patience=(1, 10**9), threads=(1, 1024), workers=(0, 256))


@dataclass(frozen=True)
class RunConfig:
    """One training run.

    Args:
        name: the first part of the folder's name; mechanism and text if not given.
        seed: for the first weights and for the order of the training rows.
        plugins: modules of yours to import first, such as [my_module]; the mechanisms they register can be named.
    """

    name: str | None = None
    seed: int = 0
    plugins: list[str] = field(default_factory=list)
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        check_range("", self, seed=(0, 2**32 - 1))
        if self.name is not None and not (re.fullmatch(r"[\w.+-]+", self.name) and len(self.name.encode()) <= 200):
            raise UserError(f"name may have up to 200 letters, digits and . _ + -, got {self.name[:60]!r}.")

    @property
    def clip(self) -> float:
        """The gradient norm to clip at; 0 does not clip."""
        if self.train.clip != "gated":
            return float(self.train.clip)
        return 1.0 if any(map(is_gated, self.model.values())) else 0.0

    @cached_property
    def hash(self) -> str:
        """Names everything that decides the result."""
        return content_hash(asdict(self))

    @cached_property
    def folder(self) -> Path:
        """Where the run lives: ``runs/<name>-<hash>``."""
        if self.run.folder is not None:
            return Path(self.run.folder)
        corpus = re.sub(r"[^\w.]+", "-", Path(self.data.source).stem.strip("*")).strip("-") or "text"
        name = self.name or f"{self.model.label}-{corpus}"
        while len(name.encode()) > LONGEST_NAME - 11:  # a text with a long name
            name = name[:-1]
        return Path(self.run.root) / f"{name}-{self.hash}"


def content_hash(config: dict[str, Any]) -> str:
    """The hash of a configuration given as plain data."""
    what = {key: value for key, value in config.items() if key not in ("run", "name")}
    for group, added in ADDED.items():  # what older editions did not have, and is not used, does not count
        options = what if group == "" else what.get(group)
        if isinstance(options, dict):
            kept = {k: v for k, v in options.items() if k not in added or v != added[k]}
            what = kept if group == "" else what | {group: kept}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:10]


def to_yaml(config: RunConfig) -> str:
    """As ``--config`` reads it."""
    return yaml.safe_dump(asdict(config), sort_keys=False)


def laptop() -> RunConfig:
    """A few minutes on two cores: Python's library, a vocabulary of 4,096, rows of 256 tokens."""
    return RunConfig(
        data=DataConfig("stdlib", length=256, test_fraction=0.01),
        tokenizer=TokenizerConfig("bpe", 4096),
        model=ModelConfig("softmax", "nano"),
        train=TrainConfig(steps=300, warmup=30, lr=1e-3, batch=16, eval_every=100, log_every=10),
        run=RunSettings(save_every=50),
    )


def tiny() -> RunConfig:
    """Seconds: to see that everything works."""
    return RunConfig(
        data=DataConfig("tunes", length=64, test_fraction=0.02),
        tokenizer=TokenizerConfig("bpe", 512),
        model=ModelConfig(
            "softmax",
            "nano",
            {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2},
        ),
        train=TrainConfig(steps=20, warmup=4, lr=3e-3, batch=4, eval_every=10, log_every=2),
        run=RunSettings(save_every=10),
    )


def paper() -> RunConfig:
    """Appendix D: 300M parameters, batch 36 of 1,024 tokens, FineWeb, 100,000 steps of a decay that would take 1,000,000."""
    return RunConfig(
        data=DataConfig("fineweb", length=1024, batching="documents", test_fraction=0.001, max_tokens=4_000_000_000),
        tokenizer=TokenizerConfig("meta-llama/Llama-2-7b-hf"),
        model=ModelConfig("softmax", "small"),
        train=TrainConfig(
            steps=100_000,
            schedule_steps=1_000_000,
            warmup=10_000,
            lr=1e-4,
            beta1=0.9,
            beta2=0.999,
            eps=1e-7,
            weight_decay=0.01,
            clip="gated",
            batch=36,
            precision="bf16",
            eval_every=10_000,
            log_every=100,
        ),
        run=RunSettings(save_every=1_000),
    )


def paper_large() -> RunConfig:
    """As ``paper``, with the 2B model, sharded over the processes."""
    base = paper()
    return replace(base, model=replace(base.model, size="large"), run=replace(base.run, sharded=True, micro_batch=9))


def paper_long() -> RunConfig:
    """As ``paper``, with rows of 4,096 tokens."""
    base = paper()
    return replace(base, data=replace(base.data, length=4096), run=replace(base.run, micro_batch=6))


RECIPES: dict[str, Callable[[], RunConfig]] = {
    "laptop": laptop,
    "tiny": tiny,
    "paper": paper,
    "paper-large": paper_large,
    "paper-long": paper_long,
}


def recipe(name: str) -> RunConfig:
    """The recipe of that name.

    >>> recipe("paper").train.lr
    0.0001
    """
    if not isinstance(name, str) or name not in RECIPES:
        raise UserError(f"Unknown preset {name!r}; known are {', '.join(RECIPES)}.")
    return RECIPES[name]()


def parse(argv: list[str]) -> RunConfig:
    """The configuration that the command line asks for. ``--help`` and ``--print-config`` print and exit.

    >>> parse(["--preset", "tiny", "--model.mechanism", "norm"]).model.mechanism
    'norm'
    """
    typed, rest = command_line().parse_known_args(argv)
    values: dict[str, Any] = {}
    preset: Any = None
    for path in typed.config:
        content = read_yaml(path)
        if not isinstance(content, dict):
            raise UserError(f"{path} must hold options, such as train: {{steps: 500}}.")
        preset = content.pop("preset", preset)
        merge(values, content)
    merge(values, typed_options(typed, rest, RunConfig))
    config = build(values, preset if typed.preset is None else typed.preset)
    if typed.print_config:
        print(to_yaml(config), end="")
        raise SystemExit(0)
    return config


def from_dict(values: Mapping[str, Any], preset: Any = "laptop") -> RunConfig:
    """A configuration from nested plain data over a preset; unknown keys and bad values raise ``UserError``.

    >>> from_dict({"train": {"steps": 5}}).train.steps
    5
    """
    return build(nested_all(values), preset)


def configure(base: str | RunConfig = "laptop", **options: Any) -> RunConfig:
    """A configuration: a preset's (also ``preset="tiny"``), or another one's, with some options changed; all are checked.

    >>> configure("tiny", mechanism="norm", steps=100, data={"source": "sotu"}).train.steps
    100
    """
    base = options.pop("preset", base)
    changes = {full_name(name, RunConfig): value for name, value in options.items()}
    if not isinstance(base, RunConfig):
        return from_dict(changes, base)
    merge(values := asdict(base), changes)
    return from_dict(values)


def build(values: dict[str, Any], preset: Any) -> RunConfig:
    """Plain data over a recipe, every name and value checked."""
    config = replaced(recipe("laptop" if preset is None else preset), values)
    import_plugins(config.plugins)
    config.model.values()  # here, not when it is made: that would import torch for --help
    return config


def command_line() -> ArgumentParser:
    """The parser of ``softmax-rnn train``; its help shows the values of the preset laptop."""
    parser = Parser(
        prog="softmax-rnn train",
        usage="softmax-rnn train [--preset NAME] [--config FILE] [--OPTION VALUE ...]",
        description="Train a model. Stop it in any way you like: the same command continues where it stopped.",
        allow_abbrev=False,
        argument_default=SUPPRESS,
    )
    names = ", ".join(RECIPES)
    parser.add_argument("--config", action="append", default=[], metavar="FILE", help="a YAML file with options")
    parser.add_argument("--preset", default=None, metavar="NAME", help=f"the recipe to start from: {names} (laptop)")
    parser.add_argument(
        "--print-config", "--print_config", action="store_true", default=False, help="print the configuration and stop"
    )
    add_options(parser, RunConfig, asdict(recipe("laptop")))
    return parser
