"""How a state of orders 0 to 2 lies in memory while kernels work on it, and the scores within a chunk.

Outside, a state has the d(d+1)/2 different products of two channels, each with the square root of how often it appears (``state.py``).
Inside it has feature blocks of d rows each: for order 0 one, of which only the first row is used, for order 1 one, for order 2 one for
each channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..powers import symmetric_dim
from .common import dot, log_decay


@triton.jit
def left(X, rows, T, f, D: tl.constexpr, FIRST: tl.constexpr):
    """left_f of every row: 1, or for order 2 its channel i."""
    i = tl.maximum(f - FIRST, 0)
    x = tl.load(X + rows * D + i, mask=rows < T, other=0.0).to(tl.float32)
    return tl.where(f < FIRST, 1.0, x)


@triton.jit
def right(x, columns, f, ORDER0: tl.constexpr):
    """right of every row, (C, D)."""
    if ORDER0:
        return tl.where(f == 0, tl.where(columns[None, :] == 0, 1.0, 0.0), x)
    return x


@triton.jit
def coefficient(f, c0, c1, c2, ORDER0: tl.constexpr, FIRST: tl.constexpr):
    """c_n of the order that block f belongs to."""
    return tl.where(f >= FIRST, c2, tl.where((f == 0) & ORDER0, c0, c1))


@triton.jit
def within(q, k, rows, qh, ql, kh, kl, T, DECAY: tl.constexpr, PRECISION: tl.constexpr):
    """Scores of a chunk, and D for the pairs in order."""
    x = dot(q, tl.trans(k), PRECISION)
    d = tl.where((rows[:, None] >= rows[None, :]) & (rows[:, None] < T), 1.0, 0.0)
    if DECAY:
        d *= tl.exp(log_decay(qh, ql, kh, kl))
    return x, d


class Orders:
    """Which orders a polynomial has, and how a symmetric state (``state.py``) and one in feature blocks turn into each other."""

    def __init__(self, coefficients: Sequence[float], d: int) -> None:
        self.c = [*coefficients, 0.0, 0.0, 0.0][:3]
        self.d, self.has = d, [c != 0 for c in self.c]
        self.first = self.has[0] + self.has[1]
        self.blocks = self.first + (d if self.has[2] else 0)

    def arguments(self) -> dict[str, Any]:
        """What all kernels are told."""
        c0, c1, c2 = (float(c) for c in self.c)
        return {"c0": c0, "c1": c1, "c2": c2, "ORDER0": self.has[0], "FIRST": self.first}

    def spread(self, state: Tensor) -> Tensor:
        """(N, rows, E) -> (N, blocks * d, E), in float32."""
        N, _, E = state.shape
        sizes = [symmetric_dim(self.d, n) if there else 0 for n, there in enumerate(self.has)]
        zero, one, two = state.float().split(sizes, 1)
        parts = [torch.cat([zero, zero.new_zeros(N, self.d - 1, E)], 1)] if self.has[0] else []
        parts += [one] if self.has[1] else []
        if self.has[2]:
            i, j = torch.triu_indices(self.d, self.d, device=state.device)
            index = torch.empty(self.d, self.d, dtype=torch.long, device=state.device)
            index[i, j] = index[j, i] = torch.arange(len(i), device=state.device)
            parts.append((two / self.roots(state))[:, index.flatten()])
        return torch.cat(parts, 1).contiguous()

    def gather(self, full: Tensor) -> Tensor:
        """The inverse."""
        parts = [full[:, :1]] if self.has[0] else []
        parts += [full[:, self.has[0] * self.d : self.first * self.d]] if self.has[1] else []
        if self.has[2]:
            i, j = torch.triu_indices(self.d, self.d, device=full.device)
            parts.append(full[:, self.first * self.d + i * self.d + j] * self.roots(full))
        return torch.cat(parts, 1)

    def roots(self, like: Tensor) -> Tensor:
        """Of how often a product of two channels appears, (rows, 1)."""
        i, j = torch.triu_indices(self.d, self.d, device=like.device)
        return torch.where(i == j, 1.0, 2.0**0.5)[:, None]
