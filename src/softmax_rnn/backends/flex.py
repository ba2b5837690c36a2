"""``softmax_lse`` on CUDA: FlexAttention, compiled, which gives the log-sum-exp a gradient and takes the clamp as a score_mod.

Uncompiled, the same call runs on the CPU (forward only): that is how its result is tested where there is no GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from ..context import Context


@functools.cache
def _compiled() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)


def flex_lse(
    q: Tensor, k: Tensor, v: Tensor, context: Context, scale: float, limit: float | None
) -> tuple[Tensor, Tensor]:
    """Softmax output of min(x, limit) and its lse (B, H, Tq, 1); rows that see no key give 0 and 0."""
    lo, hi = context.bounds()
    lo, hi = lo.expand(len(q), -1), hi.expand(len(q), -1)
    keep = context.keep

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        inside = (j >= lo[b, i]) & (j < hi[b, i])
        return inside if keep is None else inside & keep[b, j]

    def clamped(x: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return x if limit is None else x.clamp(max=limit)

    block_mask = create_block_mask(visible, len(q), None, context.queries, context.keys, device=q.device)
    run: Any = _compiled() if q.device.type == "cuda" else flex_attention
    out, aux = run(
        q, k, v, score_mod=clamped, block_mask=block_mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True),
    )  # fmt: skip
    some = context.count() > 0
    lse = aux.lse[..., None]
    return torch.where(some, out, torch.zeros_like(out)), torch.where(some, lse, torch.zeros_like(lse))
