"""Symmetric Kronecker powers (App. A): (a . b)^n as an inner product of feature vectors.

The full power a^{(x)n} has d^n entries, most of them equal: the product x_i x_j appears once for every order of its factors.
Keeping each monomial once, with the square root of how often it appears (a multinomial coefficient) as its weight, leaves
C(d + n - 1, n) features and the same inner product:

    symmetric_power(a, n) . symmetric_power(b, n) = (a . b)^n

Monomials are in lexicographic order of their indices i1 <= i2 <= ... <= in. Those of degree n that begin with i are x_i times
the monomials of degree n - 1 that begin with i or later, which are a contiguous tail: so a power is built from the
previous one by d products of slices, no index is ever gathered.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from operator import index

import torch
from torch import Tensor

from .._shapes import Float, checked
from ..errors import MechanismError
from .operators import operator


def symmetric_dim(d: int, n: int) -> int:
    """How many features ``symmetric_power`` has: C(d + n - 1, n).

    >>> symmetric_dim(16, 2)
    136
    """
    try:
        d, n = index(d), index(n)
    except TypeError:
        raise MechanismError(f"symmetric_dim needs whole numbers, got d={d!r}, n={n!r}.") from None
    if d < 1 or n < 0:
        raise MechanismError(f"symmetric_dim needs d >= 1 and n >= 0, got d={d}, n={n}.")
    return math.comb(d + n - 1, n)


@functools.lru_cache(maxsize=64)
def multiplicities(d: int, n: int) -> Tensor:
    """How many orders of factors give each monomial of degree n: the multinomial coefficients, float64, (dim,)."""
    return _counts(d, n)[0]


def _counts(d: int, n: int) -> tuple[Tensor, Tensor]:
    # Multiplying x_i to a monomial m multiplies the count by n / (how often x_i is then in it); x_i leads, so that
    # number is 1, or one more than m's own leading index has if that is x_i too.
    if n == 0:
        return torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    counts, lead = _counts(d, n - 1)
    blocks = []
    for i, (_, tail) in enumerate(tails(d, n)):
        same = symmetric_dim(d - i, n - 1) - (symmetric_dim(d - i - 1, n - 1) if i + 1 < d else 0) if n > 1 else 0
        led = torch.ones(counts.numel() - tail, dtype=torch.float64)
        led[:same] += lead[tail : tail + same]
        blocks.append((counts[tail:] * n / led, led))
    return torch.cat([c for c, _ in blocks]), torch.cat([led for _, led in blocks])


def tails(d: int, n: int) -> list[tuple[int, int]]:
    """For each leading index i: where its block of degree n begins, and where its tail of degree n - 1 begins."""
    begin = [symmetric_dim(d, n) - math.comb(d - i + n - 1, n) for i in range(d)]
    tail = [symmetric_dim(d, n - 1) - math.comb(d - i + n - 2, n - 1) for i in range(d)]
    return list(zip(begin, tail, strict=True))


def next_power(x: Tensor, previous: Tensor, n: int, out: Tensor) -> Tensor:
    """Monomials of degree n, feature-major: x (..., d, L), previous (..., dim(n-1), L) -> out (..., dim(n), L)."""
    for i, (begin, tail) in enumerate(tails(x.shape[-2], n)):
        block = previous[..., tail:, :]
        torch.mul(x[..., i : i + 1, :], block, out=out[..., begin : begin + block.shape[-2], :])
    return out


def next_power_backward(x: Tensor, previous: Tensor, n: int, grad: Tensor, dx: Tensor, dprevious: Tensor) -> None:
    """Add the gradient of ``next_power`` to ``dx`` and ``dprevious``."""
    for i, (begin, tail) in enumerate(tails(x.shape[-2], n)):
        block = previous[..., tail:, :]
        g = grad[..., begin : begin + block.shape[-2], :]
        dx[..., i, :] += (g * block).sum(-2)
        dprevious[..., tail:, :].addcmul_(g, x[..., i : i + 1, :])


def monomials(x: Tensor, order: int, out: dict[int, Tensor] | None = None) -> list[Tensor]:
    """All powers 0 .. order of feature-major x (..., d, L), without weights; ``out`` says where to write some of them."""
    out = out or {}
    powers = []
    for n in range(order + 1):
        shape = (*x.shape[:-2], symmetric_dim(x.shape[-2], n), x.shape[-1])
        target = out[n] if n in out else x.new_empty(shape)
        if n < 2:
            powers.append(target.fill_(1.0) if n == 0 else target.copy_(x))
        else:
            powers.append(next_power(x, powers[-1], n, target))
    return powers


def monomials_backward(x: Tensor, powers: list[Tensor], grads: list[Tensor]) -> Tensor:
    """The gradient of ``monomials``; ``grads`` is used as scratch space."""
    dx = torch.zeros_like(x)
    for n in range(len(powers) - 1, 1, -1):
        next_power_backward(x, powers[n - 1], n, grads[n], dx, grads[n - 1])
    return dx + grads[1] if len(powers) > 1 else dx


@functools.lru_cache(maxsize=64)
def _factors(d: int, n: int) -> tuple[Tensor, Tensor]:
    """For each monomial of degree n: its leading index, and which monomial of degree n - 1 is the rest."""
    size = symmetric_dim(d, n - 1)
    lead = [torch.full((size - tail,), i) for i, (_, tail) in enumerate(tails(d, n))]
    rest = [torch.arange(tail, size) for _, tail in tails(d, n)]
    return torch.cat(lead), torch.cat(rest)


def _gathered(x: Tensor, order: int) -> list[Tensor]:
    """All powers 0 .. order of x (L, d), without weights, by gathering: few operations, for few vectors."""
    powers = [x.new_ones(len(x), 1), x][: order + 1]
    for n in range(2, order + 1):
        lead, rest = (index.to(x.device) for index in _factors(x.shape[-1], n))
        powers.append(x.index_select(-1, lead) * powers[-1].index_select(-1, rest))
    return powers


@functools.lru_cache(maxsize=64)
def _roots(d: int, orders: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.cat([multiplicities(d, n) for n in orders]).sqrt().to(device, dtype)


def _symmetric_powers(x: Tensor, orders: Sequence[int]) -> Tensor:
    powers = _gathered(x, max(orders))
    roots = _roots(x.shape[-1], tuple(orders), x.dtype, x.device)
    return torch.cat([powers[n] for n in orders], -1) * roots


def _symmetric_powers_backward(grad: Tensor | None, x: Tensor, orders: Sequence[int], _: Tensor) -> tuple[Tensor]:
    assert grad is not None
    grad = (grad * _roots(x.shape[-1], tuple(orders), x.dtype, x.device)).T
    x = x.T.contiguous()
    powers = monomials(x, max(orders))
    grads = [torch.zeros_like(p) for p in powers]
    for n, part in zip(orders, grad.split([len(powers[n]) for n in orders]), strict=True):
        grads[n] += part
    return (monomials_backward(x, powers, grads).T.contiguous(),)


_operator = operator(
    "symmetric_powers", _symmetric_powers, _symmetric_powers_backward, plain=_symmetric_powers,
    fake=lambda x, orders: x.new_empty(len(x), sum(symmetric_dim(x.shape[-1], n) for n in orders)),
)  # fmt: skip


def symmetric_powers(x: Tensor, orders: Sequence[int]) -> Tensor:
    """The symmetric powers of several orders, ascending, side by side."""
    flat = _operator(x.reshape(-1, x.shape[-1]).contiguous(), list(orders))
    return flat.reshape(*x.shape[:-1], flat.shape[-1])


@checked
def symmetric_power(x: Float[Tensor, "*batch d"], n: int) -> Float[Tensor, "*batch features"]:
    """The n-th symmetric Kronecker power of the last axis, differentiable.

    >>> x = torch.tensor([1.0, 2.0])
    >>> symmetric_power(x, 2)  # x0 x0, sqrt(2) x0 x1, x1 x1
    tensor([1.0000, 2.8284, 4.0000])
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim == 0:
        raise MechanismError("symmetric_power takes a floating tensor with at least one axis.")
    symmetric_dim(x.shape[-1], n)
    return symmetric_powers(x, [n])
