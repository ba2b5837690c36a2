"""The weight w(x) that a query gives a key, as a function of their score x = scale * phi(q) . phi(k).

Every kernel is a map of the vectors (``feature_maps``) followed by a function of the score, which is either the exponential or a
polynomial sum_n c_n x^n, optionally of min(x, clamp). That is all the rest of the library knows:

    Exp      exp(x)                       eq. 1      infinitely many recurrent networks
    Taylor   sum_{n<=N} x^n / n!          sec. 3.1   the first N + 1 of them
    Power    x^n / n!                     eq. 3, B   one of them
    Linear   phi(q) . phi(k)              eq. 2      linear attention, or with ``order`` its series (App. F)
    Near     exp for the newest keys, a series for the others: exact where it matters most, and still a state of constant size

A new polynomial kernel is one subclass with ``coefficients``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..errors import MechanismError, is_number
from . import Input, Slot
from .feature_maps import FeatureMap, feature_map


@dataclass(frozen=True)
class Kernel(Slot):
    """What every kernel can be asked. ``coefficients is None`` means the exponential."""

    coefficients: ClassVar[tuple[float, ...] | None] = None  # c_0 .. c_N of the polynomial
    limit: ClassVar[float | None] = None  # the score at which the weight stops growing
    softcap: ClassVar[float | None] = None  # the bound that scores approach and never pass
    signed = False  # can a weight be negative?
    shiftable = (
        False  # does a constant added to the score only rescale all weights (exactly for exp, nearly for its series)?
    )
    positional = False  # does it look at positions, beyond what its score says?
    longest: ClassVar[int | None] = None  # the longest sequence it is for

    def signed_at(self, scale: float) -> bool:
        """Can a weight be negative with this scale on the score?"""
        return self.signed

    @property
    def exponential(self) -> bool:
        """Computed as softmax output and log-sum-exp: exp without a clamp."""
        return self.coefficients is None and self.limit is None

    @property
    def finite(self) -> bool:
        """True if the weight is a polynomial of the score: a Kronecker state of constant size holds all keys."""
        return self.coefficients is not None and self.limit is None

    @property
    def orders(self) -> list[int]:
        """The orders n with a non-zero coefficient: those that have a hidden state."""
        return [n for n, c in enumerate(self.coefficients or ()) if c != 0]

    def map_vectors(self, x: Tensor, positions: Tensor) -> Tensor:
        """phi: the map of queries and keys before their inner product."""
        return x

    def width(self, d: int) -> int:
        """Channels after the map."""
        return d

    def scale(self, head_dim: int) -> float:
        """The factor on the score when the caller gives none."""
        return head_dim**-0.5


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
    """exp(x), exp(min(x, clamp)), or exp(softcap tanh(x / softcap)) as in Gemma 2.

    A clamped kernel is summed as it reads, so scores below -87 give 0 in float32.

    >>> str(Exp(clamp=5).text())
    'exp(min(x, 5))'
    """

    clamp: float | None = None
    softcap: float | None = None  # type: ignore[misc]

    def __post_init__(self) -> None:
        _check_clamp(self.clamp)
        if self.softcap is not None and not (is_number(self.softcap) and self.softcap > 0):
            raise MechanismError(f"softcap must be a positive number or None, got {self.softcap!r}.")
        if self.softcap is not None and self.clamp is not None:
            raise MechanismError("An exponential has a clamp or a softcap, not both.")

    @property
    def limit(self) -> float | None:  # type: ignore[override]
        """The clamp."""
        return self.clamp

    @property
    def shiftable(self) -> bool:  # type: ignore[override]
        """exp(x - c) = exp(x) exp(-c); a clamp or a cap breaks that."""
        return self.clamp is None and self.softcap is None

    def text(self) -> str:
        """exp of the score, as it is limited."""
        if self.softcap is not None:
            return f"exp({self.softcap:g}·tanh(x/{self.softcap:g}))"
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
    def coefficients(self) -> tuple[float, ...]:  # type: ignore[override]
        """1 / n! for every n up to the order."""
        return _series(self.order)

    @property
    def signed(self) -> bool:  # type: ignore[override]
        """Odd truncations of exp have a real root, even ones have none."""
        return self.order % 2 == 1

    @property
    def shiftable(self) -> bool:  # type: ignore[override]
        """As far as the truncation follows exp."""
        return True

    def text(self) -> str:
        """Its formula."""
        return f"taylor{self.order}(x)"


@dataclass(frozen=True)
class Power(Kernel):
    """One term of the series: x^degree / degree!. ``Power(1)`` is linear attention, eq. 3."""

    degree: int

    def __post_init__(self) -> None:
        _check_order("Power degree", self.degree)

    @property
    def coefficients(self) -> tuple[float, ...]:  # type: ignore[override]
        """Zero but for 1 / degree! at the end."""
        return (0.0,) * self.degree + (1 / math.factorial(self.degree),)

    @property
    def signed(self) -> bool:  # type: ignore[override]
        """Odd powers are negative where the score is."""
        return self.degree % 2 == 1

    def text(self) -> str:
        """Its formula."""
        return {0: "1", 1: "x"}.get(self.degree, f"x^{self.degree}/{self.degree}!")


@dataclass(frozen=True)
class Linear(Kernel):
    """phi(q) . phi(k), the kernel of linear attention, or with ``order=N`` its series from 0 to N (App. F).

    Args:
        feature_map: phi, a name or a ``FeatureMap``.
        order: None for the score itself, or N for its Taylor series.
        scaled: divide the score by sqrt(d).
        clamp: limit the score (and leave only the parallel form).
        temperature: multiply the score by a learned factor per head, given as its logarithm (TaylorShift).
    """

    feature_map: str | FeatureMap
    order: int | None = None
    scaled: bool = False
    clamp: float | None = None
    temperature: bool = False

    def __post_init__(self) -> None:
        feature_map(self.feature_map)
        if self.order is not None:
            _check_order("Linear order", self.order)
        _check_clamp(self.clamp)
        for name in ("scaled", "temperature"):
            if not isinstance(getattr(self, name), bool):
                raise MechanismError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        if self.clamp is not None and self.clamp <= 0:
            raise MechanismError(f"The clamp of a linear kernel must be positive, got {self.clamp!r}.")

    @property
    def map(self) -> FeatureMap:
        """The feature map as a value."""
        return feature_map(self.feature_map)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The temperature."""
        if not self.temperature:
            return ()
        return (Input("log_temperature", "H", "the logarithm of the factor on the score"),)

    @property
    def coefficients(self) -> tuple[float, ...]:  # type: ignore[override]
        """The score itself, or its series."""
        return (0.0, 1.0) if self.order is None else _series(self.order)

    @property
    def signed(self) -> bool:  # type: ignore[override]
        """Scores of non-negative features are never negative; cosine ones lie in [-1, 1], where every truncation of exp is >= 0."""
        if self.map.positive:
            return False
        if self.order is None or (self.map.bounded and self.temperature):
            return self.order is None or self.order % 2 == 1
        return not self.map.bounded and self.order % 2 == 1

    @property
    def limit(self) -> float | None:  # type: ignore[override]
        """The clamp."""
        return self.clamp

    @property
    def positional(self) -> bool:  # type: ignore[override]
        """If its map is."""
        return self.map.positional

    @property
    def longest(self) -> int | None:  # type: ignore[override]
        """That of its map."""
        return self.map.longest

    def signed_at(self, scale: float) -> bool:
        """The arguments of ``signed`` hold for a positive scale, and for cosine for one up to 1."""
        return self.signed or scale < 0 or (self.map.bounded and scale > 1 and bool((self.order or 0) % 2))

    def map_vectors(self, x: Tensor, positions: Tensor) -> Tensor:
        """phi(x)."""
        return self.map.apply(x, positions)

    def width(self, d: int) -> int:
        """Features."""
        return self.map.width(d)

    def scale(self, head_dim: int) -> float:
        """1, as in the authors' linear variants, unless ``scaled``."""
        return head_dim**-0.5 if self.scaled else 1.0

    def text(self) -> str:
        """The score, or its series."""
        f = self.map.text()
        x = ("q·k" if f == "identity" else f"{f}(q)·{f}(k)") + ("/√d" if self.scaled else "")
        x = f"τ·{x}" if self.temperature else x
        x = x if self.clamp is None else f"min({x}, {self.clamp:g})"
        return x if self.order is None else f"taylor{self.order}({x})"


@dataclass(frozen=True)
class Near(Kernel):
    """``near`` for the newest ``window`` keys of a query, ``far`` for the older ones.

    With an exponential near by and an even series beyond, no weight is negative and a state of constant size exists: a ring of
    ``window`` keys and values, and the Kronecker moments of what has left it.

    >>> Near(Exp(), Taylor(2), window=64).text()
    'exp(x) if t-s < 64 else taylor2(x)'
    """

    near: Kernel
    far: Kernel
    window: int = 64

    shiftable = True

    def __post_init__(self) -> None:
        if not (isinstance(self.near, Exp) and self.near.clamp is None):
            raise MechanismError(f"Near(near=...) must be an Exp without a clamp, got {self.near!r}.")
        if not isinstance(self.far, Kernel) or not self.far.finite or self.far.signed:
            raise MechanismError(
                f"Near(far=...) must be a series with weights >= 0, such as Taylor(2), got {self.far!r}."
            )
        if self.far.width(8) != 8 or isinstance(self.far, Linear):
            raise MechanismError("Near(far=...) must be a Taylor or Power kernel: both parts share one score.")
        if not isinstance(self.window, int) or isinstance(self.window, bool) or self.window < 1:
            raise MechanismError(f"Near(window=...) must be a whole number >= 1, got {self.window!r}.")

    def text(self) -> str:
        """Both parts."""
        return f"{self.near.text()} if t-s < {self.window} else {self.far.text()}"
