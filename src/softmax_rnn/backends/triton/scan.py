"""``scan`` in Triton: a kernel of order 0 to 2 in linear time, through a state of constant size, with token decay.

The sequence is cut into chunks. A feature block f has as many rows as a key has channels, phi_f(k) = left_f(k) right(k):

    order 0   left 1, right (1, 0, 0, ...)        order 1   left 1, right k        order 2   left k_i, right k, one block for each i

so that every product is one of whole tiles; of order 2 all d^2 products are kept, not only the d(d+1)/2 different ones. Five kernels:

    scan_write   every chunk by itself: U_f = phi_f(K)^T (D(end, s) V); backward the same with Q and dA
    scan_pass    the states before each chunk, H = carry H + U, one after another; backward in time for dH
    scan_read    every chunk by itself: A = (w(Q K^T) D) V + D(t, begin) sum_f c_f phi_f(Q) H_f
    scan_dq      dQ from the chunk's own keys and from H; scan_dkv dK and dV from its own queries and from dH

Products with states are in float32 (tf32 for half-precision inputs), and so are all sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..operators import operator
from ..scan import scan_plain
from .common import (
    Tile,
    chunk_times,
    dot,
    fade,
    launch,
    load_clock,
    load_rows,
    padded,
    polynomial,
    precision,
    runs,
    slope_and_rest,
    store_rows,
)
from .orders import Orders, coefficient, left, right, within

MOST = 2**26  # numbers in the states of all chunks at once


@triton.jit
def scan_write(
    X, Y, OUT, CX, CK, G, T, c0, c1, c2, D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    BLOCKS: tl.constexpr, ORDER0: tl.constexpr, FIRST: tl.constexpr, READ: tl.constexpr, DECAY: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """sum over heads of phi_f(X)^T (faded Y), for one chunk, feature block and block of value channels."""
    c, f, n = tl.program_id(0), tl.program_id(1) // BLOCKS, tl.program_id(2).to(tl.int64)
    rows, columns = c * C + tl.arange(0, C), tl.arange(0, BD)
    values = (tl.program_id(1) % BLOCKS) * BE + tl.arange(0, BE)
    begin, end = chunk_times(CK, n, c, T, C, DECAY)
    factor = fade(CX, n, rows, T, begin, end, READ, DECAY)
    total = tl.zeros((BD, BE), tl.float32)
    for head in range(0, G):
        row = (n * G + head) * T
        x = load_rows(X + row * D, rows, columns, T, D).to(tl.float32)
        phi = left(X + row * D, rows, T, f, D, FIRST)[:, None] * right(x, columns, f, ORDER0)
        y = load_rows(Y + row * E, rows, values, T, E).to(tl.float32)
        total += dot(tl.trans(phi), y * factor[:, None], PRECISION)
    if READ:
        total *= coefficient(f, c0, c1, c2, ORDER0, FIRST)
    F = tl.num_programs(1) // BLOCKS
    store_rows(OUT + ((n * tl.num_programs(0) + c) * F + f) * D * E, columns, values, total, D, E)


@triton.jit
def scan_pass(
    U, START, END, CK, T, chunks, numbers, C: tl.constexpr, BLOCK: tl.constexpr, REVERSE: tl.constexpr, DECAY: tl.constexpr
):
    """The states between chunks, in place of what each chunk wrote; forward in time, or for gradients backward."""
    n = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = tl.load(START + n * numbers + at, mask=at < numbers, other=0.0)
    for i in range(0, chunks):
        c = chunks - 1 - i if REVERSE else i
        begin, end = chunk_times(CK, n, c, T, C, DECAY)
        where = U + (n * chunks + c) * numbers + at
        u = tl.load(where, mask=at < numbers, other=0.0)
        tl.store(where, h, mask=at < numbers)
        h = h * tl.exp((end - begin).to(tl.float32)) + u
    tl.store(END + n * numbers + at, h, mask=at < numbers)


@triton.jit
def scan_read(
    Q, K, V, H, OUT, CQ, CK, G, T, F, c0, c1, c2, WEIGHT: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, BLOCKS: tl.constexpr,
    ORDER0: tl.constexpr, FIRST: tl.constexpr, DECAY: tl.constexpr, PRECISION: tl.constexpr,
):
    """The output of one chunk and block of value channels: its own keys, and all earlier ones through the state."""
    c, row = tl.program_id(0) // BLOCKS, tl.program_id(1).to(tl.int64)
    n = row // G
    rows, columns = c * C + tl.arange(0, C), tl.arange(0, BD)
    values = (tl.program_id(0) % BLOCKS) * BE + tl.arange(0, BE)
    q = load_rows(Q + row * T * D, rows, columns, T, D)
    k = load_rows(K + n * T * D, rows, columns, T, D)
    v = load_rows(V + n * T * E, rows, values, T, E)
    qh, ql = load_clock(CQ, n * T, rows, T, DECAY)
    kh, kl = load_clock(CK, n * T, rows, T, DECAY)
    x, d = within(q, k, rows, qh, ql, kh, kl, T, DECAY, PRECISION)
    own = dot(polynomial(x, WEIGHT) * d, v, PRECISION)
    H += (n * (tl.num_programs(0) // BLOCKS) + c) * F * D * E
    wide = q.to(tl.float32)
    acc = tl.zeros((C, BE), tl.float32)
    for f in range(0, F):
        phi = left(Q + row * T * D, rows, T, f, D, FIRST)[:, None] * right(wide, columns, f, ORDER0)
        h = load_rows(H + f * D * E, columns, values, D, E) * coefficient(f, c0, c1, c2, ORDER0, FIRST)
        acc += dot(phi, h, PRECISION)
    begin, end = chunk_times(CK, n, c, T, C, DECAY)
    acc *= fade(CQ, n, rows, T, begin, end, True, DECAY)[:, None]
    store_rows(OUT + row * T * E, rows, values, acc + own, T, E)


@triton.jit
def _through(
    acc, X, x, y, H, rows, columns, values, T, F, c0, c1, c2, D: tl.constexpr, E: tl.constexpr, ORDER0: tl.constexpr,
    FIRST: tl.constexpr, SCALED: tl.constexpr, PRECISION: tl.constexpr,
):
    """Add the gradient of x through phi_f(x) . H_f . y, where y (C, E) has faded already."""
    for f in range(0, F):
        h = load_rows(H + f * D * E, columns, values, D, E)
        if SCALED:
            h *= coefficient(f, c0, c1, c2, ORDER0, FIRST)
        slope = dot(y, tl.trans(h), PRECISION)  # of the loss by phi_f(x)
        slope = tl.where((f == 0) & ORDER0, 0.0, slope)
        acc += slope * left(X, rows, T, f, D, FIRST)[:, None]
        by_left = tl.where(f >= FIRST, tl.sum(slope * x, 1), 0.0)
        acc += tl.where(columns[None, :] == f - FIRST, by_left[:, None], 0.0)
    return acc


@triton.jit
def scan_dq(
    Q, K, V, GRAD, H, DQ, CQ, CK, G, T, F, c0, c1, c2, SLOPE: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    ORDER0: tl.constexpr, FIRST: tl.constexpr, DECAY: tl.constexpr, PRECISION: tl.constexpr,
):
    """dq of one chunk."""
    c, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    n = row // G
    rows, columns = c * C + tl.arange(0, C), tl.arange(0, BD)
    q = load_rows(Q + row * T * D, rows, columns, T, D)
    k = load_rows(K + n * T * D, rows, columns, T, D)
    qh, ql = load_clock(CQ, n * T, rows, T, DECAY)
    kh, kl = load_clock(CK, n * T, rows, T, DECAY)
    x, d = within(q, k, rows, qh, ql, kh, kl, T, DECAY, PRECISION)
    slope = polynomial(x, SLOPE) * d
    begin, end = chunk_times(CK, n, c, T, C, DECAY)
    factor = fade(CQ, n, rows, T, begin, end, True, DECAY)
    H += (n * tl.num_programs(0) + c) * F * D * E
    acc = tl.zeros((C, BD), tl.float32)
    for e in range(0, E, BE):
        values = e + tl.arange(0, BE)
        v = load_rows(V + n * T * E, rows, values, T, E).to(tl.float32)
        g = load_rows(GRAD + row * T * E, rows, values, T, E)
        acc += dot(dot(g, tl.trans(v), PRECISION) * slope, k, PRECISION)
        acc = _through(
            acc, Q + row * T * D, q.to(tl.float32), g * factor[:, None], H, rows, columns, values, T, F, c0, c1, c2, D, E,
            ORDER0, FIRST, True, PRECISION,
        )
    store_rows(DQ + row * T * D, rows, columns, acc, T, D)


@triton.jit
def scan_dkv(
    Q, K, V, GRAD, DH, DK, DV, CQ, CK, G, T, F, c0, c1, c2, SLOPE: tl.constexpr, REST: tl.constexpr, ADD: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    ORDER0: tl.constexpr, FIRST: tl.constexpr, DECAY: tl.constexpr, PRECISION: tl.constexpr,
):
    """dk and dv of one chunk, over the query heads that share it. DH has the coefficients already."""
    c, n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows, columns = c * C + tl.arange(0, C), tl.arange(0, BD)
    k = load_rows(K + n * T * D, rows, columns, T, D)
    kh, kl = load_clock(CK, n * T, rows, T, DECAY)
    qh, ql = load_clock(CQ, n * T, rows, T, DECAY)
    begin, end = chunk_times(CK, n, c, T, C, DECAY)
    factor = fade(CK, n, rows, T, begin, end, False, DECAY)
    DH += (n * tl.num_programs(0) + c) * F * D * E
    wide = k.to(tl.float32)
    dk = tl.zeros((C, BD), tl.float32)
    for e in range(0, E, BE):
        values = e + tl.arange(0, BE)
        v = load_rows(V + n * T * E, rows, values, T, E).to(tl.float32)
        dv = tl.zeros((C, BE), tl.float32)
        for f in range(0, F):
            phi = left(K + n * T * D, rows, T, f, D, FIRST)[:, None] * right(wide, columns, f, ORDER0)
            dv += dot(phi, load_rows(DH + f * D * E, columns, values, D, E), PRECISION)
        dv *= factor[:, None]
        dk = _through(
            dk, K + n * T * D, wide, v * factor[:, None], DH, rows, columns, values, T, F, c0, c1, c2, D, E, ORDER0, FIRST, False,
            PRECISION,
        )
        for head in range(0, G):
            row = n * G + head
            q = load_rows(Q + row * T * D, rows, columns, T, D)
            g = load_rows(GRAD + row * T * E, rows, values, T, E)
            x, d = within(q, k, rows, qh, ql, kh, kl, T, DECAY, PRECISION)
            slope = polynomial(x, SLOPE)
            w = polynomial(x, REST) + slope if ADD else polynomial(x, REST)
            dv += dot(tl.trans(w * d), g, PRECISION)
            dk += dot(tl.trans(dot(g, tl.trans(v), PRECISION) * slope * d), q, PRECISION)
        store_rows(DV + n * T * E, rows, values, dv, T, E)
    store_rows(DK + n * T * D, rows, columns, dk, T, D)


# Tokens of a chunk, at most so many value channels at a time, warps: of each kernel, for keys of up to 16 channels in half precision
# and for others. Nothing is spilled (results/gpu/compile.json). All kernels of a call have the same chunk.
TILES = {
    True: {
        "write": Tile(64, 64, 8, 1),
        "read": Tile(64, 64, 8, 1),
        "dq": Tile(64, 64, 8, 1),
        "dkv": Tile(64, 16, 8, 1),
    },
    False: {
        "write": Tile(32, 32, 8, 1),
        "read": Tile(32, 32, 8, 1),
        "dq": Tile(32, 32, 8, 1),
        "dkv": Tile(32, 16, 8, 1),
    },
}


def tile(kernel: str, dtype: torch.dtype, key_dim: int) -> Tile:
    """A chunk, and how many value channels and warps work on it."""
    return TILES[dtype != torch.float32 and key_dim <= 16][kernel]


def _sizes(kernel: str, q: Tensor, v: Tensor, ck: Tensor | None, orders: Orders) -> tuple[Tile, dict[str, Any], int]:
    """The tile of a kernel, the arguments that all have, and the number of blocks of value channels."""
    D, E, t = q.shape[-1], v.shape[-1], tile(kernel, q.dtype, q.shape[-1])
    BE = min(t.keys, padded(E))
    return t, {
        "CK": ck, "G": q.shape[1], "T": q.shape[2], "D": D, "E": E, "C": t.queries, "BD": padded(D), "BE": BE,
        "DECAY": ck is not None, "PRECISION": precision(q.dtype), **orders.arguments(),
    }, triton.cdiv(E, BE)


def write_chunks(x: Tensor, y: Tensor, cx: Tensor | None, ck: Tensor | None, orders: Orders, read: bool) -> Tensor:
    """x (N, G, T, D), y (N, G, T, E) -> what each chunk adds, (N, chunks, blocks * D, E)."""
    t, arguments, blocks = _sizes("write", x, y, ck, orders)
    N, _, T, D = x.shape
    out = x.new_empty(N, triton.cdiv(T, t.queries), orders.blocks * D, y.shape[-1], dtype=torch.float32)
    launch(
        scan_write, (out.shape[1], orders.blocks * blocks, N), t, X=x, Y=y, OUT=out, CX=cx, BLOCKS=blocks, READ=read, **arguments
    )
    return out


def pass_states(u: Tensor, start: Tensor, ck: Tensor | None, T: int, chunk: int, reverse: bool) -> Tensor:
    """The states between chunks, in place of u (N, chunks, rows, E); returns the last (N, rows, E)."""
    end, numbers = torch.empty_like(start), start.shape[1] * start.shape[2]
    t, block = Tile(1, 512, 4, 1), 512
    launch(
        scan_pass, (triton.cdiv(numbers, block), len(u)), t, U=u, START=start, END=end, CK=ck, T=T, chunks=u.shape[1],
        numbers=numbers, C=chunk, BLOCK=block, REVERSE=reverse, DECAY=ck is not None,
    )
    return end


def forward(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, cq: Tensor | None, ck: Tensor | None, coefficients: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """q (N, G, T, D), k (N, T, D), v (N, T, E), state (N, blocks * D, E) -> A (N, G, T, E) and the state after, in float32."""
    orders = Orders(coefficients, q.shape[-1])
    t, arguments, blocks = _sizes("read", q, v, ck, orders)
    h = write_chunks(k[:, None], v[:, None], ck, ck, orders, False)
    after = pass_states(h, state, ck, q.shape[2], t.queries, False)
    out = q.new_empty(*q.shape[:3], v.shape[-1], dtype=torch.float32)
    grid = (h.shape[1] * blocks, q.shape[0] * q.shape[1])
    more = {"CQ": cq, "F": orders.blocks, "WEIGHT": runs(coefficients), "BLOCKS": blocks}
    launch(scan_read, grid, t, Q=q, K=k, V=v, H=h, OUT=out, **more, **arguments)
    return out, after


def backward(
    grad: Tensor | None, dlast: Tensor | None, q: Tensor, k: Tensor, v: Tensor, state: Tensor, cq: Tensor | None,
    ck: Tensor | None, coefficients: Sequence[float], out: Tensor, after: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of q, k, v, the state and the clocks."""
    orders = Orders(coefficients, q.shape[-1])
    grad = torch.zeros_like(out) if grad is None else grad.contiguous()
    dlast = torch.zeros_like(after) if dlast is None else dlast.contiguous()
    slope, rest, add = slope_and_rest(coefficients)
    dq, dk, dv = (torch.empty_like(x, dtype=torch.float32) for x in (q, k, v))
    t, arguments, _ = _sizes("dq", q, v, ck, orders)
    tensors = {"Q": q, "K": k, "V": v, "GRAD": grad, "CQ": cq, "F": orders.blocks, "SLOPE": slope}
    h = write_chunks(k[:, None], v[:, None], ck, ck, orders, False)
    pass_states(h, state, ck, q.shape[2], t.queries, False)
    launch(scan_dq, (h.shape[1], q.shape[0] * q.shape[1]), t, **tensors, H=h, DQ=dq, **arguments)
    h = write_chunks(q, grad, cq, ck, orders, True)
    dstate = pass_states(h, dlast, ck, q.shape[2], t.queries, True)
    t, arguments, _ = _sizes("dkv", q, v, ck, orders)
    launch(scan_dkv, (h.shape[1], len(k)), t, **tensors, REST=rest, ADD=add, DH=h, DK=dk, DV=dv, **arguments)
    dcq = dck = None
    if cq is not None:
        dcq, dck = (grad * out).sum((1, -1)).double(), (dv * v).sum(-1).neg().double()
        dck[:, -1] += (dlast * after).sum((1, 2))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dstate, dcq, dck


def plain(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, cq: Tensor | None, ck: Tensor | None, coefficients: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The same in ordinary torch code."""
    orders = Orders(coefficients, q.shape[-1])
    wide = (q.float(), k.float(), v.float())
    out, after = scan_plain(
        *wide, orders.gather(state), cq, ck, None, None, coefficients, tile("read", q.dtype, q.shape[-1]).queries
    )
    return out, orders.spread(after)


def fake(q: Tensor, k: Tensor, v: Tensor, state: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Outputs of the right shape."""
    return q.new_empty(*q.shape[:3], v.shape[-1], dtype=torch.float32), torch.empty_like(state)


_operator = operator("triton_scan", forward, backward, plain=plain, fake=fake)


def scan(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, coefficients: Sequence[float], clock: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """As ``backends.scan.scan``, for q, k and v in any of our dtypes. Long sequences in pieces, so that the states of all chunks fit."""
    orders, T = Orders(coefficients, q.shape[-1]), q.shape[2]
    h = orders.spread(state)
    step = max(1, MOST // h.numel()) * tile("read", q.dtype, q.shape[-1]).queries
    cq, ck = clock or (None, None)
    parts = []
    for t in range(0, T, step):
        piece = slice(t, t + step)
        times: list[Tensor | None] = [None, None]
        if cq is not None and ck is not None:
            start = ck[:, t - 1 : t] if t else 0.0
            times = [(x[:, piece] - start).contiguous() for x in (cq, ck)]
        tensors = (x.contiguous() for x in (q[:, :, piece], k[:, piece], v[:, piece]))
        out, h = _operator(*tensors, h, *times, list(coefficients))
        parts.append(out)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2), orders.gather(h)
