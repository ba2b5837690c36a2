"""Positive weights on CUDA by FlexAttention, compiled: softmax of m(x) has the weights exp(m(x)), so any positive w is m = log w.

    exp, clamped or capped      m(x) = x, min(x, limit), cap tanh(x / cap)
    Taylor of an even order     m(x) = log(1 + x + x^2/2 + ... + x^N/N!), exact: such a polynomial has no zero

The numerator is then O exp(lse) and the sum of weights exp(lse). Uncompiled, the same call runs on the CPU (forward only): that is how its
result is tested where there is no GPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from ..context import Context

Logarithm = Callable[[Tensor], Tensor]


@functools.cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)


def even_taylor(coefficients: Sequence[float]) -> bool:
    """Is this a Taylor series of exp that ends at an even order, and so is positive everywhere?"""
    steps = (math.isclose(n * c, before) for n, (before, c) in enumerate(pairwise(coefficients), start=1))
    return len(coefficients) % 2 == 1 and coefficients[0] > 0 and all(steps)


def logarithm(coefficients: Sequence[float], limit: float | None, softcap: float | None) -> Logarithm:
    """log w of a tile of scores: of an even Taylor series, or without coefficients of exp."""

    def of(x: Tensor) -> Tensor:
        x = x if limit is None else x.clamp(max=limit)
        if softcap is not None:
            return softcap * torch.tanh(x / softcap)
        if not coefficients:
            return x
        nested = torch.ones_like(x)
        for n in range(len(coefficients) - 1, 0, -1):  # neighbouring ratios of the coefficients are 1/n
            nested = 1.0 + nested * x / n
        # Where the terms cancel to less than they are rounded to, the weight is nothing beside the others.
        return math.log(coefficients[0]) + torch.log(nested.clamp(min=1e-30))

    return of


def flex_lse(
    q: Tensor, k: Tensor, v: Tensor, context: Context, scale: float, log_weight: Logarithm
) -> tuple[Tensor, Tensor]:
    """Softmax output of log_weight(x) and its lse (B, H, Tq, 1); rows that see no key give 0 and 0."""
    lo, hi = context.bounds()
    lo, hi = lo.expand(len(q), -1), hi.expand(len(q), -1)
    keep = context.keep

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        inside = (j >= lo[b, i]) & (j < hi[b, i])
        return inside if keep is None else inside & keep[b, j]

    def modified(x: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return log_weight(x)

    block_mask = create_block_mask(visible, len(q), None, context.queries, context.keys, device=q.device)
    run: Any = _compiled() if q.device.type == "cuda" else flex_attention
    out, aux = run(
        q,
        k,
        v,
        score_mod=modified,
        block_mask=block_mask,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    some = context.count() > 0
    lse = aux.lse[..., None]
    return torch.where(some, out, torch.zeros_like(out)), torch.where(some, lse, torch.zeros_like(lse))
