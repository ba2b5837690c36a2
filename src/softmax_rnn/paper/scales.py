"""How large the experiments are: ``quick`` (minutes), ``cpu`` (every figure, a night on a laptop), ``night`` (figure 2 alone, with
a model twenty times as large), ``paper`` (section 4 and appendix D); ``early`` is what ``cpu`` was in the first edition, less than a
quarter as long.

A scale turns a ``Cell`` (what is trained, on which text, in which setting, with which seed) into the configuration of a run. The
laptop scales keep the paper's design (one base setting, a larger model, rows four times as long, three corpora) and shrink its
numbers. Size, batch and learning rate were chosen by the loss of softmax alone, before anything else was run
(``results/LOG.md``). A run of ``cpu`` reads 4.1 million tokens, about once through each of its corpora.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import UserError
from ..lab.config import RunConfig, RunSettings, TrainConfig, paper, paper_large, paper_long
from ..lab.data import DataConfig
from ..lab.model import ModelConfig
from ..lab.tokenizer import TokenizerConfig

if TYPE_CHECKING:
    from ..slots.mechanism import Mechanism

Size = Literal["base", "large", "deep", "long", "short"]


@dataclass(frozen=True)
class Setting:
    """What is the same for all mechanisms that are compared.

    Args:
        size: base; a larger model; one that is deeper, too; longer rows; or base with a quarter of the steps.
        lr: another learning rate than the scale's.
        clip: False never clips gradients; True clips where the paper does, with a gate.
    """

    size: Size = "base"
    lr: float | None = None
    clip: bool = True

    def __str__(self) -> str:
        words = [self.size, "" if self.lr is None else f"lr{self.lr:g}", "" if self.clip else "noclip"]
        return "-".join(word for word in words if word)


BASE, LARGE, DEEP, LONG = Setting("base"), Setting("large"), Setting("deep"), Setting("long")
RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
GRID = tuple(Setting("short", lr) for lr in RATES)
UNCLIPPED = tuple(Setting("short", lr, clip=False) for lr in RATES)


@dataclass(frozen=True)
class Change:
    """A preset with something changed that no preset has.

    Args:
        preset: where it starts.
        clamp: False takes exp(x) where the preset takes exp(min(x, 5)).
        start: the norm's output starts d ** start times as large, d being the width of a head.
        gated: True adds a gate on every head's output, after the norm: a head may be silent.
    """

    preset: str
    clamp: bool = True
    start: float = 0.0
    gated: bool = False

    @property
    def named(self) -> bool:
        """True if the mechanism itself is the preset's, and only the model around it is changed."""
        return self.clamp and not self.gated

    def mechanism(self) -> Mechanism:
        """The mechanism as a value."""
        from ..slots.presets import mechanism as resolve

        found = resolve(self.preset)
        if self.gated:
            found = replace(found, output_gate="after_norm")
        return found if self.clamp else replace(found, kernel=resolve("softmax").kernel)


CHANGES = {
    "gate_free": Change("gate", clamp=False),
    "length_free": Change("length", clamp=False),
    "rms_free": Change("rms", clamp=False),
    "layer_free": Change("layer", clamp=False),
    "rms_small": Change("rms", start=-0.5),
    "layer_small": Change("layer", start=-0.5),
    "rms_small_free": Change("rms", clamp=False, start=-0.5),
    "layer_small_free": Change("layer", clamp=False, start=-0.5),
    "norm_small": Change("norm", start=-0.5),
    "norm_large": Change("norm", start=0.5),
    "norm_large_clamp": Change("norm_clamp", start=0.5),
    "softmax_gated": Change("softmax", gated=True),
    "norm_gated": Change("norm", gated=True),
}


def mechanism_of(name: str) -> Mechanism:
    """The mechanism of a cell: a preset, or one of ``CHANGES``."""
    from ..slots.presets import mechanism as resolve

    return CHANGES[name].mechanism() if name in CHANGES else resolve(name)


def _changed(model: ModelConfig, name: str) -> ModelConfig:
    if name not in CHANGES:
        return replace(model, mechanism=name)
    change, overrides = CHANGES[name], dict(model.overrides)
    if change.start:
        overrides["norm_scale"] = (overrides["hidden_size"] / overrides["num_attention_heads"]) ** change.start
    mechanism: Any = change.preset if change.named else change.mechanism().to_dict()
    return replace(model, mechanism=mechanism, overrides=overrides)


@dataclass(frozen=True)
class Cell:
    """One run of the plan."""

    mechanism: str
    corpus: str
    setting: Setting = BASE
    seed: int = 0

    @property
    def name(self) -> str:
        """Names the run; no two cells of a scale share it."""
        return f"{self.mechanism}-{Path(self.corpus).stem}-{self.setting}-{self.seed}"

    def __str__(self) -> str:
        return f"{self.mechanism} on {self.corpus}, {self.setting}, seed {self.seed}"


@dataclass(frozen=True)
class Scale:
    """A size of the experiments.

    Args:
        name: as ``--scale`` takes it.
        corpora: source -> its name on figures, in the order of the paper's three.
        main: the corpus of the figures that have only one.
        seeds: how many, unless ``--seeds`` says otherwise.
        recipe: the configuration of a size, but for corpus, seed and mechanism.
        about: one sentence for the report.
    """

    name: str
    corpora: dict[str, str]
    main: str
    seeds: int
    recipe: Callable[[Size], RunConfig]
    about: str

    def config(self, cell: Cell, root: Path) -> RunConfig:
        """The run of a cell, in a folder under ``root``."""
        base, setting = self.recipe(cell.setting.size), cell.setting
        train = base.train if setting.lr is None else replace(base.train, lr=setting.lr)
        return replace(
            base,
            name=cell.name,
            seed=cell.seed,
            data=replace(base.data, source=cell.corpus),
            model=_changed(base.model, cell.mechanism),
            train=train if setting.clip else replace(train, clip=0.0),
            run=replace(base.run, root=str(root)),
        )


SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}


def _laptop(size: Size) -> RunConfig:
    wide = SHAPE | {"hidden_size": 128, "intermediate_size": 256}  # twice as wide (the paper's: three times)
    shapes = {"large": wide, "deep": wide | {"num_hidden_layers": 4}}
    steps = 500 if size == "short" else 2000
    return RunConfig(
        data=DataConfig("sotu", length=1024 if size == "long" else 256, test_fraction=0.02),
        tokenizer=TokenizerConfig("bpe", 1024),
        model=ModelConfig("softmax", "nano", shapes.get(size, SHAPE)),
        train=TrainConfig(  # longer rows, as many tokens
            steps=steps,
            warmup=steps // 10,
            lr=6e-3,
            batch=2 if size == "long" else 8,
            eval_every=steps // (1 if size == "short" else 10),  # of a short run only the end counts
            log_every=20,
        ),
        run=RunSettings(save_every=500, keep=1, threads=1),
    )


def _night(size: Size) -> RunConfig:
    if size != "base":
        raise UserError("The scale night has figure 2 alone: other sizes are for --scale cpu.")
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4}
    return RunConfig(
        data=DataConfig("torch", length=256, test_fraction=0.005),
        tokenizer=TokenizerConfig("bpe", 4096),
        model=ModelConfig("softmax", "micro", shape),
        train=TrainConfig(  # bfloat16, as at the paper's scale
            steps=5000, warmup=500, lr=2e-3, batch=16, eval_every=250, log_every=20, precision="bf16"
        ),
        run=RunSettings(save_every=250, keep=1, threads=1),
    )


def _early(size: Size) -> RunConfig:
    base = _laptop(size)
    train = replace(base.train, steps=450, warmup=45, lr=3e-3, eval_every=50, log_every=10)
    return replace(base, train=train, run=RunSettings(save_every=200, keep=1))


def _quick(size: Size) -> RunConfig:
    train = TrainConfig(steps=480, warmup=48, lr=3e-3, batch=4, eval_every=60, log_every=10)
    return RunConfig(
        data=DataConfig("tunes", length=128, test_fraction=0.02),
        tokenizer=TokenizerConfig("bpe", 1024),
        model=ModelConfig("softmax", "nano", SHAPE),
        train=train,
        run=RunSettings(save_every=200, keep=1),
    )


def _paper(size: Size) -> RunConfig:
    sizes = {"base": paper, "large": paper_large, "long": paper_long}
    if size not in sizes:
        raise UserError("The paper has no experiment with learning rates or with depth: use --scale cpu.")
    return sizes[size]()


SCALES = {
    "quick": Scale(
        "quick",
        {"tunes": "music"},
        "tunes",
        3,
        _quick,
        "A first look: a very small Llama on dance tunes in ABC notation.",
    ),
    "cpu": Scale(
        "cpu",
        {"stdlib": "code", "sympy": "mathematics", "sotu": "prose"},
        "sotu",
        3,
        _laptop,
        "A very small Llama (213,000 parameters) on three corpora that stand in for The Pile, SlimPajama and FineWeb: the "
        "source of Python's library, the source of SymPy, and the speeches of US presidents to Congress.",
    ),
    "night": Scale(
        "night",
        {"torch": "code"},
        "torch",
        1,
        _night,
        "Figure 2 alone, at a larger size: a Llama of 4.7 million parameters on the source of torch.",
    ),
    "early": Scale(
        "early",
        {"stdlib": "code", "tunes": "music", "sotu": "prose"},
        "tunes",
        5,
        _early,
        "The scale of the first edition, too short to decide much: the same small Llama (213,000 parameters) on the source of "
        "Python's library, dance tunes in ABC notation, and the speeches of US presidents to Congress.",
    ),
    "paper": Scale(
        "paper",
        {"pile": "The Pile", "slimpajama": "SlimPajama", "fineweb": "FineWeb"},
        "fineweb",
        1,
        _paper,
        "The settings of section 4 and appendix D: Llama 2 with 300M and 2B parameters, rows of 1,024 and 4,096 tokens.",
    ),
}


def scale(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise UserError(f"Unknown scale {name!r}; scales are {', '.join(SCALES)}.")
    return SCALES[name]
