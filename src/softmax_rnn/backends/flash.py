"""``softmax_lse`` on the CPU: one flash call that returns softmax output O and lse, with gradients for both.

    A_t = sum_s exp(x_ts) v_s = O_t exp(lse_t)                                              (eq. 1, numerator)

so every exp mechanism is this call and something pointwise. torch's CPU kernel gives lse but no gradient for it; its backward
uses O only for the row sum delta_t = sum(dO_t * O_t), and the gradient of lse enters the scores as delta_t - dlse_t. So we
hand it O'_t = O_t - (dlse_t / |dO_t|^2) dO_t in place of O_t, whose row sum is exactly that. (A row with dO_t = 0 has
dlse_t = 0 here, because lse is only ever used as a factor on O.)

The aten operators are private to torch: they are called nowhere else, and tests hold them to the dense reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .dense import softmax_dense
from .operators import operator

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

TILE = 256  # queries per call where a mask is needed: bounds its size to TILE x keys


def _tiles(lo: Tensor, hi: Tensor) -> Iterator[tuple[slice, slice, slice, Tensor]]:
    """(batch, queries, keys, mask): blocks of queries with the keys that any of them sees."""
    rows = [slice(None)] if len(lo) == 1 else [slice(b, b + 1) for b in range(len(lo))]
    for b in rows:
        for i in range(0, lo.shape[1], TILE):
            queries = slice(i, i + TILE)
            first, last = lo[b, queries], hi[b, queries]
            keys = slice(int(first.min()), max(int(last.max()), int(first.min())))
            if keys.stop > keys.start:
                j = torch.arange(keys.start, keys.stop, device=lo.device)
                yield b, queries, keys, (j >= first[..., None]) & (j < last[..., None])


def _additive(mask: Tensor | None, keep: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """The flash operator's mask: 0 or -inf, (B or 1, 1, queries or 1, keys)."""
    if keep is not None:
        mask = keep[:, None] if mask is None else mask & keep[:, None]
    if mask is None:
        return None
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)[:, None]


def _heads_last(like: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros in the layout in which torch's kernel gives lse and gradients: (B, T, H, ...) seen as (B, H, T, ...)."""
    return torch.zeros_like(like.transpose(1, 2), dtype=dtype, memory_format=torch.contiguous_format).transpose(1, 2)


def _flash(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, lo: Tensor | None, hi: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    if lo is None or hi is None:
        return _forward(q, k, v, 0.0, causal, attn_mask=_additive(None, keep, q.dtype), scale=scale)
    out, lse = torch.zeros_like(q), _heads_last(q[..., 0], torch.promote_types(q.dtype, torch.float32))
    for b, i, j, mask in _tiles(lo, hi):
        bias = _additive(mask, None if keep is None else keep[b, j], q.dtype)
        o, s = _forward(q[b, :, i], k[b, :, j], v[b, :, j], 0.0, False, attn_mask=bias, scale=scale)
        out[b, :, i], lse[b, :, i] = o, s
    return out, lse


def _with_lse_gradient(out: Tensor, grad: Tensor, dlse: Tensor) -> Tensor:
    """O' with sum(dO * O') = sum(dO * O) - dlse."""
    g, o = grad.to(dlse.dtype), out.to(dlse.dtype)
    size = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    if not bool(((size > 1e-15) & (size < 1e15)).all()):  # squares could leave the range: scale each row to 1 first
        top = g.abs().amax(-1, keepdim=True)
        top = torch.where(top > 0, top, torch.ones_like(top))
        g, dlse = g / top, dlse / top[..., 0]
        size = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
        size = torch.where(size > 0, size, torch.ones_like(size))
    return torch.addcmul(o, dlse[..., None] / size / size, g, value=-1).to(out.dtype)


def _flash_backward(
    grad: Tensor | None, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None,
    lo: Tensor | None, hi: Tensor | None, causal: bool, scale: float, out: Tensor, lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    grad = torch.zeros_like(out) if grad is None else grad  # lse is only ever used as a factor on the output
    if dlse is not None:
        out = _with_lse_gradient(out, grad, dlse)
    if lo is None or hi is None:
        bias = _additive(None, keep, q.dtype)
        return _backward(grad, q, k, v, out, lse, 0.0, causal, attn_mask=bias, scale=scale)
    wide = torch.promote_types(q.dtype, torch.float32)
    dq, dk, dv = (_heads_last(x, wide) for x in (q, k, v))
    for b, i, j, mask in _tiles(lo, hi):
        bias = _additive(mask, None if keep is None else keep[b, j], q.dtype)
        g, q_, o, s = (x[b, :, i] for x in (grad, q, out, lse))
        parts = _backward(g, q_, k[b, :, j], v[b, :, j], o, s, 0.0, False, attn_mask=bias, scale=scale)
        dq[b, :, i] += parts[0]
        dk[b, :, j] += parts[1]
        dv[b, :, j] += parts[2]
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _flash_plain(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, lo: Tensor | None, hi: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    B, H, Tq, D = q.shape
    Hkv = k.shape[1]
    rows: list[Any] = [None if x is None else x.expand(B, -1).repeat_interleave(Hkv, 0) for x in (lo, hi, keep)]
    grouped = (q * scale).reshape(B * Hkv, H // Hkv, Tq, D)
    out, lse = softmax_dense(
        grouped, k.flatten(0, 1), v.flatten(0, 1), *(None,) * 5, rows[0], rows[1], rows[2], causal, None
    )
    return out.reshape(q.shape), lse.reshape(B, H, Tq)


_operator = operator(
    "flash", _flash, _flash_backward, plain=_flash_plain,
    fake=lambda q, *_: (torch.empty_like(q), _heads_last(q[..., 0], torch.promote_types(q.dtype, torch.float32))),
    fake_backward=lambda grad, dlse, *tensors: tuple(_heads_last(x, x.dtype) for x in tensors[:3]),
)


def flash_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    bounds: tuple[Tensor, Tensor] | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Softmax output (B, H, Tq, D) and lse (B, H, Tq) of the visible keys; rows that see none give 0 and 0.

    ``bounds`` None: each query sees all keys, or with ``causal`` those up to its own index. Needs at least one key and as many
    value as key channels.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    lo, hi = (None, None) if bounds is None else bounds
    return _operator(q, k, v, keep, lo, hi, causal, scale)
