"""Weighted sums for polynomial and clamped kernels, tile by tile: O(T) memory, forward and backward.

    A_t = sum_s w(q_t . k_s) v_s      w = sum_n c_n x^n, exp(min(x, c)), or a polynomial of min(x, c)

For a block of queries the scores against all keys they see are made, turned into weights in place, and used at once. Nothing but
q, k and v is kept for the backward pass, which makes them again; the derivative of the weight is another polynomial (for a Taylor
series the one of an order less), never N score matrices on autograd's tape.

Padded keys need no mask here: their values are zero, and so is then every term and gradient they are in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .precision import chosen_precision
from .weights import weights, weights_and_slopes

BLOCK = 128  # queries per tile
BUDGET = {"cpu": 2**20, "default": 2**26}  # scores per tile: about the cache of a core, or what keeps a GPU busy


class _Tile:
    """A block of sequences n and queries i, the keys j that any of them sees, and how to blank what a query does not see."""

    def __init__(self, n: slice, i: slice, j: slice, mask: Tensor | None, where: slice) -> None:
        self.n, self.i, self.j, self.mask, self.where = n, i, j, mask, where

    def blank_(self, w: Tensor, group: int) -> None:
        if self.mask is not None:
            part = w.unflatten(1, (group, -1))[..., self.where]
            part.mul_(self.mask.to(w.dtype))


def _tiles(q: Tensor, k: Tensor, lo: Tensor | None, hi: Tensor | None, causal: bool) -> Iterator[_Tile]:
    N, group, Tq, _ = q.shape
    Tk = k.shape[1]
    offset = Tk - Tq
    budget = BUDGET.get(q.device.type, BUDGET["default"])
    per_tile = max(2, budget // max(1, BLOCK * group * Tk))
    index = torch.arange(BLOCK, device=q.device)
    triangle = (index[None, :] <= index[:, None])[None, None]
    for n in range(0, N, per_tile):
        ns = slice(n, min(N, n + per_tile))
        for i in range(0, Tq, BLOCK):
            qs = slice(i, min(Tq, i + BLOCK))
            rows = qs.stop - qs.start
            if lo is not None and hi is not None:
                first, last = (x[ns if len(x) > 1 else slice(None), qs] for x in (lo, hi))
                begin = int(first.min())
                keys = slice(begin, max(begin, int(last.max())))
                j = torch.arange(keys.start, keys.stop, device=q.device)
                mask = ((j >= first[..., None]) & (j < last[..., None]))[:, None]
                yield _Tile(ns, qs, keys, mask, slice(None))
            elif causal:
                keys = slice(0, qs.stop + offset)
                yield _Tile(ns, qs, keys, triangle[..., :rows, :rows], slice(-rows, None))
            else:
                yield _Tile(ns, qs, slice(0, Tk), None, slice(None))


@torch.library.custom_op("softmax_rnn::tiled", mutates_args=())
def _tiled(
    q: Tensor, k: Tensor, v: Tensor, lo: Tensor | None, hi: Tensor | None, causal: bool,
    coefficients: Sequence[float], limit: float | None,
) -> Tensor:  # fmt: skip
    N, group, Tq, _ = q.shape
    out = q.new_empty(N, group, Tq, v.shape[-1])
    for t in _tiles(q, k, lo, hi, causal):
        x = torch.bmm(q[t.n, :, t.i].flatten(1, 2), k[t.n, t.j].mT)
        w = weights(x, coefficients, limit)
        t.blank_(w, group)
        out[t.n, :, t.i] = torch.bmm(w, v[t.n, t.j]).unflatten(1, (group, -1))
    return out


@torch.library.custom_op("softmax_rnn::tiled_backward", mutates_args=())
def _tiled_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, lo: Tensor | None, hi: Tensor | None, causal: bool,
    coefficients: Sequence[float], limit: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    group = q.shape[1]
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for t in _tiles(q, k, lo, hi, causal):
        rows, keys, g = q[t.n, :, t.i].flatten(1, 2), k[t.n, t.j], grad[t.n, :, t.i].flatten(1, 2)
        w, slope = weights_and_slopes(torch.bmm(rows, keys.mT), coefficients, limit)
        t.blank_(w, group)
        dv[t.n, t.j].baddbmm_(w.mT, g)
        dx = torch.bmm(g, v[t.n, t.j].mT).mul_(slope)
        t.blank_(dx, group)
        dq[t.n, :, t.i] = torch.bmm(dx, keys).unflatten(1, (group, -1))
        dk[t.n, t.j].baddbmm_(dx.mT, rows)
    return dq, dk, dv


@_tiled.register_fake
def _(q, k, v, lo, hi, causal, coefficients, limit):  # type: ignore[no-untyped-def]
    return q.new_empty(*q.shape[:3], v.shape[-1])


@_tiled_backward.register_fake
def _(grad, q, k, v, lo, hi, causal, coefficients, limit):  # type: ignore[no-untyped-def]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, lo, hi, ctx.causal, ctx.coefficients, ctx.limit = inputs
    ctx.save_for_backward(q, k, v, lo, hi)


def _grad(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, lo, hi = ctx.saved_tensors
    with chosen_precision(q):
        grads = _tiled_backward(grad.contiguous(), q, k, v, lo, hi, ctx.causal, ctx.coefficients, ctx.limit)
    return (*grads, None, None, None, None, None)


_tiled.register_autograd(_grad, setup_context=_setup)


def tiled(
    q: Tensor, k: Tensor, v: Tensor, bounds: tuple[Tensor, Tensor] | None, causal: bool,
    coefficients: Sequence[float], limit: float | None,
) -> Tensor:  # fmt: skip
    """q (N, G, Tq, D), k (N, Tk, D), v (N, Tk, E) -> (N, G, Tq, E); no coefficients stands for exp.

    N counts sequences times kv heads, G the query heads of each. ``bounds`` (N or 1, Tq) or None as in ``flash``.
    """
    q, k, v = (x.contiguous() for x in (q, k, v))
    lo, hi = (None, None) if bounds is None else bounds
    return _tiled(q, k, v, lo, hi, causal, list(coefficients), limit)
