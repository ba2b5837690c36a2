"""Recipes: functions that return a complete configuration. To make one, copy a function and change two lines.

``paper`` is appendix D with the details of the authors' training script that the appendix leaves out (eps, the horizon
of the decay, evaluation every 10,000 steps). The laptop recipes keep its optimiser and shrink the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import UserError
from .config import RunConfig, RunSettings, TrainConfig
from .data import DataConfig
from .model import ModelConfig
from .tokenizer import TokenizerConfig


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
    """Appendix D: 300M parameters, batch 36 of 1,024 tokens, FineWeb, 100,000 steps of a decay that would take
    1,000,000.
    """
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
