"""Kronecker moments: the features phi of all orders, and the moments of a whole sequence written and read at once (App. C).

    phi(x)  the monomials of x, order by order; w(q . k) = phi(q) . W phi(k) with W = c_n times multiplicities
    write   H = sum_s phi(k_s) v_s^T                    (rows, E)
    read    A_t = phi(q_t) . W H

Both go block by block and keep nothing but their arguments for the backward pass. Features are feature-major, (rows, tokens), so that
they are made from contiguous slices. States outside have sqrt(multiplicity) on both sides, as ``symmetric_power``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .operators import operator
from .powers import monomials, monomials_backward, multiplicities, symmetric_dim, symmetric_powers

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


_write_operator = operator(
    "write", _write, _write_backward, plain=_write_plain,
    fake=lambda k, v, coefficients: k.new_empty(
        len(k), sum(symmetric_dim(k.shape[-1], n) for n in _orders(coefficients)), v.shape[-1]
    ),
)  # fmt: skip
_read_operator = operator(
    "read", _read, _read_backward, plain=_read_plain,
    fake=lambda q, state, coefficients: q.new_empty(*q.shape[:2], state.shape[-1]),
)  # fmt: skip


def write(k: Tensor, v: Tensor, coefficients: Sequence[float]) -> Tensor:
    """k (N, T, D), v (N, T, E) -> moments (N, rows, E)."""
    return _write_operator(k.contiguous(), v.contiguous(), list(coefficients))


def read(q: Tensor, state: Tensor, coefficients: Sequence[float]) -> Tensor:
    """q (N, T, D), moments (N, rows, E) -> (N, T, E)."""
    return _read_operator(q.contiguous(), state.contiguous(), list(coefficients))
