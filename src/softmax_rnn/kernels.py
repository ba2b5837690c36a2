"""The weight w(x) that a query gives a key, as a function of their score x = scale * phi(q) . psi(k).

Every kernel of the paper is a map of the vectors (phi, psi) followed by a function of the score, which is either the
exponential or a polynomial sum_n c_n x^n, optionally of min(x, clamp). That is all the rest of the library knows:

    Exp      exp(x)                       eq. 1      infinitely many recurrent networks
    Taylor   sum_{n<=N} x^n / n!          sec. 3.1   the first N + 1 of them
    Power    x^n / n!                     eq. 3, B   one of them
    Linear   phi(q) . psi(k)              eq. 2      linear attention, or with ``order`` its series (App. F)

A new polynomial kernel is one subclass with ``coefficients``; a new feature map is one entry in ``FEATURE_MAPS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from .errors import MechanismError, is_number
from .norms import l2
from .pointwise import elu_plus_one

FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "elu": elu_plus_one,
    "relu": F.relu,
    "cosine": lambda x: l2(x, None, None),
}


@dataclass(frozen=True)
class Kernel:
    """What every kernel can be asked. ``coefficients is None`` means the exponential."""

    @property
    def coefficients(self) -> tuple[float, ...] | None:
        """c_0 .. c_N of the polynomial, or None for the exponential."""
        return None

    @property
    def limit(self) -> float | None:
        """The score at which the weight stops growing, or None."""
        return None

    @property
    def signed(self) -> bool:
        """Can a weight be negative?"""
        return False

    def signed_at(self, scale: float) -> bool:
        """Can a weight be negative with this scale on the score?"""
        return self.signed

    @property
    def shiftable(self) -> bool:
        """Does a constant added to the score only rescale all weights (exactly for exp, nearly for its series)?"""
        return False

    @property
    def exponential(self) -> bool:
        """exp without a clamp: computed as softmax output and log-sum-exp."""
        return self.coefficients is None and self.limit is None

    @property
    def finite(self) -> bool:
        """True if the weight is a polynomial of the score, so that a recurrent state of constant size exists."""
        return self.coefficients is not None and self.limit is None

    def map_vectors(self, x: Tensor) -> Tensor:
        """phi and psi: the map of queries and keys before their inner product."""
        return x

    def scale(self, head_dim: int) -> float:
        """The factor on the score when the caller gives none."""
        return head_dim**-0.5

    def text(self) -> str:
        """The weight as a formula in x."""
        raise NotImplementedError


MAX_ORDER = 150  # beyond 170, 1/n! is 0 even in float64


def _check_order(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_ORDER:
        raise MechanismError(f"{name} must be a whole number from 0 to {MAX_ORDER}, got {value!r}.")


def _check_clamp(value: object) -> None:
    if value is not None and not is_number(value):
        raise MechanismError(f"clamp must be a finite number or None, got {value!r}.")


def _clamped(clamp: float | None) -> str:
    return "x" if clamp is None else f"min(x, {clamp:g})"


def _series(order: int) -> tuple[float, ...]:
    return tuple(1 / math.factorial(n) for n in range(order + 1))


@dataclass(frozen=True)
class Exp(Kernel):
    """exp(x), or exp(min(x, clamp)). A clamped kernel is summed as it reads, so scores below -87 give 0 in float32.

    >>> str(Exp(clamp=5).text())
    'exp(min(x, 5))'
    """

    clamp: float | None = None

    def __post_init__(self) -> None:
        _check_clamp(self.clamp)

    @property
    def limit(self) -> float | None:
        """As in the base class."""
        return self.clamp

    @property
    def shiftable(self) -> bool:
        """exp(x - c) = exp(x) exp(-c); a clamp breaks that."""
        return self.clamp is None

    def text(self) -> str:
        """As in the base class."""
        return f"exp({_clamped(self.clamp)})"


@dataclass(frozen=True)
class Taylor(Kernel):
    """The exponential's Taylor polynomial of the given order: sum_{n <= order} x^n / n!.

    For a negative score the terms alternate and cancel, in any form: the error is about eps exp(|x|), which for float32 and a score of
    -10 is 1e-3. Orders above 20 or so, which are for large scores, want float64.

    >>> Taylor(2).coefficients
    (1.0, 1.0, 0.5)
    """

    order: int

    def __post_init__(self) -> None:
        _check_order("Taylor order", self.order)

    @property
    def coefficients(self) -> tuple[float, ...]:
        """1 / n! for every n up to the order."""
        return _series(self.order)

    @property
    def signed(self) -> bool:
        """Odd truncations of exp have a real root, even ones have none."""
        return self.order % 2 == 1

    @property
    def shiftable(self) -> bool:
        """As far as the truncation follows exp."""
        return True

    def text(self) -> str:
        """As in the base class."""
        return f"taylor{self.order}(x)"


@dataclass(frozen=True)
class Power(Kernel):
    """One term of the series: x^degree / degree!. ``Power(1)`` is linear attention, eq. 3."""

    degree: int

    def __post_init__(self) -> None:
        _check_order("Power degree", self.degree)

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Zero but for 1 / degree! at the end."""
        return (0.0,) * self.degree + (1 / math.factorial(self.degree),)

    @property
    def signed(self) -> bool:
        """Odd powers are negative where the score is."""
        return self.degree % 2 == 1

    def text(self) -> str:
        """As in the base class."""
        return {0: "1", 1: "x"}.get(self.degree, f"x^{self.degree}/{self.degree}!")


@dataclass(frozen=True)
class Linear(Kernel):
    """phi(q) . psi(k), the kernel of linear attention, or with ``order=N`` its series from 0 to N (App. F).

    ``scaled`` divides the score by sqrt(d); ``clamp`` limits it (and leaves only the parallel form).
    """

    feature_map: str
    order: int | None = None
    scaled: bool = False
    clamp: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.feature_map, str) or self.feature_map not in FEATURE_MAPS:
            raise MechanismError(f"Feature map must be one of {', '.join(FEATURE_MAPS)}, got {self.feature_map!r}.")
        if self.order is not None:
            _check_order("Linear order", self.order)
        _check_clamp(self.clamp)
        if not isinstance(self.scaled, bool):
            raise MechanismError(f"scaled must be True or False, got {self.scaled!r}.")
        if self.clamp is not None and self.clamp <= 0:
            raise MechanismError(f"The clamp of a linear kernel must be positive, got {self.clamp!r}.")

    @property
    def coefficients(self) -> tuple[float, ...]:
        """The score itself, or its series."""
        return (0.0, 1.0) if self.order is None else _series(self.order)

    @property
    def signed(self) -> bool:
        """elu and relu scores are never negative; cosine ones lie in [-1, 1], where every truncation of exp is >= 0."""
        if self.feature_map in ("elu", "relu"):
            return False
        if self.order is None:
            return True
        return self.feature_map == "identity" and self.order % 2 == 1

    @property
    def limit(self) -> float | None:
        """As in the base class."""
        return self.clamp

    def signed_at(self, scale: float) -> bool:
        """The arguments of ``signed`` hold for a positive scale, and for cosine for one up to 1."""
        return self.signed or scale < 0 or (self.feature_map == "cosine" and scale > 1 and bool((self.order or 0) % 2))

    def map_vectors(self, x: Tensor) -> Tensor:
        """As in the base class."""
        return FEATURE_MAPS[self.feature_map](x)

    def scale(self, head_dim: int) -> float:
        """1, as in the authors' linear variants, unless ``scaled``."""
        return head_dim**-0.5 if self.scaled else 1.0

    def text(self) -> str:
        """As in the base class."""
        f = self.feature_map
        x = ("q·k" if f == "identity" else f"{f}(q)·{f}(k)") + ("/√d" if self.scaled else "")
        x = x if self.clamp is None else f"min({x}, {self.clamp:g})"
        return x if self.order is None else f"taylor{self.order}({x})"
