"""How large the experiments are: ``quick`` (minutes), ``cpu`` (an evening on a laptop), ``paper`` (section 4 and appendix D).

A scale turns a ``Cell`` (which mechanism, on what, which seed) into the configuration of a run. The laptop scales keep the
paper's design (one base setting, a larger model, rows four times as long, three corpora) and shrink its numbers. Their size,
batch and learning rate were chosen by the loss of softmax alone; their main corpus is the one on which attention matters most,
by the distance between softmax and an even average over all keys (order 0). A run of ``cpu`` is one pass over that corpus.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..errors import UserError
from ..lab.config import RunConfig, RunSettings, TrainConfig
from ..lab.data import DataConfig
from ..lab.model import ModelConfig
from ..lab.recipes import paper, paper_large, paper_long
from ..lab.tokenizer import TokenizerConfig

Variant = Literal["base", "large", "long"]


@dataclass(frozen=True, order=True)
class Cell:
    """One run of the plan."""

    mechanism: str
    corpus: str
    variant: Variant = "base"
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.mechanism} on {self.corpus}, {self.variant}, seed {self.seed}"


@dataclass(frozen=True)
class Scale:
    """A size of the experiments.

    Args:
        name: as ``--scale`` takes it.
        corpora: source -> its name on figures, in the order of the paper's three.
        main: the corpus of the figures that have only one.
        seeds: how many, unless ``--seeds`` says otherwise.
        recipe: the configuration of a cell, but for its corpus, seed and mechanism.
        about: one sentence for the report.
    """

    name: str
    corpora: dict[str, str]
    main: str
    seeds: int
    recipe: Callable[[Variant], RunConfig]
    about: str

    def config(self, cell: Cell, root: Path) -> RunConfig:
        """The run of a cell, in a folder under ``root``."""
        base = self.recipe(cell.variant)
        return replace(
            base,
            name=f"{cell.mechanism}-{Path(cell.corpus).stem}-{cell.variant}-{cell.seed}",
            seed=cell.seed,
            data=replace(base.data, source=cell.corpus),
            model=replace(base.model, mechanism=cell.mechanism),
            run=replace(base.run, root=str(root)),
        )


def _laptop(variant: Variant) -> RunConfig:
    base = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
    large = base | {"hidden_size": 128, "intermediate_size": 256}  # twice as wide (the paper's: three times)
    return RunConfig(
        data=DataConfig("tunes", length=1024 if variant == "long" else 256, test_fraction=0.02),
        tokenizer=TokenizerConfig("bpe", 1024),
        model=ModelConfig("softmax", "nano", large if variant == "large" else base),
        train=TrainConfig(  # longer rows, as many tokens
            steps=450, warmup=45, lr=3e-3, batch=2 if variant == "long" else 8, eval_every=50, log_every=10
        ),
        run=RunSettings(save_every=200, keep=1),
    )


def _quick(variant: Variant) -> RunConfig:
    base = _laptop(variant)
    train = replace(base.train, steps=480, warmup=48, batch=4, eval_every=60)
    return replace(base, data=replace(base.data, length=128), train=train)  # a quarter of the tokens, all of the steps


def _paper(variant: Variant) -> RunConfig:
    return {"base": paper, "large": paper_large, "long": paper_long}[variant]()


SCALES = {
    "quick": Scale(
        "quick", {"tunes": "music"}, "tunes", 3, _quick, "A first look: a very small Llama on dance tunes in ABC notation."
    ),
    "cpu": Scale(
        "cpu",
        {"stdlib": "code", "tunes": "music", "sotu": "prose"},
        "tunes",
        3,
        _laptop,
        "A very small Llama on three corpora that stand in for The Pile, SlimPajama and FineWeb: the source of Python's "
        "library, dance tunes in ABC notation, and the speeches of US presidents to Congress.",
    ),
    "paper": Scale(
        "paper",
        {"pile": "The Pile", "slimpajama": "SlimPajama", "fineweb": "FineWeb"},
        "fineweb",
        1,
        _paper,
        "The settings of section 4 and appendix D: Llama 2 with 300M and 2B parameters, rows of 1,024 and 4,096 tokens.",
    ),
}  # fmt: skip


def scale(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise UserError(f"Unknown scale {name!r}; scales are {', '.join(SCALES)}.")
    return SCALES[name]
