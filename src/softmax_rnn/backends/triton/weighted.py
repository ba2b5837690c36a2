"""``weighted_sum`` in Triton: A_t = sum_s W_ts v_s and Z_t = sum_s W_ts over the keys that t sees, where

    W_ts = D_ts w(min(scale q_t . k_s, limit))        w a polynomial (Taylor, Power; signed), or exp

There is no maximum to run after, so a block of queries only adds. Backward, as for softmax, by blocks of queries and by blocks of keys:

    dW = do . v + dz        dx = D w'(x) dW, 0 above the limit        dv = W^T do        dc_t = sum_s W dW, dc_s = -sum_t W dW

The derivative of a Taylor series is the series of an order less, so w' is made once and w is w' plus the last term. Weights have no
bound (exp(12) is beyond float16), so products with them are never made in float16; A and Z leave in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..dense import weighted_dense
from ..operators import operator
from .common import (
    Plan,
    Tile,
    cast,
    dot,
    keys_of,
    load_bounds,
    load_clock,
    load_rows,
    log_decay,
    padded,
    polynomial,
    queries_of,
    runs,
    seen,
    sized,
    slope_and_rest,
    store_rows,
)


@triton.jit
def _faded(
    w, keys, lo, hi, qh, ql, CK, KEEP, Tk, MASKED: tl.constexpr, DECAY: tl.constexpr
):
    """w times D, 0 for what is not seen."""
    if DECAY:
        kh, kl = load_clock(CK, 0, keys, Tk, True)
        w *= tl.exp(log_decay(qh, ql, kh, kl))
    if KEEP is not None:
        w = tl.where(tl.load(KEEP + keys, mask=keys < Tk, other=0)[None, :] != 0, w, 0.0)
    if MASKED:
        w = tl.where(seen(keys, lo, hi), w, 0.0)
    return w


@triton.jit
def _forward_step(
    acc, total, q, K, V, j, lo, hi, qh, ql, CK, KEEP, Tk, scale, limit, WEIGHT: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    MASKED: tl.constexpr, DECAY: tl.constexpr, CLAMP: tl.constexpr, TOTAL: tl.constexpr, PRECISION: tl.constexpr,
):
    keys = j + tl.arange(0, BN)
    k = load_rows(K, keys, tl.arange(0, BD), Tk, D)
    x = dot(q, tl.trans(k), PRECISION) * scale
    if CLAMP:
        x = tl.minimum(x, limit)
    w = tl.exp(x) if WEIGHT is None else polynomial(x, WEIGHT)
    w = _faded(w, keys, lo, hi, qh, ql, CK, KEEP, Tk, MASKED, DECAY)
    v = load_rows(V, keys, tl.arange(0, BE), Tk, E)
    acc += dot(cast(w, v.dtype), v, PRECISION)
    if TOTAL:
        total += tl.sum(w, 1)
    return acc, total


@triton.jit
def weighted_forward(
    Q, K, V, OUT, SUM, CQ, CK, LO, HI, KEEP, RANGES, G, Tq, Tk, offset, scale, limit, WEIGHT: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CAUSAL: tl.constexpr, CUT: tl.constexpr, DECAY: tl.constexpr, CLAMP: tl.constexpr, PRECISION: tl.constexpr,
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
    KEEP = KEEP + n * Tk if KEEP is not None else KEEP
    begin, whole, end = keys_of(RANGES, n, i, offset, Tk, BM, BN, CAUSAL, CUT)
    acc, total = tl.zeros((BM, BE), tl.float32), tl.zeros((BM,), tl.float32)
    for j in range(begin, whole, BN):
        acc, total = _forward_step(
            acc, total, q, K, V, j, lo, hi, qh, ql, CK, KEEP, Tk, scale, limit, WEIGHT, D, E, BN, BD, BE,
            False, DECAY, CLAMP, SUM is not None, PRECISION,
        )
    for j in range(whole, end, BN):
        acc, total = _forward_step(
            acc, total, q, K, V, j, lo, hi, qh, ql, CK, KEEP, Tk, scale, limit, WEIGHT, D, E, BN, BD, BE,
            True, DECAY, CLAMP, SUM is not None, PRECISION,
        )
    store_rows(OUT + row * Tq * E, rows, tl.arange(0, BE), acc, Tq, E)
    if SUM is not None:
        tl.store(SUM + row * Tq + rows, total, mask=rows < Tq)


@triton.jit
def _slopes(
    q, k, v, g, dz, keys, lo, hi, qh, ql, CK, KEEP, Tk, scale, limit, SLOPE: tl.constexpr, REST: tl.constexpr, ADD: tl.constexpr,
    MASKED: tl.constexpr, DECAY: tl.constexpr, CLAMP: tl.constexpr, PRECISION: tl.constexpr,
):
    """W, dW and dx of a tile."""
    x = dot(q, tl.trans(k), PRECISION) * scale
    y = tl.minimum(x, limit) if CLAMP else x
    if SLOPE is None:
        w = tl.exp(y)
        slope = w
    else:
        slope = polynomial(y, SLOPE)
        w = polynomial(y, REST) + slope if ADD else polynomial(y, REST)
    if CLAMP:  # at the limit itself the slope is that of below, as for torch.clamp
        slope = tl.where(x <= limit, slope, 0.0)
    fade = _faded(tl.full(x.shape, 1.0, tl.float32), keys, lo, hi, qh, ql, CK, KEEP, Tk, MASKED, DECAY)
    dw = dot(g, cast(tl.trans(v), g.dtype), PRECISION) + dz[:, None]
    return w * fade, dw, dw * slope * fade


@triton.jit
def weighted_dq(
    Q, K, V, GRAD, DZ, DQ, CQ, CK, LO, HI, KEEP, RANGES, G, Tq, Tk, offset, scale, limit,
    SLOPE: tl.constexpr, REST: tl.constexpr, ADD: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CAUSAL: tl.constexpr, CUT: tl.constexpr, DECAY: tl.constexpr, CLAMP: tl.constexpr, PRECISION: tl.constexpr,
):
    """dq of one block of queries."""
    i, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = row // G
    rows = i * BM + tl.arange(0, BM)
    q = load_rows(Q + row * Tq * D, rows, tl.arange(0, BD), Tq, D)
    g = load_rows(GRAD + row * Tq * E, rows, tl.arange(0, BE), Tq, E)
    dz = tl.zeros((BM,), tl.float32) if DZ is None else tl.load(DZ + row * Tq + rows, mask=rows < Tq, other=0.0)
    lo, hi = load_bounds(LO, HI, n * Tq, rows, Tq, Tk, offset, CAUSAL, CUT)
    qh, ql = load_clock(CQ, n * Tq, rows, Tq, DECAY)
    CK = CK + n * Tk if DECAY else CK
    KEEP = KEEP + n * Tk if KEEP is not None else KEEP
    begin, _whole, end = keys_of(RANGES, n, i, offset, Tk, BM, BN, CAUSAL, CUT)
    acc = tl.zeros((BM, BD), tl.float32)
    for j in range(begin, end, BN):
        keys = j + tl.arange(0, BN)
        k = load_rows(K + n * Tk * D, keys, tl.arange(0, BD), Tk, D)
        v = load_rows(V + n * Tk * E, keys, tl.arange(0, BE), Tk, E)
        _w, _dw, dx = _slopes(
            q, k, v, g, dz, keys, lo, hi, qh, ql, CK, KEEP, Tk, scale, limit, SLOPE, REST, ADD, True, DECAY, CLAMP, PRECISION
        )
        acc += dot(cast(dx, k.dtype), k, PRECISION)
    store_rows(DQ + row * Tq * D, rows, tl.arange(0, BD), acc * scale, Tq, D)


@triton.jit
def weighted_dkv(
    Q, K, V, GRAD, DZ, DK, DV, SUMS, CQ, CK, LO, HI, KEEP, RANGES, G, Tq, Tk, offset, scale, limit,
    SLOPE: tl.constexpr, REST: tl.constexpr, ADD: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CAUSAL: tl.constexpr, CUT: tl.constexpr, DECAY: tl.constexpr, CLAMP: tl.constexpr, PRECISION: tl.constexpr,
):
    """dk and dv of one block of keys, over the query heads that share it, and the column sums of W dW, for its clock."""
    j, n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    keys = j * BN + tl.arange(0, BN)
    k = load_rows(K + n * Tk * D, keys, tl.arange(0, BD), Tk, D)
    v = load_rows(V + n * Tk * E, keys, tl.arange(0, BE), Tk, E)
    CK = CK + n * Tk if DECAY else CK
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
            dz = tl.zeros((BM,), tl.float32) if DZ is None else tl.load(DZ + row * Tq + rows, mask=rows < Tq, other=0.0)
            lo, hi = load_bounds(LO, HI, n * Tq, rows, Tq, Tk, offset, CAUSAL, CUT)
            qh, ql = load_clock(CQ, n * Tq, rows, Tq, DECAY)
            w, dw, dx = _slopes(
                q, k, v, g, dz, keys, lo, hi, qh, ql, CK, KEEP, Tk, scale, limit, SLOPE, REST, ADD, True, DECAY, CLAMP, PRECISION
            )
            dv += dot(tl.trans(cast(w, g.dtype)), g, PRECISION)
            dk += dot(tl.trans(cast(dx, q.dtype)), q, PRECISION)
            if SUMS is not None:
                sums += tl.sum(w * dw, 0)
    store_rows(DK + n * Tk * D, keys, tl.arange(0, BD), dk * scale, Tk, D)
    store_rows(DV + n * Tk * E, keys, tl.arange(0, BE), dv, Tk, E)
    if SUMS is not None:
        tl.store(SUMS + n * Tk + keys, sums, mask=keys < Tk)


# Of each kernel, by dtype and head size: the largest of which nothing is spilled (results/gpu/compile.json).
TILES = {
    ("forward", torch.bfloat16): {32: Tile(128, 64), 64: Tile(128, 64), 128: Tile(128, 64, 8)},
    ("dq", torch.bfloat16): {32: Tile(64, 64), 64: Tile(64, 64, 8), 128: Tile(64, 64, 8)},
    ("dkv", torch.bfloat16): {32: Tile(64, 32), 64: Tile(32, 32), 128: Tile(32, 64, 8)},
    ("forward", torch.float16): {32: Tile(128, 64), 64: Tile(128, 64, 8), 128: Tile(128, 64, 8)},
    ("dq", torch.float16): {32: Tile(64, 64), 64: Tile(64, 64, 8), 128: Tile(64, 32)},
    ("dkv", torch.float16): {32: Tile(64, 32), 64: Tile(32, 32), 128: Tile(32, 64, 8)},
    ("forward", torch.float32): {16: Tile(64, 64), 32: Tile(64, 64, 8), 64: Tile(64, 32)},
    ("dq", torch.float32): {16: Tile(64, 64), 32: Tile(64, 32), 64: Tile(32, 32)},
    ("dkv", torch.float32): {16: Tile(32, 32), 32: Tile(16, 16), 64: Tile(16, 32)},
}


def tile(kernel: str, dtype: torch.dtype, width: int) -> Tile:
    """What a kernel works on at once."""
    return sized(TILES[kernel, dtype], width)


def _plan(
    kernel: str, q: Tensor, k: Tensor, v: Tensor, cq: Tensor | None, ck: Tensor | None, lo: Tensor | None,
    hi: Tensor | None, keep: Tensor | None, causal: bool, scale: float, limit: float | None,
) -> Plan:
    own = {"limit": 0.0 if limit is None else limit, "CLAMP": limit is not None}
    t = tile(kernel, q.dtype, max(padded(q.shape[-1]), padded(v.shape[-1])))
    return Plan.of(t, q, k, v, cq, ck, lo, hi, keep, causal, scale, **own)


def forward(
    q: Tensor, k: Tensor, v: Tensor, cq: Tensor | None, ck: Tensor | None, lo: Tensor | None, hi: Tensor | None,
    keep: Tensor | None, causal: bool, scale: float, coefficients: Sequence[float], limit: float | None, with_total: bool,
) -> tuple[Tensor, Tensor]:
    """q (N, G, Tq, D), k (N, Tk, D), v (N, Tk, E), all contiguous -> A (N, G, Tq, E) and Z (N, G, Tq, 1), empty unless asked for."""
    plan = _plan("forward", q, k, v, cq, ck, lo, hi, keep, causal, scale, limit)
    out, total = fake(q, k, v, with_total)
    weight = runs(coefficients) if coefficients else None
    plan.over_queries(weighted_forward, OUT=out, SUM=total if with_total else None, WEIGHT=weight)
    return out, total


def backward(
    grad: Tensor | None, dtotal: Tensor | None, q: Tensor, k: Tensor, v: Tensor, cq: Tensor | None, ck: Tensor | None,
    lo: Tensor | None, hi: Tensor | None, keep: Tensor | None, causal: bool, scale: float, coefficients: Sequence[float],
    limit: float | None, with_total: bool, out: Tensor, total: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of q, k, v and the clocks."""
    grad = torch.zeros_like(out) if grad is None else grad
    dz = None if dtotal is None or not with_total else dtotal.contiguous()
    slope, rest, add = slope_and_rest(coefficients) if coefficients else (None, None, False)
    narrow = grad.to(torch.float32 if q.dtype == torch.float16 else q.dtype).contiguous()
    more = {"GRAD": narrow, "DZ": dz, "SLOPE": slope, "REST": rest, "ADD": add}
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    sums = None if cq is None else out.new_empty(k.shape[:2])
    plan = _plan("dq", q, k, v, cq, ck, lo, hi, keep, causal, scale, limit)
    plan.over_queries(weighted_dq, **more, DQ=dq)
    plan = _plan("dkv", q, k, v, cq, ck, lo, hi, keep, causal, scale, limit)
    plan.over_keys(weighted_dkv, **more, DK=dk, DV=dv, SUMS=sums)
    if sums is None:
        return dq, dk, dv, None, None
    dcq = (grad * out).sum((1, -1)).double()
    dcq = dcq if dz is None else dcq + (dz * total).sum((1, -1))
    return dq, dk, dv, dcq, sums.double().neg_()


def plain(
    q: Tensor, k: Tensor, v: Tensor, cq: Tensor | None, ck: Tensor | None, lo: Tensor | None, hi: Tensor | None,
    keep: Tensor | None, causal: bool, scale: float, coefficients: Sequence[float], limit: float | None, with_total: bool,
) -> tuple[Tensor, Tensor]:
    """The same in ordinary torch code."""
    wide = (q.float() * scale, k.float(), v.float())
    return weighted_dense(*wide, cq, ck, None, None, lo, hi, keep, causal, coefficients, limit, with_total)


def fake(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """Outputs of the right shape; the last argument says whether the sum of weights is asked for."""
    shape = q.shape[:3]
    return (
        q.new_empty(*shape, v.shape[-1], dtype=torch.float32),
        q.new_empty(*shape, int(others[-1]), dtype=torch.float32),
    )


weighted = operator("triton_weighted_sum", forward, backward, plain=plain, fake=fake)
