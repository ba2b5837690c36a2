"""What the frontier compares: arenas (data, model, training) and points in them (mechanism, key width, convolution).

    recall       multi-query associative recall, 8 pairs in rows of 32           accuracy
    forgetting   the same with half of the pairs reassigned                       accuracy
    parity       bits, trained at 16 tokens                                       accuracy at 64
    text         dance tunes in ABC notation, rows of 256                         test loss of the next token
    masked       the same text, a fifth of the tokens hidden, both sides in view      test loss of the hidden ones
    digits       8 x 8 images pixel by pixel, both sides in view                   accuracy

**Learning rates.** Where an arena has several, each point is trained at all of them with seed 0; the best one is taken for the seeds that
count, from 1 on. So the choice does not flatter the result: seed 0 is in no mean and in no interval.

**Positions.** In the recall tasks a convolution of two tokens tells which tokens stand side by side, and rotary positions are left out; a
model without the convolution has rotary positions instead. Texts always have rotary positions.

Sizes and rates were chosen with softmax alone, and what is compared was fixed before anything else was run, except for parity, where both
ranges of beta had been tried once (``results/LOG.md``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ..lab.config import RunConfig, from_dict
from ..slots.denominators import Sum
from ..slots.kernels import Exp, Near, Taylor
from ..slots.mechanism import Mechanism
from ..slots.presets import mechanism as resolve

Quantity = Literal["accuracy", "loss"]


@dataclass(frozen=True)
class Arena:
    """Data, model and training: the same for all its points.

    Args:
        name: as the command takes it.
        source: of the data, as the lab names it.
        length: tokens of a row.
        steps, batch, rates: of training.
        hidden, heads: of the model; a head's values are hidden / heads wide.
        seeds: how many count for every point; ``decisive`` points, on which a claim rests, have more.
        quantity: what is measured.
        layers: of the model.
        masked: the share of hidden tokens.
    """

    name: str
    source: str
    length: int
    steps: int
    batch: int
    rates: tuple[float, ...]
    hidden: int
    heads: int
    seeds: int
    decisive: int
    quantity: Quantity = "accuracy"
    layers: int = 2
    masked: float = 0.0

    @property
    def longest(self) -> int:
        """The greatest length at which it is tested."""
        return 4 * self.length

    @property
    def both_sides(self) -> bool:
        """Does a model see what comes after, too?"""
        return self.masked > 0 or self.name == "digits"

    @property
    def head_dim(self) -> int:
        """The width of a head's values."""
        return self.hidden // self.heads


def _pairs(task: str, rows: int) -> str:
    return f"task:{task},vocab=64,pairs=8,rows={rows},test_rows=512"


TWO = (3e-3, 1e-2)
ARENAS = {
    arena.name: arena
    for arena in (
        Arena("recall", _pairs("mqar", 9600), 32, 300, 32, TWO, 32, 1, seeds=2, decisive=5),
        Arena("forgetting", _pairs("forgetting,reassigned=4", 48000), 32, 1500, 32, TWO, 32, 1, seeds=5, decisive=5),
        Arena("parity", "task:parity,rows=9600", 16, 300, 32, TWO, 32, 1, seeds=6, decisive=6, layers=1),
        Arena("text", "tunes", 256, 400, 4, (6e-3,), 64, 4, seeds=1, decisive=4, quantity="loss"),
        Arena("masked", "tunes", 32, 2000, 16, (3e-3,), 64, 4, seeds=3, decisive=3, quantity="loss", masked=0.2),
        Arena("digits", "task:digits,patches=64", 65, 1500, 32, (3e-3,), 32, 2, seeds=3, decisive=3),
    )
}


@dataclass(frozen=True)
class Point:
    """One model in an arena.

    Args:
        arena: the name of the arena.
        mechanism: a preset, or ``near2_wN``: exact for the newest N keys, order 2 beyond.
        key_dim: the width of a head's keys.
        conv: of the short convolution on queries, keys and values.
        beta_max: of the delta rule.
    """

    arena: str
    mechanism: str
    key_dim: int = 8
    conv: int = 2
    beta_max: float = 1.0

    @property
    def place(self) -> Arena:
        """The arena as a value."""
        return ARENAS[self.arena]

    @cached_property
    def value(self) -> Mechanism:
        """The mechanism as a value."""
        near = re.fullmatch(r"near2_w(\d+)", self.mechanism)
        return Mechanism(Near(Exp(), Taylor(2), int(near[1])), Sum()) if near else resolve(self.mechanism)

    @property
    def name(self) -> str:
        """Names its runs; no two points share it."""
        turned = f"-beta{self.beta_max:g}" if self.beta_max != 1 else ""
        return f"{self.arena}-{self.mechanism}-d{self.key_dim}-conv{self.conv}{turned}"

    def __str__(self) -> str:
        turned = f", beta up to {self.beta_max:g}" if self.beta_max != 1 else ""
        conv = f", convolution of {self.conv}" if self.conv else ""
        return f"{self.mechanism}, keys of {self.key_dim}{conv}{turned}"

    def config(self, lr: float, seed: int, root: Path) -> RunConfig:
        """One run of the lab."""
        a = self.place
        rope = a.quantity == "loss" or a.name == "digits" or (self.conv == 0 and a.name != "parity")
        model: dict[str, Any] = {
            "hidden_size": a.hidden,
            "intermediate_size": 2 * a.hidden if a.quantity == "loss" else a.hidden,
            "num_hidden_layers": a.layers,
            "num_attention_heads": a.heads,
            "num_key_value_heads": a.heads,
            "head_dim": a.head_dim,
            "key_dim": self.key_dim,
            "conv": self.conv,
            "rope": rope,
            "beta_max": self.beta_max,
        }
        known = self.mechanism if not self.mechanism.startswith("near2_w") else self.value.to_dict()
        values = {
            "name": f"{self.name}-{lr:g}-{seed}",
            "seed": seed,
            "data": {"source": a.source, "length": a.length, "masked": a.masked},
            "model": {"mechanism": known, "overrides": model},
            "train": {
                "steps": a.steps,
                "warmup": a.steps // 10,
                "lr": lr,
                "batch": a.batch,
                "clip": 1.0,
                "eval_every": a.steps,
                "log_every": max(1, a.steps // 10),
            },
            "run": {"root": str(root), "save_every": a.steps, "keep": 1, "threads": 1},  # no work for two threads
        }
        return from_dict(values, "tiny")


def _at(arena: str, names: str, widths: tuple[int, ...], conv: int = 2) -> list[Point]:
    return [Point(arena, name, width, conv) for width in widths for name in names.split()]


ORDERS = " ".join(f"taylor{n}_norm" for n in range(5))
WIDTHS = (4, 8, 16)
OTHERS = (
    "softmax norm gate rms linear_elu linear_relu linear_cosine taylor1_norm taylor2_norm taylor4_norm taylor10_norm"
)

# In the order of running: what claims rest on first.
POINTS: tuple[Point, ...] = tuple(
    dict.fromkeys(
        [
            Point("parity", "deltanet", 16, 0, beta_max=2.0),
            Point("parity", "deltanet", 16, 0, beta_max=1.0),
            *_at("recall", f"{ORDERS} softmax norm", (8,)),
            *_at("recall", "linear_elu taylor2", (8,)),
            *_at("forgetting", "taylor1_norm taylor2_norm norm", (8,)),
            *_at("forgetting", "taylor1_norm_decay taylor2_norm_decay norm_decay", (8,)),
            *_at("forgetting", "taylor1_norm_delta taylor2_norm_delta delta_softmax softmax", (8,)),
            *_at("recall", f"{ORDERS} softmax norm", (4, 16)),
            *_at("text", "softmax near2_w64", (16,), conv=0),
            *_at("text", "softmax taylor2_decay", (16,), conv=2),
            *_at("digits", OTHERS, (16,), conv=0),
            *_at("masked", OTHERS, (16,), conv=0),
            # Beyond the claims: the rest of the frontier.
            *_at("text", f"{ORDERS} taylor2 taylor4 norm linear_elu", (16,), conv=0),
            *_at("text", "near2_w16 near2_w32 near2_w128 taylor2_decay fox taylor1_norm_decay", (16,), conv=0),
            *_at("recall", "taylor2 taylor4 linear_elu near2_w16", (4, 8, 16)),
            *_at("recall", f"{ORDERS} softmax norm", (32,)),
            *_at("recall", "taylor1_norm_decay taylor2_norm_decay norm_decay", (8,)),
            *_at("recall", "taylor1_norm_delta taylor2_norm_delta delta_softmax", (8,)),
            *_at("text", "taylor2 softmax", (4, 8, 32), conv=0),
            *_at("recall", "taylor1_norm taylor2_norm taylor4_norm softmax", (8,), conv=0),
            *_at("text", "taylor1_norm_delta taylor2_norm_delta", (16,), conv=0),
            *_at("text", "taylor1_norm taylor2 near2_w64", (16,), conv=2),
        ]
    )
)
