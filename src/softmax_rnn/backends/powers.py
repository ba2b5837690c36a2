"""Symmetric Kronecker powers (App. A): (a . b)^n as an inner product of feature vectors.

The full power a^{(x)n} has d^n entries, most of them equal: the product x_i x_j appears once for every order of its factors.
Keeping each monomial once, with the square root of how often it appears (a multinomial coefficient) as its weight, leaves
C(d + n - 1, n) features and the same inner product:

    symmetric_power(a, n) . symmetric_power(b, n) = (a . b)^n

Monomials are in lexicographic order of their indices i1 <= i2 <= ... <= in. Those of degree n that begin with i are x_i times
the monomials of degree n - 1 that begin with i or later, which are a contiguous tail: so a power is built from the
previous one by d products of slices, no index is ever gathered.

The features phi of a kernel are the monomials of all its orders, w(q . k) = phi(q) . W phi(k) with W = c_n times multiplicities, and its
state the moments of a sequence (App. C). Written and read at once, block by block, they keep nothing but their arguments for the backward
pass:

    write   H = sum_s phi(k_s) v_s^T                    (rows, E)
    read    A_t = phi(q_t) . W H

Features are feature-major, (rows, tokens), so that they are made from contiguous slices. States outside have sqrt(multiplicity) on both
sides, as ``symmetric_power``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from operator import index

import torch
from torch import Tensor

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
)


def symmetric_powers(x: Tensor, orders: Sequence[int]) -> Tensor:
    """The symmetric powers of several orders, ascending, side by side."""
    flat = _operator(x.reshape(-1, x.shape[-1]).contiguous(), list(orders))
    return flat.reshape(*x.shape[:-1], flat.shape[-1])


def symmetric_power(x: Tensor, n: int) -> Tensor:
    """The n-th symmetric Kronecker power of the last axis, (..., d) -> (..., C(d + n - 1, n)), differentiable.

    >>> x = torch.tensor([1.0, 2.0])
    >>> symmetric_power(x, 2)  # x0 x0, sqrt(2) x0 x1, x1 x1
    tensor([1.0000, 2.8284, 4.0000])
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim == 0:
        raise MechanismError("symmetric_power takes a floating tensor with at least one axis.")
    symmetric_dim(x.shape[-1], n)
    return symmetric_powers(x, [n])


NUMBERS = 2**21  # features made at once


class Features:
    """phi for the orders with a non-zero coefficient: x (M, L, d) -> (M, rows, L), and its weights W."""

    def __init__(self, coefficients: Sequence[float], d: int, like: Tensor) -> None:
        self.orders = [n for n, c in enumerate(coefficients) if c != 0]
        self.sizes = [symmetric_dim(d, n) for n in self.orders]
        self.root, self.weight = _weights(tuple(coefficients), d, like.dtype, like.device)
        self.linear = self.orders == [1]  # then phi(x) = x, and nothing is made

    @property
    def rows(self) -> int:
        """How many features."""
        return sum(self.sizes)

    def powers(self, x: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Feature-major x, its powers by order, and all those in use below one another."""
        if self.linear:
            return x.mT, [], x.mT
        x = x.mT.contiguous()
        stacked = x.new_empty(len(x), self.rows, x.shape[-1])
        views = dict(zip(self.orders, stacked.split(self.sizes, 1), strict=True))
        return x, monomials(x, self.orders[-1], views), stacked

    def of(self, x: Tensor) -> Tensor:
        """phi(x)."""
        return self.powers(x)[2]

    def backward(self, x: Tensor, powers: list[Tensor], grad: Tensor) -> Tensor:
        """Gradient of phi at feature-major x: grad (M, rows, L) -> (M, L, d)."""
        if self.linear:
            return grad.mT
        parts = dict(zip(self.orders, grad.split(self.sizes, 1), strict=True))
        grads = [parts[n] if n in parts else torch.zeros_like(p) for n, p in enumerate(powers)]
        return monomials_backward(x, powers, grads).mT


@functools.lru_cache(maxsize=64)
def _weights(
    coefficients: tuple[float, ...], d: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """sqrt(multiplicity) and c_n times multiplicity of every feature, (rows, 1). The state is kept with the root on both sides; here the
    monomials are bare and W carries it all.
    """
    orders = [n for n, c in enumerate(coefficients) if c != 0]
    counts = [multiplicities(d, n) for n in orders]
    weight = torch.cat([c * coefficients[n] for n, c in zip(orders, counts, strict=True)])
    return torch.cat(counts).sqrt().to(device, dtype)[:, None], weight.to(device, dtype)[:, None]


@functools.lru_cache(maxsize=64)
def exponents(orders: tuple[int, ...], d: int) -> Tensor:
    """How often each channel is a factor of each feature: (rows, d) float64, found as the logarithm of the monomials of e^unit vectors."""
    units = torch.eye(d, dtype=torch.float64).exp()
    return (
        torch.cat([symmetric_powers(units, [n]) / symmetric_powers(torch.ones_like(units), [n]) for n in orders], -1)
        .log()
        .T
    )


def _blocks(x: Tensor, rows: int) -> Iterator[slice]:
    step = max(1, NUMBERS // max(1, len(x) * rows))
    for t in range(0, x.shape[1], step):
        yield slice(t, t + step)


def _write(k: Tensor, v: Tensor, coefficients: Sequence[float]) -> Tensor:
    phi = Features(coefficients, k.shape[-1], k)
    state = k.new_zeros(len(k), phi.rows, v.shape[-1])
    for t in _blocks(k, phi.rows):
        state.baddbmm_(phi.of(k[:, t]), v[:, t])
    return state * phi.root


def _write_backward(
    dstate: Tensor | None, k: Tensor, v: Tensor, coefficients: Sequence[float], _: Tensor
) -> tuple[Tensor, Tensor]:
    assert dstate is not None
    phi = Features(coefficients, k.shape[-1], k)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    dstate = dstate * phi.root
    for t in _blocks(k, phi.rows):
        x, powers, features = phi.powers(k[:, t])
        dv[:, t] = torch.bmm(features.mT, dstate)
        dk[:, t] = phi.backward(x, powers, torch.bmm(dstate, v[:, t].mT))
    return dk, dv


def _read(q: Tensor, state: Tensor, coefficients: Sequence[float]) -> Tensor:
    phi = Features(coefficients, q.shape[-1], q)
    out = q.new_empty(*q.shape[:2], state.shape[-1])
    weighted = state * (phi.weight / phi.root)
    for t in _blocks(q, phi.rows):
        out[:, t] = torch.bmm(phi.of(q[:, t]).mT, weighted)
    return out


def _read_backward(
    grad: Tensor | None, q: Tensor, state: Tensor, coefficients: Sequence[float], _: Tensor
) -> tuple[Tensor, Tensor]:
    assert grad is not None
    phi = Features(coefficients, q.shape[-1], q)
    dq, dstate = torch.empty_like(q), torch.zeros_like(state)
    weighted = state * (phi.weight / phi.root)
    for t in _blocks(q, phi.rows):
        x, powers, features = phi.powers(q[:, t])
        dstate.baddbmm_(features, grad[:, t])
        dq[:, t] = phi.backward(x, powers, torch.bmm(weighted, grad[:, t].mT))
    return dq, dstate * (phi.weight / phi.root)


def _orders(coefficients: Sequence[float]) -> list[int]:
    return [n for n, c in enumerate(coefficients) if c != 0]


def _write_plain(k: Tensor, v: Tensor, coefficients: Sequence[float]) -> Tensor:
    return symmetric_powers(k, _orders(coefficients)).mT @ v


def _read_plain(q: Tensor, state: Tensor, coefficients: Sequence[float]) -> Tensor:
    orders = _orders(coefficients)
    c = [q.new_full((symmetric_dim(q.shape[-1], n),), coefficients[n]) for n in orders]
    return (symmetric_powers(q, orders) * torch.cat(c)) @ state


write_operator = operator(
    "write", _write, _write_backward, plain=_write_plain,
    fake=lambda k, v, coefficients: k.new_empty(
        len(k), sum(symmetric_dim(k.shape[-1], n) for n in _orders(coefficients)), v.shape[-1]
    ),
)
read_operator = operator(
    "read", _read, _read_backward, plain=_read_plain,
    fake=lambda q, state, coefficients: q.new_empty(*q.shape[:2], state.shape[-1]),
)


def write(k: Tensor, v: Tensor, coefficients: Sequence[float]) -> Tensor:
    """k (N, T, D), v (N, T, E) -> moments (N, rows, E)."""
    return write_operator(k.contiguous(), v.contiguous(), list(coefficients))


def read(q: Tensor, state: Tensor, coefficients: Sequence[float]) -> Tensor:
    """q (N, T, D), moments (N, rows, E) -> (N, T, E)."""
    return read_operator(q.contiguous(), state.contiguous(), list(coefficients))
