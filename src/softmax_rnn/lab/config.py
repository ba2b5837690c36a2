"""What a run is: one dataclass per component, YAML, and the command line over it (jsonargparse).

    softmax-rnn train --preset laptop --config run.yaml --model.mechanism norm --train.steps 500 --print_config

Later wins: the preset, then the files, then the options. ``run`` says how and where the work is done, everything else what is
computed: the content hash that names the folder covers the latter only, so a run may go on with other workers, another tracker or
another number of processes, and never with another learning rate.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from ..errors import UserError
from .data import DataConfig
from .model import ModelConfig, is_gated
from .tokenizer import TokenizerConfig

Tracker = Literal["none", "trackio", "tensorboard", "wandb"]


@dataclass(frozen=True)
class TrainConfig:
    """What the optimiser does.

    Args:
        steps: optimiser steps.
        schedule_steps: where the linear decay reaches 0; the last step if not given.
        warmup: steps of linear warm-up from 0.
        lr: the highest learning rate.
        beta1: AdamW.
        beta2: AdamW.
        eps: AdamW.
        weight_decay: AdamW; not applied to norms and biases.
        clip: clip the gradient's norm at this; 0 does not; gated clips at 1.0 if the mechanism has a gate, else not (as the paper).
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
        _positive("train", self, "steps", "lr", "eps", "batch", "eval_every", "log_every")
        _not_negative("train", self, "warmup", "weight_decay", "clip")
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
        folder: this folder instead.
        save_every: steps between two checkpoints; there is always one at the end.
        keep: how many checkpoints to keep.
        micro_batch: rows that one process computes at once; its whole share of the batch if not given.
        sharded: shard parameters, gradients and optimiser state over the processes (fully_shard).
        tracker: also report to trackio, tensorboard or wandb.
        patience: stop after so many steps in a row with a loss that is not finite.
        device: auto takes a GPU if there is one.
        threads: of torch, per process.
        workers: processes that load data; the memory-mapped tokens need none.
    """

    root: str = "runs"
    folder: str | None = None
    save_every: int = 100
    keep: int = 2
    micro_batch: int | None = None
    sharded: bool = False
    tracker: Tracker = "none"
    patience: int = 10
    device: Literal["auto", "cpu"] = "auto"
    threads: int | None = None
    workers: int = 0

    def __post_init__(self) -> None:
        _positive("run", self, "save_every", "keep", "micro_batch", "patience", "threads")
        _not_negative("run", self, "workers")


@dataclass(frozen=True)
class RunConfig:
    """One training run."""

    name: str | None = None
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        _not_negative("", self, "seed")
        if self.name is not None and not re.fullmatch(r"[\w.+-]+", self.name):
            raise UserError(f"name may contain letters, digits and . _ + - only, got {self.name!r}.")

    @property
    def clip(self) -> float:
        """The gradient norm to clip at; 0 does not clip."""
        if self.train.clip != "gated":
            return float(self.train.clip)
        return 1.0 if is_gated(self.model.value()) else 0.0

    @property
    def hash(self) -> str:
        """Names everything that decides the result."""
        return content_hash(asdict(self))

    @property
    def folder(self) -> Path:
        """Where the run lives: ``runs/<name>-<hash>``."""
        if self.run.folder is not None:
            return Path(self.run.folder)
        corpus = re.sub(r"[^\w.]+", "-", Path(self.data.source).stem.strip("*")).strip("-") or "text"
        return Path(self.run.root) / f"{self.name or f'{self.model.label}-{corpus}'}-{self.hash}"


def content_hash(config: dict[str, Any]) -> str:
    """The hash of a configuration given as plain data."""
    what = {key: value for key, value in config.items() if key not in ("run", "name")}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:10]


def to_yaml(config: RunConfig) -> str:
    """As ``--config`` reads it."""
    return yaml.safe_dump(asdict(config), sort_keys=False)


def from_dict(values: dict[str, Any], preset: str = "laptop") -> RunConfig:
    """A configuration from nested plain data over a preset; unknown keys and bad values raise ``UserError``.

    >>> from_dict({"train": {"steps": 5}}).train.steps
    5
    """
    return _build(_parser(preset), lambda parser: parser.parse_object(values))


def parse(argv: list[str]) -> RunConfig:
    """The configuration that the command line asks for. ``--help`` and ``--print_config`` print and exit.

    >>> parse(["--preset", "tiny", "--model.mechanism", "norm"]).model.mechanism
    'norm'
    """
    return _build(_parser(_preset_of(argv)), lambda parser: parser.parse_args(argv))


def _preset_of(argv: list[str]) -> str:
    """``--preset``, or the ``preset:`` of a configuration file; it must be known before anything else can be read."""
    from argparse import ArgumentParser

    first = ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    first.add_argument("--preset", nargs="?")
    first.add_argument("--config", nargs="?", action="append", default=[])
    with contextlib.redirect_stderr(io.StringIO()):
        known, _ = first.parse_known_args(argv)
    if known.preset is not None:
        return str(known.preset)
    found = "laptop"
    for path in known.config:
        with contextlib.suppress(OSError, yaml.YAMLError, TypeError, UnicodeDecodeError):
            content = yaml.safe_load(Path(path).read_text())
            found = content.get("preset", found) if isinstance(content, dict) else found
    return found


def _parser(preset: str) -> Any:
    from jsonargparse import ArgumentParser

    from .recipes import recipe

    parser = ArgumentParser(
        prog="softmax-rnn train",
        exit_on_error=False,
        description="Train a model. Stop it in any way you like: the same command goes on where it was.",
    )
    parser.add_argument("--config", action="config", help="a YAML file with any of the options below")
    parser.add_argument(
        "--preset", default=preset, help="the recipe to start from: laptop, tiny, paper, paper-large, paper-long"
    )
    parser.add_class_arguments(RunConfig)
    parser.set_defaults(asdict(recipe(preset)))
    return parser


def _build(parser: Any, read: Any) -> RunConfig:
    from jsonargparse import ArgumentError

    try:
        values = parser.instantiate(read(parser))
    except ArgumentError as error:
        raise UserError(" ".join(str(error).split())) from None
    except TypeError:  # a list or a number where a group belongs
        raise UserError(
            "data, tokenizer, model, train and run are groups of options, such as train: {steps: 500}."
        ) from None
    config = RunConfig(**{name: values[name] for name in RunConfig.__dataclass_fields__})
    config.model.value()  # here, not when it is made: that would import torch for --help
    return config


def _positive(group: str, config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise UserError(f"{group}.{name} must be positive, got {value}.")


def _not_negative(group: str, config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, str) and not value >= 0:
            raise UserError(f"{group}.{name} must not be negative, got {value}.".removeprefix("."))
