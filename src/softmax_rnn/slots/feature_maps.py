"""Feature maps: what linear attention does to queries and keys before their inner product, score = scale * phi(q_t) . phi(k_s).

    identity   x                                       eq. 3
    elu        elu(x) + 1                              Katharopoulos et al. 2020
    relu       max(x, 0)                               SANA
    relu2      max(x, 0)^2
    exp        exp(x)
    softmax    softmax over the channels               Efficient Attention's map of queries
    cosine     x / |x|                                 Cottention
    RandomFeatures     unbiased estimates of exp(q.k)  Performer (positive), Random Feature Attention (trigonometric)
    CosReweighted      relu(x) (cos, sin)(pi t / 2M)   cosFormer: relu(q).relu(k) cos(pi (t - s) / 2M)

A map is a value with ``apply(x, positions)`` and ``width(d)``; a name stands for one without settings.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backends.operators import operator
from ..errors import MechanismError
from . import Slot
from .denominators import l2


def _elu_plus_one(x: Tensor) -> Tensor:
    # exp(x) itself for x < 0: the textbook form, expm1(x) + 1, cancels to 0 in low precision.
    return x.clamp(max=0).exp_().add_(x.clamp(min=0))


def _elu_plus_one_backward(grad: Tensor | None, x: Tensor, y: Tensor) -> tuple[Tensor]:
    assert grad is not None
    return (y.clamp(max=1).mul_(grad),)  # the slope is exp(x) = y where y < 1, and 1 above


elu_plus_one = operator(
    "elu_plus_one",
    _elu_plus_one,
    _elu_plus_one_backward,
    fuse=True,
    fake=torch.empty_like,
    plain=lambda x: x.clamp(max=0).exp() + F.relu(x),
)


@dataclass(frozen=True)
class FeatureMap(Slot):
    """What every map can be asked."""

    positive = False  # are all features >= 0, so that no weight of an increasing kernel is negative?
    bounded = False  # are scores within [-1, 1] at scale 1?
    positional = False  # does it use the position of a token in its sequence?
    longest: ClassVar[int | None] = None  # the longest sequence it is for

    @abstractmethod
    def apply(self, x: Tensor, positions: Tensor) -> Tensor:
        """phi(x) for x (B, H, T, d); ``positions`` (T,) count tokens from the beginning of the stream."""

    def width(self, d: int) -> int:
        """How many features d channels become."""
        return d

    def text(self) -> str:
        """The name in formulas."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class _Named(FeatureMap):
    name: str = "identity"

    @property
    def positive(self) -> bool:  # type: ignore[override]
        """True of the maps that end in something non-negative."""
        return self.name not in ("identity", "cosine")

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        """Unit vectors."""
        return self.name == "cosine"

    def apply(self, x: Tensor, positions: Tensor) -> Tensor:
        """By name."""
        return _MAPS[self.name](x)

    def text(self) -> str:
        """The name."""
        return self.name


_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "elu": elu_plus_one,
    "relu": F.relu,
    "cosine": l2,
    "exp": torch.exp,
    "softmax": lambda x: F.softmax(x, -1),
    "relu2": lambda x: F.relu(x).square(),
}
FEATURE_MAPS: dict[str, FeatureMap] = {name: _Named(name) for name in _MAPS}


@functools.lru_cache(maxsize=32)
def _directions(d: int, m: int, seed: int) -> Tensor:
    """m random directions: blocks of d orthogonal ones with the lengths of Gaussian vectors, (m, d), float64."""
    g = torch.Generator().manual_seed(seed)
    blocks = []
    for _ in range(0, m, d):
        q, _r = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64))
        blocks.append(q.T * torch.randn(d, d, generator=g, dtype=torch.float64).norm(dim=1)[:, None])
    return torch.cat(blocks)[:m]


@torch.library.custom_op("softmax_rnn::directions", mutates_args=())  # a generator would break a compiled graph
def directions(like: Tensor, m: int, seed: int) -> Tensor:
    """The m directions for vectors (..., d), in their dtype and on their device."""
    return _directions(like.shape[-1], m, seed).to(like)


@directions.register_fake
def _(like: Tensor, m: int, seed: int) -> Tensor:
    return like.new_empty(m, like.shape[-1])


@dataclass(frozen=True)
class RandomFeatures(FeatureMap):
    """Features whose inner products estimate exp(q.k / sqrt(d)); the directions follow from the seed alone, so that streams agree.

    Args:
        dim: how many features.
        kind: ``positive`` (Performer): exp(w.x - |x|^2 / 2) / sqrt(m); ``trigonometric`` (RFA): (sin, cos)(w.x) / sqrt(m) of unit vectors,
            whose products estimate exp(-|q - k|^2 / 2).
        seed: of the directions.
    """

    dim: int = 64
    kind: Literal["positive", "trigonometric"] = "positive"
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.dim, int) or isinstance(self.dim, bool) or self.dim < 1:
            raise MechanismError(f"RandomFeatures needs a whole number of features >= 1, got {self.dim!r}.")
        if self.kind not in ("positive", "trigonometric"):
            raise MechanismError(f"RandomFeatures are 'positive' or 'trigonometric', got {self.kind!r}.")
        if self.kind == "trigonometric" and self.dim % 2:
            raise MechanismError(f"Trigonometric features come in pairs: dim must be even, got {self.dim}.")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 2**63:
            raise MechanismError(f"The seed of RandomFeatures must be a whole number >= 0, got {self.seed!r}.")

    @property
    def positive(self) -> bool:  # type: ignore[override]
        """Of the positive kind."""
        return self.kind == "positive"

    def width(self, d: int) -> int:
        """``dim``."""
        return self.dim

    def apply(self, x: Tensor, positions: Tensor) -> Tensor:
        """The features."""
        if self.kind == "positive":
            x = x * x.shape[-1] ** -0.25
            w = directions(x.detach(), self.dim, self.seed)
            return torch.exp(x @ w.T - x.square().sum(-1, keepdim=True) / 2) * self.dim**-0.5
        w = directions(x.detach(), self.dim // 2, self.seed)
        angle = l2(x) @ w.T
        return torch.cat([angle.sin(), angle.cos()], -1) * (self.dim // 2) ** -0.5

    def text(self) -> str:
        """The name with its width."""
        return f"{self.kind}{self.dim}"


@dataclass(frozen=True)
class CosReweighted(FeatureMap):
    """relu(x) with its position as an angle, so that the score falls with distance: relu(q).relu(k) cos(pi (t - s) / 2 length).

    ``length`` is fixed, because the length of a row would change what streaming gives; no sequence may be longer.
    """

    length: int = 4096
    positive = True  # as long as t - s < length
    positional = True

    @property
    def longest(self) -> int:  # type: ignore[override]
        """Beyond, weights would be negative."""
        return self.length

    def __post_init__(self) -> None:
        if not isinstance(self.length, int) or isinstance(self.length, bool) or self.length < 1:
            raise MechanismError(f"CosReweighted needs a length of at least 1, got {self.length!r}.")

    def width(self, d: int) -> int:
        """A cosine and a sine part."""
        return 2 * d

    def apply(self, x: Tensor, positions: Tensor) -> Tensor:
        """The features."""
        angle = (positions.to(x.dtype) * (math.pi / 2 / self.length))[:, None]
        x = F.relu(x)
        return torch.cat([x * angle.cos(), x * angle.sin()], -1)

    def text(self) -> str:
        """The name with its length."""
        return f"cos{self.length}"


def feature_map(value: object) -> FeatureMap:
    """The map that a name or a value stands for."""
    if isinstance(value, FeatureMap):
        return value
    if isinstance(value, str) and value in FEATURE_MAPS:
        return FEATURE_MAPS[value]
    raise MechanismError(f"Feature map must be one of {', '.join(FEATURE_MAPS)} or a FeatureMap, got {value!r}.")
