"""Kronecker moments of a whole sequence, written and read at once: linear attention without an order in time (App. C).

    write   H = sum_s phi(k_s) v_s^T                    (rows, E)
    read    A_t = phi(q_t) . W H

phi are the symmetric powers of all orders in use. Both go block by block and keep nothing but their arguments for the backward
pass. Features are feature-major, (rows, tokens), so that they are made from contiguous slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..features import monomials, monomials_backward, multiplicities, symmetric_dim
from .precision import chosen_precision

BLOCK = 2**21  # features made at once


class Features:
    """phi for the orders with a non-zero coefficient: x (M, L, d) -> (M, rows, L), and its weights W."""

    def __init__(self, coefficients: Sequence[float], d: int, like: Tensor) -> None:
        self.orders = [n for n, c in enumerate(coefficients) if c != 0]
        self.sizes = [symmetric_dim(d, n) for n in self.orders]
        counts = [multiplicities(d, n) for n in self.orders]
        # The state is kept with sqrt(multiplicity) on both sides; here the monomials are bare and W carries it all.
        self.root = torch.cat(counts).sqrt().to(like)[:, None]
        self.weight = torch.cat([c * coefficients[n] for n, c in zip(self.orders, counts, strict=True)]).to(like)[
            :, None
        ]

    def powers(self, x: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Feature-major x, its powers by order, and all those in use below one another."""
        x = x.mT.contiguous()
        stacked = x.new_empty(len(x), sum(self.sizes), x.shape[-1])
        views = dict(zip(self.orders, stacked.split(self.sizes, 1), strict=True))
        return x, monomials(x, self.orders[-1], views), stacked

    def of(self, x: Tensor) -> Tensor:
        """phi(x)."""
        return self.powers(x)[2]

    def backward(self, x: Tensor, powers: list[Tensor], grad: Tensor) -> Tensor:
        """Gradient of phi at feature-major x: grad (M, rows, L) -> (M, L, d)."""
        parts = dict(zip(self.orders, grad.split(self.sizes, 1), strict=True))
        grads = [parts[n] if n in parts else torch.zeros_like(p) for n, p in enumerate(powers)]
        return monomials_backward(x, powers, grads).mT


def _blocks(x: Tensor, rows: int) -> Iterator[slice]:
    step = max(16, BLOCK // max(1, len(x) * rows))
    for t in range(0, x.shape[1], step):
        yield slice(t, t + step)


@torch.library.custom_op("softmax_rnn::write", mutates_args=())
def _write(k: Tensor, v: Tensor, coefficients: Sequence[float]) -> Tensor:
    phi = Features(coefficients, k.shape[-1], k)
    state = k.new_zeros(len(k), len(phi.weight), v.shape[-1])
    for t in _blocks(k, len(phi.weight)):
        state.baddbmm_(phi.of(k[:, t]), v[:, t])
    return state * phi.root


@torch.library.custom_op("softmax_rnn::write_backward", mutates_args=())
def _write_backward(dstate: Tensor, k: Tensor, v: Tensor, coefficients: Sequence[float]) -> tuple[Tensor, Tensor]:
    phi = Features(coefficients, k.shape[-1], k)
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    dstate = dstate * phi.root
    for t in _blocks(k, len(phi.weight)):
        x, powers, features = phi.powers(k[:, t])
        dv[:, t] = torch.bmm(features.mT, dstate)
        dk[:, t] = phi.backward(x, powers, torch.bmm(dstate, v[:, t].mT))
    return dk, dv


@torch.library.custom_op("softmax_rnn::read", mutates_args=())
def _read(q: Tensor, state: Tensor, coefficients: Sequence[float]) -> Tensor:
    phi = Features(coefficients, q.shape[-1], q)
    out = q.new_empty(*q.shape[:2], state.shape[-1])
    weighted = state * (phi.weight / phi.root)
    for t in _blocks(q, len(phi.weight)):
        out[:, t] = torch.bmm(phi.of(q[:, t]).mT, weighted)
    return out


@torch.library.custom_op("softmax_rnn::read_backward", mutates_args=())
def _read_backward(grad: Tensor, q: Tensor, state: Tensor, coefficients: Sequence[float]) -> tuple[Tensor, Tensor]:
    phi = Features(coefficients, q.shape[-1], q)
    dq, dstate = torch.empty_like(q), torch.zeros_like(state)
    weighted = state * (phi.weight / phi.root)
    for t in _blocks(q, len(phi.weight)):
        x, powers, features = phi.powers(q[:, t])
        dstate.baddbmm_(features, grad[:, t])
        dq[:, t] = phi.backward(x, powers, torch.bmm(weighted, grad[:, t].mT))
    return dq, dstate * (phi.weight / phi.root)


@_write.register_fake
def _(k, v, coefficients):  # type: ignore[no-untyped-def]
    orders = [n for n, c in enumerate(coefficients) if c != 0]
    return k.new_empty(len(k), sum(symmetric_dim(k.shape[-1], n) for n in orders), v.shape[-1])


@_write_backward.register_fake
def _(dstate, k, v, coefficients):  # type: ignore[no-untyped-def]
    return torch.empty_like(k), torch.empty_like(v)


@_read.register_fake
def _(q, state, coefficients):  # type: ignore[no-untyped-def]
    return q.new_empty(*q.shape[:2], state.shape[-1])


@_read_backward.register_fake
def _(grad, q, state, coefficients):  # type: ignore[no-untyped-def]
    return torch.empty_like(q), torch.empty_like(state)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.coefficients = inputs
    ctx.save_for_backward(*tensors)


def _write_grad(ctx: Any, dstate: Tensor) -> tuple[Tensor | None, ...]:
    with chosen_precision(dstate):
        return *_write_backward(dstate.contiguous(), *ctx.saved_tensors, ctx.coefficients), None


def _read_grad(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    with chosen_precision(grad):
        return *_read_backward(grad.contiguous(), *ctx.saved_tensors, ctx.coefficients), None


_write.register_autograd(_write_grad, setup_context=_save)
_read.register_autograd(_read_grad, setup_context=_save)


def write(k: Tensor, v: Tensor, coefficients: Sequence[float]) -> Tensor:
    """k (N, T, D), v (N, T, E) -> moments (N, rows, E)."""
    return _write(k.contiguous(), v.contiguous(), list(coefficients))


def read(q: Tensor, state: Tensor, coefficients: Sequence[float]) -> Tensor:
    """q (N, T, D), moments (N, rows, E) -> (N, T, E)."""
    return _read(q.contiguous(), state.contiguous(), list(coefficients))
