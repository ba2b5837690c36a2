"""Scores under channel decay: x_ts = sum_i q_ti k_si exp(a_ti - a_si), where a is the clock of each channel.

Written as one product, (q exp(a_t)) . (k exp(-a_s)) overflows after a few dozen tokens. So the keys are met in two ways:

    keys before a block of queries    both sides relative to the end of those keys, where each exponent is at most 0
    keys inside the block             relative to the beginning of the block, if no channel falls by more than e^-60 inside it;
                                      otherwise in blocks of 16, whose own 16 x 16 pairs are written out

The gradient of the clocks needs no care: x depends on them only through q exp(a) and k exp(-a), so da_t = q_t dq_t and da_s = -k_s dk_s.
"""

from __future__ import annotations

import torch
from torch import Tensor

SUB = 16
RANGE = 60.0  # e^60 times e^-60 is still exact in float32


def _past(q: Tensor, k: Tensor, aq: Tensor, ak: Tensor, end: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys relative to the clock ``end`` (M, 1, d) between them, and the factors used."""
    fq, fk = (aq - end).to(q.dtype).exp_(), (end - ak).to(k.dtype).exp_()
    return q * fq[:, None], k * fk, fq, fk


def _narrow(aq: Tensor, ak: Tensor) -> bool:
    """Is the fall inside the block small enough for one product?"""
    return aq.numel() == 0 or bool(
        (ak[:, :1] - torch.minimum(aq.amin(1, keepdim=True), ak.amin(1, keepdim=True))).max() < RANGE
    )


def _pairs(aq: Tensor, ak: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(a_t - a_s) for the pairs s <= t of a small block, 0 elsewhere: (M, C, C, d)."""
    C = aq.shape[1]
    later = torch.ones(C, C, dtype=torch.bool, device=aq.device).triu(1)[..., None]
    return (aq[:, :, None] - ak[:, None]).masked_fill(later, -torch.inf).to(dtype).exp_()


def inside(q: Tensor, k: Tensor, aq: Tensor, ak: Tensor) -> Tensor:
    """Scores of a block with itself: q (M, G, C, d), k (M, C, d), clocks (M, C, d) -> (M, G, C, C); right where s <= t."""
    M, G, C, _ = q.shape
    if _narrow(aq, ak):
        left, right, *_ = _past(q, k, aq, ak, ak[:, :1])
        return torch.matmul(left, right.mT[:, None])
    if C <= SUB:
        pairs = _pairs(aq, ak, q.dtype).mul_(k[:, None])  # (M, C, C, d)
        return torch.matmul(q.transpose(1, 2), pairs.mT).transpose(1, 2)  # (M, C, G, C) -> (M, G, C, C)
    x = q.new_zeros(M, G, C, C)
    for r in range(0, C, SUB):
        rows = slice(r, min(C, r + SUB))
        x[:, :, rows, rows] = inside(q[:, :, rows], k[:, rows], aq[:, rows], ak[:, rows])
        if r:
            left, right, *_ = _past(q[:, :, rows], k[:, :r], aq[:, rows], ak[:, :r], ak[:, r - 1 : r])
            x[:, :, rows, :r] = torch.matmul(left, right.mT[:, None])
    return x


def inside_backward(dx: Tensor, q: Tensor, k: Tensor, aq: Tensor, ak: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of q and k; dx must be 0 where s > t."""
    C = q.shape[2]
    if _narrow(aq, ak):
        left, right, fq, fk = _past(q, k, aq, ak, ak[:, :1])
        return torch.matmul(dx, right[:, None]).mul_(fq[:, None]), torch.matmul(dx.mT, left).sum(1).mul_(fk)
    if C <= SUB:
        e = _pairs(aq, ak, q.dtype)
        dq = torch.matmul(dx.transpose(1, 2), e * k[:, None]).transpose(1, 2)  # (M, C, G, d)
        dk = (torch.matmul(dx.permute(0, 2, 3, 1), q.transpose(1, 2)) * e).sum(1)  # (M, t, s, d)
        return dq, dk
    dq, dk = torch.zeros_like(q), torch.zeros_like(k)
    for r in range(0, C, SUB):
        rows = slice(r, min(C, r + SUB))
        a, b = inside_backward(dx[:, :, rows, rows], q[:, :, rows], k[:, rows], aq[:, rows], ak[:, rows])
        dq[:, :, rows] += a
        dk[:, rows] += b
        if r:
            a, b = before_backward(dx[:, :, rows, :r], q[:, :, rows], k[:, :r], aq[:, rows], ak[:, :r])
            dq[:, :, rows] += a
            dk[:, :r] += b
    return dq, dk


def before(q: Tensor, k: Tensor, aq: Tensor, ak: Tensor) -> Tensor:
    """Scores of a block of queries with the keys before it: q (M, G, C, d), k (M, L, d) -> (M, G, C, L)."""
    left, right, *_ = _past(q, k, aq, ak, ak[:, -1:])
    return torch.matmul(left, right.mT[:, None])


def before_backward(dx: Tensor, q: Tensor, k: Tensor, aq: Tensor, ak: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of q and k."""
    left, right, fq, fk = _past(q, k, aq, ak, ak[:, -1:])
    return torch.matmul(dx, right[:, None]).mul_(fq[:, None]), torch.matmul(dx.mT, left).sum(1).mul_(fk)
