"""What the numerator A_t = sum_s w_ts v_s is divided by (eq. 4 and sec. 4.5).

A denominator sees the numerator in one of two forms and answers in both:

    divide(A, Z, t)   finite and clamped kernels: A itself, the sum of weights Z, the number of keys t
    factor(lse, t)    exp: the numerator comes as softmax output O with A = O exp(lse), so that nothing overflows;
                      the result is O * factor

``factor`` has a default that goes through ``divide``; override it where the direct way would overflow.
All row statistics have shape (B, H, T, 1) or broadcast to it and are float32 or wider.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import MechanismError, is_number
from .pointwise import divide


@dataclass(frozen=True)
class Denominator:
    """What every denominator can be asked."""

    @property
    def needs_sum(self) -> bool:
        """Does it use the sum of weights Z?"""
        return False

    @property
    def needs_exponent(self) -> bool:
        """Does it use the learned per-head length exponent?"""
        return False

    @property
    def cancels_scale(self) -> bool:
        """Is A / Z the same, value and gradient, when all weights of a query are multiplied by one number?"""
        return False

    def divide(self, numerator: Tensor, weight_sum: Tensor | None, count: Tensor, exponent: Tensor | None) -> Tensor:
        """A / Z for a numerator in plain units."""
        raise NotImplementedError

    def factor(self, lse: Tensor, count: Tensor, exponent: Tensor | None) -> Tensor | None:
        """The factor on the softmax output, exp(lse) / Z; None stands for 1."""
        total = lse.exp()
        return self.divide(total, total, count, exponent)

    def text(self) -> str:
        """The divisor as a formula, with w for the weight."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sum(Denominator):
    """The sum of weights, softmax's own denominator: optionally max(sum, min), sum + eps, or without gradient.

    >>> Sum(min=1.0).text()
    'max(Σ w, 1)'
    """

    min: float | None = None
    detach: bool = False
    eps: float = 0.0

    def __post_init__(self) -> None:
        if self.min is not None and not (is_number(self.min) and self.min > 0):
            raise MechanismError(f"Sum(min=...) must be a positive number or None, got {self.min!r}.")
        if not (is_number(self.eps) and self.eps >= 0):
            raise MechanismError(f"Sum(eps=...) must be a number >= 0, got {self.eps!r}.")
        if not isinstance(self.detach, bool):
            raise MechanismError(f"Sum(detach=...) must be True or False, got {self.detach!r}.")

    @property
    def needs_sum(self) -> bool:
        """It is the sum."""
        return True

    @property
    def cancels_scale(self) -> bool:
        """Only as plain as in softmax: a floor, an eps or a stopped gradient all notice the scale."""
        return self.min is None and not self.detach and self.eps == 0

    def divide(self, numerator: Tensor, weight_sum: Tensor | None, count: Tensor, exponent: Tensor | None) -> Tensor:
        """As in the base class."""
        assert weight_sum is not None
        total = weight_sum if self.min is None else weight_sum.clamp(min=self.min)
        total = total + self.eps if self.eps else total
        # Where no weight is negative, a sum of 0 means no weight at all (no key, or every kernel value 0): the output is 0.
        total = torch.where(total != 0, total, torch.ones_like(total))
        return numerator / total.detach() if self.detach else divide(numerator, total)

    def factor(self, lse: Tensor, count: Tensor, exponent: Tensor | None) -> Tensor | None:
        """exp(lse) / (max(exp(lse), min) + eps), in logarithms."""
        if self.cancels_scale:
            return None
        log_total = lse if self.min is None else lse.clamp(min=math.log(self.min))
        if self.eps:
            log_total = torch.logaddexp(log_total, torch.full_like(log_total, math.log(self.eps)))
        return torch.exp(lse - (log_total.detach() if self.detach else log_total))

    def text(self) -> str:
        """As in the base class."""
        total = "Σ w" if self.min is None else f"max(Σ w, {self.min:g})"
        total += f" + {self.eps:g}" if self.eps else ""
        return f"stopgrad({total})" if self.detach else total


@dataclass(frozen=True)
class Length(Denominator):
    """The number t of keys that the query attends to; ``learned``: t ** sigmoid(c) with one c per head."""

    learned: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.learned, bool):
            raise MechanismError(f"Length(learned=...) must be True or False, got {self.learned!r}.")

    @property
    def needs_exponent(self) -> bool:
        """If learned."""
        return self.learned

    def divide(self, numerator: Tensor, weight_sum: Tensor | None, count: Tensor, exponent: Tensor | None) -> Tensor:
        """As in the base class."""
        length = count.clamp(min=1).to(numerator.dtype)
        if self.learned:
            assert exponent is not None
            length = length ** torch.sigmoid(exponent.to(numerator.dtype))[:, None, None]
        return numerator / length

    def text(self) -> str:
        """As in the base class."""
        return "t^σ(c)" if self.learned else "t"


@dataclass(frozen=True)
class Unnormalised(Denominator):
    """1: the numerator as it is."""

    def divide(self, numerator: Tensor, weight_sum: Tensor | None, count: Tensor, exponent: Tensor | None) -> Tensor:
        """As in the base class."""
        return numerator

    def text(self) -> str:
        """As in the base class."""
        return ""
