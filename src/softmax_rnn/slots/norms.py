"""Vector norms over the head dimension, the paper's replacement for the denominator (eq. 6), with the authors' epsilons.

    l2      x / max(|x|, 1e-12)
    rms     x / sqrt(mean(x^2) + eps) * weight             eps the smallest step of the dtype, as nn.RMSNorm with eps=None
    layer   (x - mean) / sqrt(var + 1e-5) * weight + bias       as nn.LayerNorm

Numerators are of any size (a tenth power of a score easily passes 1e19, whose square is no float32), so where squares could leave the
range each vector is first divided by its largest entry, forward and backward; ordinary ones are computed as the formula reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backends.operators import operator, tracing
from .base import Input, Slot

EPS = 1e-12  # that of F.normalize
LAYER_EPS = 1e-5  # that of nn.LayerNorm
LARGE = 1e15  # entries below this can be squared and summed over a head in float32


def _ordinary(x: Tensor) -> bool:
    """Can the rows be squared as they are? Asked of the whole tensor, in one cheap pass, where asking does not hold anybody up."""
    if tracing() or x.device.type != "cpu":
        return False
    low, high = torch.aminmax(x) if x.numel() else (x.new_zeros(()), x.new_zeros(()))
    return bool(torch.maximum(high, -low) < LARGE)


def _row_scale(x: Tensor) -> Tensor:
    """What to divide each vector by before it is squared: its largest entry, where that is more than 1."""
    return x.detach().abs().amax(-1, keepdim=True).clamp(min=1.0)


def _l2_plain(x: Tensor) -> tuple[Tensor, Tensor]:
    top = _row_scale(x)
    unit = x / top
    square = unit.square().sum(-1, keepdim=True)
    size = torch.where(square > 0, square, torch.ones_like(square)).sqrt() * (square > 0)
    return unit / torch.maximum(size, EPS / top), (size * top).detach()


def _l2(x: Tensor) -> tuple[Tensor, Tensor]:
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    if x.device.type == "cpu" and (size.numel() == 0 or bool(size.max() < LARGE)):
        return x / size.clamp(min=EPS), size
    return _l2_plain(x)


def _l2_backward(grad: Tensor | None, _: Tensor | None, x: Tensor, y: Tensor, size: Tensor) -> tuple[Tensor]:
    assert grad is not None
    # What would change the length of y, which is 1. vecdot would be a matrix product, which autocast rounds.
    along = (grad * y).sum(-1, keepdim=True)
    along = torch.where(size > EPS, along, torch.zeros_like(along))  # below eps the divisor is constant
    return (torch.addcmul(grad, along, y, value=-1) / size.clamp(min=EPS),)


_l2_operator = operator(
    "l2",
    _l2,
    _l2_backward,
    plain=_l2_plain,
    fuse=True,
    constants=1,
    fake=lambda x: (x / x.amax(-1, keepdim=True), x.amax(-1, keepdim=True)),
    fake_backward=lambda g, _, x, y, size: ((g - y) / size,),
)


def l2(x: Tensor) -> Tensor:
    """x / max(|x|, 1e-12) along the last axis, for entries of any size."""
    return _l2_operator(x)[0]


@dataclass(frozen=True)
class Norm(Slot):
    """A vector norm: ``apply(x, **its own inputs)`` over the last axis of (B, H, T, E)."""

    def apply(self, x: Tensor, **inputs: Tensor) -> Tensor:
        """The normed vectors."""
        raise NotImplementedError(f"{type(self).__name__} needs an apply(x).")

    def text(self) -> str:
        """The name in formulas."""
        return type(self).__name__.lower()


_WEIGHT = Input("norm_weight", "E", "the weight of the norm", start=1.0, module="out_norm.weight", optional=True)
_BIAS = Input("norm_bias", "E", "the bias of the norm", module="out_norm.bias", optional=True)


@dataclass(frozen=True)
class L2(Norm):
    """x / |x|; takes no weights."""

    def apply(self, x: Tensor, **inputs: Tensor) -> Tensor:
        """The unit vectors."""
        return l2(x)


@dataclass(frozen=True)
class RMS(Norm):
    """x / sqrt(mean(x^2) + eps), with a weight."""

    inputs = (_WEIGHT,)

    def apply(self, x: Tensor, norm_weight: Tensor | None = None, **inputs: Tensor) -> Tensor:
        """Entries of size 1 on average."""
        eps = torch.finfo(x.dtype).eps
        if _ordinary(x):
            return F.rms_norm(x, x.shape[-1:], norm_weight, eps)
        top = _row_scale(x)
        unit = x / top
        unit = unit / torch.sqrt(unit.square().mean(-1, keepdim=True) + eps / top / top)
        return unit if norm_weight is None else unit * norm_weight


@dataclass(frozen=True)
class Layer(Norm):
    """(x - mean) / sqrt(var + 1e-5), with a weight and a bias."""

    inputs = (_WEIGHT, _BIAS)

    def apply(
        self, x: Tensor, norm_weight: Tensor | None = None, norm_bias: Tensor | None = None, **inputs: Tensor
    ) -> Tensor:
        """Mean 0 and variance 1."""
        if _ordinary(x):
            return F.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, LAYER_EPS)
        top = _row_scale(x)
        unit = x / top
        unit = unit - unit.mean(-1, keepdim=True)
        unit = unit / torch.sqrt(unit.square().mean(-1, keepdim=True) + LAYER_EPS / top / top)
        unit = unit if norm_weight is None else unit * norm_weight
        return unit if norm_bias is None else unit + norm_bias


NORMS: dict[str, Norm] = {"l2": L2(), "rms": RMS(), "layer": Layer()}
