"""What the numerator A_t = sum_s w_ts v_s is divided by: a denominator (eq. 4 and sec. 4.5), or a vector norm in its place (eq. 6).

A denominator is asked in one of two ways, and gets only the tensors that it declares itself:

    divide(A, Z, t)   clamped and finite kernels: A itself, the sum of weights Z, the number of keys t (under decay their decayed number)
    factor(lse, t)    exp: the numerator comes as softmax output O with A = O exp(lse), so that nothing overflows; the result is O * factor

``factor`` has a default that goes through ``divide``; override it where the direct way would overflow. Z, t and lse have one number for
each query: shape (B, H, T, 1) or one that broadcasts to it, float32 or wider.

Norms are over the head dimension, with the authors' epsilons:

    l2      x / max(|x|, 1e-12)
    rms     x / sqrt(mean(x^2) + eps) * weight             eps the smallest step of the dtype, as nn.RMSNorm with eps=None
    layer   (x - mean) / sqrt(var + 1e-5) * weight + bias       as nn.LayerNorm

Numerators are of any size (a tenth power of a score easily passes 1e19, whose square is no float32), so where squares could leave the
range each vector is first divided by its largest entry, forward and backward; ordinary ones are computed as the formula reads.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backends.operators import operator, tracing
from ..errors import MechanismError, is_number
from . import Input, Slot

EPS = 1e-12  # that of F.normalize
LAYER_EPS = 1e-5  # that of nn.LayerNorm
LARGE = 1e15  # entries below this can be squared and summed over a head in float32


def _divide(x: Tensor, by: Tensor) -> Tensor:
    return x / by


def _divide_backward(grad: Tensor | None, x: Tensor, by: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    assert grad is not None
    dx = grad / by
    return dx, (dx * y).sum(-1, keepdim=True).neg_()  # vecdot would be a matrix product, which autocast rounds


# x (..., E) divided by one number for each vector, (..., 1); its backward reads each tensor once, autograd's several times.
divide = operator(
    "divide",
    _divide,
    _divide_backward,
    plain=lambda x, by: x / by,
    fake=lambda x, by: x / by,
    fuse=True,
    fake_backward=lambda g, x, by, y: (g / by, torch.empty_like(by)),
)


@dataclass(frozen=True)
class Denominator(Slot):
    """What every denominator can be asked."""

    needs_sum = False  # does it use the sum of weights Z?
    needs_count = False  # does it use the number of keys? (under decay that number is a sum of its own)
    cancels_scale = (
        False  # is A / Z the same, value and gradient, when all weights of a query are multiplied by one number?
    )

    @abstractmethod
    def divide(self, numerator: Tensor, total: Tensor | None, count: Tensor, **inputs: Tensor) -> Tensor:
        """A / Z for a numerator in plain units; ``total`` is given if ``needs_sum``, ``inputs`` are those declared."""

    def factor(self, lse: Tensor, count: Tensor, **inputs: Tensor) -> Tensor | None:
        """The factor on the softmax output, exp(lse) / Z; None stands for 1."""
        total = lse.exp()
        return self.divide(total, total, count, **inputs)


@dataclass(frozen=True)
class Sum(Denominator):
    """The sum of weights, softmax's own denominator: optionally max(sum, min), sum + eps, sum + exp(sink), or without gradient.

    ``eps=1`` is softmax "off by one" (Miller, 2023); ``sink`` adds a key without a value, with a learned logit for each head (GPT-OSS).

    >>> Sum(min=1.0).text()
    'max(Σ w, 1)'
    """

    min: float | None = None
    detach: bool = False
    eps: float = 0.0
    sink: bool = False

    needs_sum = True

    def __post_init__(self) -> None:
        if self.min is not None and not (is_number(self.min) and self.min > 0):
            raise MechanismError(f"Sum(min=...) must be a positive number or None, got {self.min!r}.")
        if not (is_number(self.eps) and self.eps >= 0):
            raise MechanismError(f"Sum(eps=...) must be a number >= 0, got {self.eps!r}.")
        for name in ("detach", "sink"):
            if not isinstance(getattr(self, name), bool):
                raise MechanismError(f"Sum({name}=...) must be True or False, got {getattr(self, name)!r}.")

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The sink's logit."""
        return (Input("sink", "H", "the logit of a sink that takes weight and gives nothing"),) if self.sink else ()

    @property
    def cancels_scale(self) -> bool:  # type: ignore[override]
        """Only as plain as in softmax: a floor, an eps, a sink or a stopped gradient all notice the scale."""
        return self.min is None and not self.detach and self.eps == 0 and not self.sink

    def divide(
        self, numerator: Tensor, total: Tensor | None, count: Tensor, sink: Tensor | None = None, **inputs: Tensor
    ) -> Tensor:
        """A over the sum; 0 where there is no weight at all."""
        assert total is not None
        total = total if self.min is None else total.clamp(min=self.min)
        total = total + self.eps if self.eps else total
        total = total if sink is None else total + sink.to(total.dtype).exp()[:, None, None]
        # Where no weight is negative, a sum of 0 means no weight at all (no key, or every kernel value 0): the output is 0.
        total = torch.where(total != 0, total, torch.ones_like(total))
        return numerator / total.detach() if self.detach else divide(numerator, total)

    def factor(self, lse: Tensor, count: Tensor, sink: Tensor | None = None, **inputs: Tensor) -> Tensor | None:
        """exp(lse) / (max(exp(lse), min) + eps + exp(sink)), in logarithms."""
        if self.cancels_scale:
            return None
        log_total = lse if self.min is None else lse.clamp(min=math.log(self.min))
        if self.eps:
            log_total = torch.logaddexp(log_total, torch.full_like(log_total, math.log(self.eps)))
        if sink is not None:
            log_total = torch.logaddexp(log_total, sink.to(lse.dtype)[:, None, None].expand_as(log_total))
        return torch.exp(lse - (log_total.detach() if self.detach else log_total))

    def text(self) -> str:
        """The sum with what is added to it."""
        total = "Σ w" if self.min is None else f"max(Σ w, {self.min:g})"
        total += f" + {self.eps:g}" if self.eps else ""
        total += " + exp(sink)" if self.sink else ""
        return f"stopgrad({total})" if self.detach else total


@dataclass(frozen=True)
class Length(Denominator):
    """The number t of keys that the query attends to (under decay, their decayed number); ``learned``: t ** sigmoid(c), one c per head."""

    learned: bool = False

    needs_count = True

    def __post_init__(self) -> None:
        if not isinstance(self.learned, bool):
            raise MechanismError(f"Length(learned=...) must be True or False, got {self.learned!r}.")

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The exponent, if learned."""
        if not self.learned:
            return ()
        return (Input("length_exponent", "H", "c in t ** sigmoid(c)", start=0.5, module="norm_const"),)

    def divide(
        self,
        numerator: Tensor,
        total: Tensor | None,
        count: Tensor,
        length_exponent: Tensor | None = None,
        **inputs: Tensor,
    ) -> Tensor:
        """A over t."""
        length = count.to(numerator.dtype)
        length = torch.where(length > 0, length, torch.ones_like(length))
        if length_exponent is not None:
            length = length ** torch.sigmoid(length_exponent.to(numerator.dtype))[:, None, None]
        return numerator / length

    def text(self) -> str:
        """t, or its learned power."""
        return "t^σ(c)" if self.learned else "t"


@dataclass(frozen=True)
class Unnormalised(Denominator):
    """1: the numerator as it is."""

    def divide(self, numerator: Tensor, total: Tensor | None, count: Tensor, **inputs: Tensor) -> Tensor:
        """A itself."""
        return numerator

    def text(self) -> str:
        """Nothing."""
        return ""


# Norms.


def _ordinary(x: Tensor) -> bool:
    """Can the vectors be squared as they are? Asked of the whole tensor, in one cheap pass, where asking does not hold anybody up."""
    if tracing() or x.device.type != "cpu":
        return False
    low, high = torch.aminmax(x) if x.numel() else (x.new_zeros(()), x.new_zeros(()))
    return bool(torch.maximum(high, -low) < LARGE)


def _vector_scale(x: Tensor) -> Tensor:
    """What to divide each vector by before it is squared: its largest entry, where that is more than 1."""
    return x.detach().abs().amax(-1, keepdim=True).clamp(min=1.0)


def _l2_plain(x: Tensor) -> tuple[Tensor, Tensor]:
    top = _vector_scale(x)
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

    @abstractmethod
    def apply(self, x: Tensor, **inputs: Tensor) -> Tensor:
        """The normed vectors."""

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
        top = _vector_scale(x)
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
        top = _vector_scale(x)
        unit = x / top
        unit = unit - unit.mean(-1, keepdim=True)
        unit = unit / torch.sqrt(unit.square().mean(-1, keepdim=True) + LAYER_EPS / top / top)
        unit = unit if norm_weight is None else unit * norm_weight
        return unit if norm_bias is None else unit + norm_bias


NORMS: dict[str, Norm] = {"l2": L2(), "rms": RMS(), "layer": Layer()}
