"""``softmax_lse`` in Triton: O_t = sum_s p_ts v_s and lse_t = log sum_s exp(y_ts), where

    y_ts = cap(scale q_t . k_s) + log D_ts - bias_s        -inf where t does not see s        p = exp(y - lse)

Forward: a program has a block of queries and goes through the keys they see, with a running maximum. Backward: the weights are made again,
once by blocks of queries (dq) and once by blocks of keys (dk, dv), so that no two programs write to the same place:

    dy = p (do . v - delta)        delta_t = do_t . o_t - dlse_t        dx = dy cap'(x)

Whole tiles need no mask and are visited first; only the others, on the diagonal, at the border of a window or a document, are masked.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..dense import softmax_dense
from ..operators import operator
from .common import (
    Plan,
    Tile,
    dot,
    keys_of,
    load_bounds,
    load_clock,
    load_rows,
    log_decay,
    padded,
    queries_of,
    seen,
    sized,
    store_rows,
)


@triton.jit
def _logits(
    q, k, keys, lo, hi, qh, ql, CK, BIAS, KEEP, Tk, scale, softcap,
    MASKED: tl.constexpr, DECAY: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
):
    """y, and cap(x) for the slope of the cap."""
    x = dot(q, tl.trans(k), PRECISION) * scale
    if CAP:  # tanh by exp(-2|x|), which cannot overflow
        e = tl.exp(-2.0 * tl.abs(x) / softcap)
        x = tl.where(x < 0, -softcap, softcap) * (1.0 - e) / (1.0 + e)
    y = x
    if DECAY:
        kh, kl = load_clock(CK, 0, keys, Tk, True)
        y += log_decay(qh, ql, kh, kl)
    if BIAS is not None:
        y -= tl.load(BIAS + keys, mask=keys < Tk, other=0.0)[None, :]
    if KEEP is not None:
        y = tl.where(tl.load(KEEP + keys, mask=keys < Tk, other=0)[None, :] != 0, y, -float("inf"))
    if MASKED:
        y = tl.where(seen(keys, lo, hi), y, -float("inf"))
    return y, x


@triton.jit
def _forward_step(
    acc, high, total, q, K, V, j, lo, hi, qh, ql, CK, BIAS, KEEP, Tk, scale, softcap,
    D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    MASKED: tl.constexpr, DECAY: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
):
    keys = j + tl.arange(0, BN)
    k = load_rows(K, keys, tl.arange(0, BD), Tk, D)
    y, _ = _logits(q, k, keys, lo, hi, qh, ql, CK, BIAS, KEEP, Tk, scale, softcap, MASKED, DECAY, CAP, PRECISION)
    new = tl.maximum(high, tl.max(y, 1))
    safe = tl.where(new == -float("inf"), 0.0, new)  # a row that has seen nothing yet
    p = tl.exp(y - safe[:, None])
    fade = tl.exp(high - safe)
    v = load_rows(V, keys, tl.arange(0, BE), Tk, E)
    acc = acc * fade[:, None] + dot(p.to(v.dtype), v, PRECISION)
    return acc, new, total * fade + tl.sum(p, 1)


@triton.jit
def softmax_forward(
    Q, K, V, OUT, LSE, CQ, CK, BIAS, LO, HI, KEEP, RANGES, G, Tq, Tk, offset, scale, softcap,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CAUSAL: tl.constexpr, CUT: tl.constexpr, DECAY: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
):
    """One block of queries against all keys they see."""
    i, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = row // G
    rows = i * BM + tl.arange(0, BM)
    q = load_rows(Q + row * Tq * D, rows, tl.arange(0, BD), Tq, D)
    K += n * Tk * D
    V += n * Tk * E
    lo, hi = load_bounds(LO, HI, n * Tq, rows, Tq, Tk, offset, CAUSAL, CUT)
    qh, ql = load_clock(CQ, n * Tq, rows, Tq, DECAY)
    CK = CK + n * Tk if DECAY else CK
    BIAS = BIAS + n * Tk if BIAS is not None else BIAS
    KEEP = KEEP + n * Tk if KEEP is not None else KEEP
    begin, whole, end = keys_of(RANGES, n, i, offset, Tk, BM, BN, CAUSAL, CUT)
    acc = tl.zeros((BM, BE), tl.float32)
    high = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for j in range(begin, whole, BN):
        acc, high, total = _forward_step(
            acc, high, total, q, K, V, j, lo, hi, qh, ql, CK, BIAS, KEEP, Tk, scale, softcap, D, E, BN, BD, BE,
            False, DECAY, CAP, PRECISION,
        )
    for j in range(whole, end, BN):
        acc, high, total = _forward_step(
            acc, high, total, q, K, V, j, lo, hi, qh, ql, CK, BIAS, KEEP, Tk, scale, softcap, D, E, BN, BD, BE,
            True, DECAY, CAP, PRECISION,
        )
    some = total > 0
    kept = tl.where(some, total, 1.0)
    store_rows(OUT + row * Tq * E, rows, tl.arange(0, BE), acc / kept[:, None], Tq, E)
    tl.store(LSE + row * Tq + rows, tl.where(some, high + tl.log(kept), 0.0), mask=rows < Tq)


@triton.jit
def _slopes(
    q, k, v, g, lse, delta, keys, lo, hi, qh, ql, CK, BIAS, KEEP, Tk, scale, softcap,
    MASKED: tl.constexpr, DECAY: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
):
    """p, dy and dx of a tile."""
    y, x = _logits(q, k, keys, lo, hi, qh, ql, CK, BIAS, KEEP, Tk, scale, softcap, MASKED, DECAY, CAP, PRECISION)
    p = tl.exp(y - lse[:, None])
    dy = p * (dot(g, tl.trans(v), PRECISION) - delta[:, None])
    dx = dy
    if CAP:
        ratio = x / softcap
        dx = dy * (1.0 - ratio * ratio)
    return p, dy, dx


@triton.jit
def _dq_step(
    acc, sums, q, g, lse, delta, K, V, j, lo, hi, qh, ql, CK, BIAS, KEEP, Tk, scale, softcap,
    D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    MASKED: tl.constexpr, DECAY: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
):
    keys = j + tl.arange(0, BN)
    k, v = load_rows(K, keys, tl.arange(0, BD), Tk, D), load_rows(V, keys, tl.arange(0, BE), Tk, E)
    _, dy, dx = _slopes(
        q, k, v, g, lse, delta, keys, lo, hi, qh, ql, CK, BIAS, KEEP, Tk, scale, softcap, MASKED, DECAY, CAP, PRECISION
    )
    if DECAY:
        sums += tl.sum(dy, 1)
    return acc + dot(dx.to(k.dtype), k, PRECISION), sums


@triton.jit
def softmax_dq(
    Q, K, V, GRAD, LSE, DELTA, DQ, SUMS, CQ, CK, BIAS, LO, HI, KEEP, RANGES, G, Tq, Tk, offset, scale, softcap,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CAUSAL: tl.constexpr, CUT: tl.constexpr, DECAY: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
):
    """dq of one block of queries, and the row sums of dy, which are the gradient of their clock."""
    i, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = row // G
    rows = i * BM + tl.arange(0, BM)
    q = load_rows(Q + row * Tq * D, rows, tl.arange(0, BD), Tq, D)
    g = load_rows(GRAD + row * Tq * E, rows, tl.arange(0, BE), Tq, E)
    lse = tl.load(LSE + row * Tq + rows, mask=rows < Tq, other=0.0)
    delta = tl.load(DELTA + row * Tq + rows, mask=rows < Tq, other=0.0)
    K += n * Tk * D
    V += n * Tk * E
    lo, hi = load_bounds(LO, HI, n * Tq, rows, Tq, Tk, offset, CAUSAL, CUT)
    qh, ql = load_clock(CQ, n * Tq, rows, Tq, DECAY)
    CK = CK + n * Tk if DECAY else CK
    BIAS = BIAS + n * Tk if BIAS is not None else BIAS
    KEEP = KEEP + n * Tk if KEEP is not None else KEEP
    begin, whole, end = keys_of(RANGES, n, i, offset, Tk, BM, BN, CAUSAL, CUT)
    acc, sums = tl.zeros((BM, BD), tl.float32), tl.zeros((BM,), tl.float32)
    for j in range(begin, whole, BN):
        acc, sums = _dq_step(
            acc, sums, q, g, lse, delta, K, V, j, lo, hi, qh, ql, CK, BIAS, KEEP, Tk, scale, softcap, D, E, BN, BD, BE,
            False, DECAY, CAP, PRECISION,
        )
    for j in range(whole, end, BN):
        acc, sums = _dq_step(
            acc, sums, q, g, lse, delta, K, V, j, lo, hi, qh, ql, CK, BIAS, KEEP, Tk, scale, softcap, D, E, BN, BD, BE,
            True, DECAY, CAP, PRECISION,
        )
    store_rows(DQ + row * Tq * D, rows, tl.arange(0, BD), acc * scale, Tq, D)
    if DECAY:
        tl.store(SUMS + row * Tq + rows, sums, mask=rows < Tq)


@triton.jit
def softmax_dkv(
    Q, K, V, GRAD, LSE, DELTA, DK, DV, SUMS, CQ, CK, BIAS, LO, HI, KEEP, RANGES, G, Tq, Tk, offset, scale, softcap,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CAUSAL: tl.constexpr, CUT: tl.constexpr, DECAY: tl.constexpr, CAP: tl.constexpr, PRECISION: tl.constexpr,
):
    """dk and dv of one block of keys, over the query heads that share it, and the column sums of dy, for its clock and bias."""
    j, n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    keys = j * BN + tl.arange(0, BN)
    k = load_rows(K + n * Tk * D, keys, tl.arange(0, BD), Tk, D)
    v = load_rows(V + n * Tk * E, keys, tl.arange(0, BE), Tk, E)
    CK = CK + n * Tk if DECAY else CK
    BIAS = BIAS + n * Tk if BIAS is not None else BIAS
    KEEP = KEEP + n * Tk if KEEP is not None else KEEP
    begin, end = queries_of(RANGES, n, j, offset, Tq, BM, BN, CAUSAL)
    dk, dv = tl.zeros((BN, BD), tl.float32), tl.zeros((BN, BE), tl.float32)
    sums = tl.zeros((BN,), tl.float32)
    for head in range(0, G):
        row = n * G + head
        for i in range(begin, end, BM):
            rows = i + tl.arange(0, BM)
            q = load_rows(Q + row * Tq * D, rows, tl.arange(0, BD), Tq, D)
            g = load_rows(GRAD + row * Tq * E, rows, tl.arange(0, BE), Tq, E)
            lse = tl.load(LSE + row * Tq + rows, mask=rows < Tq, other=0.0)
            delta = tl.load(DELTA + row * Tq + rows, mask=rows < Tq, other=0.0)
            lo, hi = load_bounds(LO, HI, n * Tq, rows, Tq, Tk, offset, CAUSAL, CUT)
            qh, ql = load_clock(CQ, n * Tq, rows, Tq, DECAY)
            p, dy, dx = _slopes(
                q, k, v, g, lse, delta, keys, lo, hi, qh, ql, CK, BIAS, KEEP, Tk, scale, softcap, True, DECAY, CAP, PRECISION
            )
            dv += dot(tl.trans(p.to(g.dtype)), g, PRECISION)
            dk += dot(tl.trans(dx.to(q.dtype)), q, PRECISION)
            if SUMS is not None:
                sums += tl.sum(dy, 0)
    store_rows(DK + n * Tk * D, keys, tl.arange(0, BD), dk * scale, Tk, D)
    store_rows(DV + n * Tk * E, keys, tl.arange(0, BE), dv, Tk, E)
    if SUMS is not None:
        tl.store(SUMS + n * Tk + keys, sums, mask=keys < Tk)


# Queries, keys, warps of each kernel, in half precision and in float32, by head size: the largest of which nothing is spilled
# (results/gpu/compile.json).
TILES = {
    ("forward", True): {32: Tile(128, 64), 64: Tile(128, 64, 8), 128: Tile(64, 64, 8)},
    ("dq", True): {32: Tile(64, 64), 64: Tile(64, 64, 8), 128: Tile(64, 64, 8)},
    ("dkv", True): {32: Tile(64, 32), 64: Tile(64, 32, 8), 128: Tile(32, 64, 8)},
    ("forward", False): {16: Tile(64, 64), 32: Tile(64, 64, 8), 64: Tile(32, 32)},
    ("dq", False): {16: Tile(64, 64), 32: Tile(64, 32), 64: Tile(32, 32)},
    ("dkv", False): {16: Tile(32, 32), 32: Tile(32, 16), 64: Tile(16, 32)},
}


def tile(kernel: str, dtype: torch.dtype, width: int) -> Tile:
    """What a kernel works on at once."""
    return sized(TILES[kernel, dtype != torch.float32], width)


def _plan(
    kernel: str, q: Tensor, k: Tensor, v: Tensor, cq: Tensor | None, ck: Tensor | None, bias: Tensor | None,
    lo: Tensor | None, hi: Tensor | None, keep: Tensor | None, causal: bool, scale: float, softcap: float | None,
) -> Plan:
    own = {"BIAS": bias, "softcap": softcap or 0.0, "CAP": softcap is not None}
    t = tile(kernel, q.dtype, max(padded(q.shape[-1]), padded(v.shape[-1])))
    return Plan.of(t, q, k, v, cq, ck, lo, hi, keep, causal, scale, **own)


def forward(
    q: Tensor, k: Tensor, v: Tensor, cq: Tensor | None, ck: Tensor | None, bias: Tensor | None, lo: Tensor | None,
    hi: Tensor | None, keep: Tensor | None, causal: bool, scale: float, softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """q (N, G, Tq, D), k (N, Tk, D), v (N, Tk, E), all contiguous -> O in the dtype of q, lse (N, G, Tq, 1) in float32."""
    plan = _plan("forward", q, k, v, cq, ck, bias, lo, hi, keep, causal, scale, softcap)
    out, lse = fake(q, k, v)
    plan.over_queries(softmax_forward, OUT=out, LSE=lse)
    return out, lse


def backward(
    grad: Tensor | None, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, cq: Tensor | None, ck: Tensor | None,
    bias: Tensor | None, lo: Tensor | None, hi: Tensor | None, keep: Tensor | None, causal: bool, scale: float,
    softcap: float | None, out: Tensor, lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of q, k, v, the clocks and the bias."""
    grad = torch.zeros_like(out) if grad is None else grad.contiguous()
    delta = (grad.float() * out.float()).sum(-1, keepdim=True)
    delta = delta if dlse is None else delta - dlse
    more = {"GRAD": grad, "LSE": lse, "DELTA": delta.contiguous()}
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    by_row = None if cq is None else torch.empty_like(lse)
    by_column = None if cq is None and bias is None else lse.new_empty(k.shape[:2])
    plan = _plan("dq", q, k, v, cq, ck, bias, lo, hi, keep, causal, scale, softcap)
    plan.over_queries(softmax_dq, **more, DQ=dq, SUMS=by_row)
    plan = _plan("dkv", q, k, v, cq, ck, bias, lo, hi, keep, causal, scale, softcap)
    plan.over_keys(softmax_dkv, **more, DK=dk, DV=dv, SUMS=by_column)
    lost = None if by_column is None else by_column.neg()
    dcq = None if by_row is None else by_row.sum(1)[..., 0].double()
    return dq, dk, dv, dcq, None if cq is None or lost is None else lost.double(), None if bias is None else lost


def plain(
    q: Tensor, k: Tensor, v: Tensor, cq: Tensor | None, ck: Tensor | None, bias: Tensor | None, lo: Tensor | None,
    hi: Tensor | None, keep: Tensor | None, causal: bool, scale: float, softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """The same in ordinary torch code."""
    wide = (q.float() * scale, k.float(), v.float())
    out, lse = softmax_dense(*wide, cq, ck, None, None, bias, lo, hi, keep, causal, softcap)
    return out.to(q.dtype), lse


def fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Outputs of the right shape."""
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(*q.shape[:3], 1, dtype=torch.float32)


softmax = operator("triton_softmax_lse", forward, backward, plain=plain, fake=fake)
