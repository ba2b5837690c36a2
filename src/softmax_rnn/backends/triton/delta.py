"""What the delta rule of order 1 writes (``backends/delta.py``): u_s = b_s (v_s - sum_{r<s} W_sr u_r), W_sr = D_sr scale k_s . k_r

    delta_inverse    every chunk by itself: S = (I + diag(b) W)^-1 diag(b), row after row
    delta_forward    one chunk after another: left = V - D(t, begin) scale K H,  U = S left,  H = carry H + K^T (D(end, s) U)
    delta_backward   backward in time: before = G + D(end, s) K dH,  m = S^T before,  dH = carry dH - scale K^T (D(t, begin) m)
    delta_gradients  every chunk by itself: with p = left - W U and l = before - W^T m,
                     dv = m,  db = l . p,  dW = -m u^T,  and for the clock u . (G - l) + m . (p - v)

The states before each chunk, which dk needs, are made again by ``scan``'s kernels. Everything is in float32 (tf32 for half-precision keys).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..operators import operator
from .common import (
    Tile,
    chunk_times,
    dot,
    fade,
    launch,
    load_clock,
    load_rows,
    log_decay,
    padded,
    precision,
    store_rows,
)
from .orders import Orders
from .scan import pass_states, write_chunks


@triton.jit
def _strengths(K, CK, n, rows, columns, T, scale, D: tl.constexpr, DECAY: tl.constexpr, PRECISION: tl.constexpr):
    """The keys of a chunk, W for the pairs r < s, and D scale for them, (C, C)."""
    k = load_rows(K + n * T * D, rows, columns, T, D)
    high, low = load_clock(CK, n * T, rows, T, DECAY)
    d = tl.where((rows[:, None] > rows[None, :]) & (rows[:, None] < T), scale, 0.0)
    if DECAY:
        d *= tl.exp(log_decay(high, low, high, low))
    return k, dot(k, tl.trans(k), PRECISION) * d, d


@triton.jit
def delta_inverse(
    K, B, S, CK, T, scale, D: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, DECAY: tl.constexpr, PRECISION: tl.constexpr
):
    """S of one chunk: row s is b_s (e_s - sum_{r<s} W_sr S_r), from the first row to the last."""
    c, n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    index = tl.arange(0, C)
    rows = c * C + index
    _, w, _ = _strengths(K, CK, n, rows, tl.arange(0, BD), T, scale, D, DECAY, PRECISION)
    b = tl.load(B + n * T + rows, mask=rows < T, other=0.0).to(tl.float32)
    s = tl.where(index[:, None] == index[None, :], b[:, None], 0.0)
    strengths = tl.trans(w * b[:, None])  # (r, s): column s is what row s takes from the others
    for i in range(1, C):
        of_row = tl.sum(tl.where(index[None, :] == i, strengths, 0.0), 1)
        taken = tl.sum(of_row[:, None] * s, 0)
        s -= tl.where(index[:, None] == i, taken[None, :], 0.0)
    store_rows(S + n * T * C, rows, index, s, T, C)


@triton.jit
def delta_forward(
    K, V, S, START, U, LEFT, CK, T, chunks, scale, D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
    BE: tl.constexpr, DECAY: tl.constexpr, PRECISION: tl.constexpr,
):
    """One chunk after another, for a block of value channels; the state stays in registers."""
    n, columns = tl.program_id(1).to(tl.int64), tl.arange(0, BD)
    values = tl.program_id(0) * BE + tl.arange(0, BE)
    h = load_rows(START + n * D * E, columns, values, D, E)
    for c in range(0, chunks):
        rows = c * C + tl.arange(0, C)
        begin, end = chunk_times(CK, n, c, T, C, DECAY)
        k = load_rows(K + n * T * D, rows, columns, T, D).to(tl.float32)
        v = load_rows(V + n * T * E, rows, values, T, E).to(tl.float32)
        read = fade(CK, n, rows, T, begin, end, True, DECAY) * scale
        left = v - dot(k, h, PRECISION) * read[:, None]
        u = dot(load_rows(S + n * T * C, rows, tl.arange(0, C), T, C), left, PRECISION)
        write = fade(CK, n, rows, T, begin, end, False, DECAY)
        h = h * tl.exp((end - begin).to(tl.float32)) + dot(tl.trans(k), u * write[:, None], PRECISION)
        store_rows(LEFT + n * T * E, rows, values, left, T, E)
        store_rows(U + n * T * E, rows, values, u, T, E)


@triton.jit
def delta_backward(
    K, GRAD, S, DH, DSTART, BEFORE, M, CK, T, chunks, scale, D: tl.constexpr, E: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
    BE: tl.constexpr, DECAY: tl.constexpr, PRECISION: tl.constexpr,
):
    """One chunk before another; DH gets the gradient of the state after each chunk."""
    n, columns = tl.program_id(1).to(tl.int64), tl.arange(0, BD)
    values = tl.program_id(0) * BE + tl.arange(0, BE)
    dh = tl.zeros((BD, BE), tl.float32)
    for i in range(0, chunks):
        c = chunks - 1 - i
        rows = c * C + tl.arange(0, C)
        begin, end = chunk_times(CK, n, c, T, C, DECAY)
        store_rows(DH + (n * chunks + c) * D * E, columns, values, dh, D, E)
        k = load_rows(K + n * T * D, rows, columns, T, D).to(tl.float32)
        write = fade(CK, n, rows, T, begin, end, False, DECAY)
        before = load_rows(GRAD + n * T * E, rows, values, T, E) + dot(k, dh, PRECISION) * write[:, None]
        m = dot(tl.trans(load_rows(S + n * T * C, rows, tl.arange(0, C), T, C)), before, PRECISION)
        read = fade(CK, n, rows, T, begin, end, True, DECAY) * scale
        dh = dh * tl.exp((end - begin).to(tl.float32)) - dot(tl.trans(k), m * read[:, None], PRECISION)
        store_rows(BEFORE + n * T * E, rows, values, before, T, E)
        store_rows(M + n * T * E, rows, values, m, T, E)
    store_rows(DSTART + n * D * E, columns, values, dh, D, E)


@triton.jit
def delta_gradients(
    K, V, GRAD, U, LEFT, BEFORE, M, H, DH, DK, DB, DC, CK, T, scale, D: tl.constexpr, E: tl.constexpr, C: tl.constexpr,
    BD: tl.constexpr, BE: tl.constexpr, DECAY: tl.constexpr, PRECISION: tl.constexpr,
):
    """dk, db and dc of one chunk, one block of value channels after another."""
    c, n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows, columns = c * C + tl.arange(0, C), tl.arange(0, BD)
    k, w, d = _strengths(K, CK, n, rows, columns, T, scale, D, DECAY, PRECISION)
    begin, end = chunk_times(CK, n, c, T, C, DECAY)
    read = fade(CK, n, rows, T, begin, end, True, DECAY) * scale
    write = fade(CK, n, rows, T, begin, end, False, DECAY)
    state = (n * tl.num_programs(0) + c) * D * E
    dk = tl.zeros((C, BD), tl.float32)
    db, dc = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    for e in range(0, E, BE):
        values = e + tl.arange(0, BE)
        u = load_rows(U + n * T * E, rows, values, T, E)
        m = load_rows(M + n * T * E, rows, values, T, E)
        total = load_rows(BEFORE + n * T * E, rows, values, T, E) - dot(tl.trans(w), m, PRECISION)
        p = load_rows(LEFT + n * T * E, rows, values, T, E) - dot(w, u, PRECISION)
        db += tl.sum(total * p, 1)
        g = load_rows(GRAD + n * T * E, rows, values, T, E)
        v = load_rows(V + n * T * E, rows, values, T, E).to(tl.float32)
        dc += tl.sum(u * (g - total) + m * (p - v), 1)
        dx = -dot(m, tl.trans(u), PRECISION) * d
        dk += dot(dx, k, PRECISION) + dot(tl.trans(dx), k, PRECISION)
        h = load_rows(H + state, columns, values, D, E)
        dk -= dot(m * read[:, None], tl.trans(h), PRECISION)
        dh = load_rows(DH + state, columns, values, D, E)
        dk += dot(u * write[:, None], tl.trans(dh), PRECISION)
    store_rows(DK + n * T * D, rows, columns, dk, T, D)
    tl.store(DB + n * T + rows, db, mask=rows < T)
    tl.store(DC + n * T + rows, dc, mask=rows < T)


# As for ``scan``, whose kernels have the same chunk.
TILES = {
    True: {"inverse": Tile(64, 64, 8, 1), "sweep": Tile(64, 64, 8, 1), "gradients": Tile(64, 16, 8, 1)},
    False: {"inverse": Tile(32, 32, 8, 1), "sweep": Tile(32, 16, 8, 1), "gradients": Tile(32, 16, 8, 1)},
}


def tile(kernel: str, dtype: torch.dtype, key_dim: int) -> Tile:
    """A chunk, and how many value channels and warps work on it."""
    return TILES[dtype != torch.float32 and key_dim <= 16][kernel]


def _sizes(kernel: str, k: Tensor, v: Tensor, c: Tensor | None, scale: float) -> tuple[Tile, dict[str, Any], int, int]:
    """The tile of a kernel, the arguments that all have, the number of chunks and of blocks of value channels."""
    D, E, t = k.shape[-1], v.shape[-1], tile(kernel, k.dtype, k.shape[-1])
    BE = min(t.keys, padded(E))
    return t, {
        "K": k, "CK": c, "T": k.shape[1], "scale": scale, "D": D, "C": t.queries, "BD": padded(D), "DECAY": c is not None,
        "PRECISION": precision(k.dtype), "E": E, "BE": BE,
    }, triton.cdiv(k.shape[1], t.queries), triton.cdiv(E, BE)


def forward(
    k: Tensor, v: Tensor, b: Tensor, state: Tensor, c: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """k (N, T, D), v (N, T, E), b (N, T), state (N, D, E) -> u (N, T, E), and for the backward pass left and S (N, T, C)."""
    t, arguments, chunks, blocks = _sizes("inverse", k, v, c, scale)
    u, left, inverse = fake(k, v)
    own = {name: x for name, x in arguments.items() if name not in ("E", "BE")}
    launch(delta_inverse, (chunks, len(k)), t, B=b, S=inverse, **own)
    t, arguments, chunks, blocks = _sizes("sweep", k, v, c, scale)
    launch(delta_forward, (blocks, len(k)), t, V=v, S=inverse, START=state, U=u, LEFT=left, chunks=chunks, **arguments)
    return u, left, inverse


def backward(
    grad: Tensor | None, _left: Tensor | None, _inverse: Tensor | None, k: Tensor, v: Tensor, b: Tensor, state: Tensor,
    c: Tensor | None, scale: float, u: Tensor, left: Tensor, inverse: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of k, v, b, the state and the clock."""
    assert grad is not None
    grad = grad.contiguous()
    t, arguments, chunks, blocks = _sizes("sweep", k, v, c, scale)
    before, m, dstart = torch.empty_like(u), torch.empty_like(u), torch.empty_like(state)
    dh = state.new_empty(len(k), chunks, *state.shape[1:])
    more = {"GRAD": grad, "BEFORE": before, "M": m, "DH": dh}
    launch(delta_backward, (blocks, len(k)), t, S=inverse, DSTART=dstart, chunks=chunks, **more, **arguments)
    h = write_chunks(k[:, None], u[:, None], c, c, Orders((0.0, 1.0), k.shape[-1]), False)
    pass_states(h, state, c, k.shape[1], t.queries, False)
    dk = torch.empty_like(k, dtype=torch.float32)
    db, dc = (b.new_empty(b.shape, dtype=torch.float32) for _ in range(2))
    t, arguments, chunks, _ = _sizes("gradients", k, v, c, scale)
    launch(delta_gradients, (chunks, len(k)), t, V=v, U=u, LEFT=left, H=h, DK=dk, DB=db, DC=dc, **more, **arguments)
    return dk.to(k.dtype), m.to(v.dtype), db.to(b.dtype), dstart, None if c is None else dc.double()


def plain(
    k: Tensor, v: Tensor, b: Tensor, state: Tensor, c: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in ordinary torch code, dense."""
    from ..dense import delta_dense

    chunk = tile("inverse", k.dtype, k.shape[-1]).queries
    k, v, b = k.float(), v.float(), b.float()
    read = (k * scale) @ state
    faded = read if c is None else read * c.exp().to(read)[..., None]
    u, p = delta_dense(k, v - faded, b, c, None, None, None, (0.0, 1.0), None, None, scale)
    return u, p, k.new_zeros(*k.shape[:2], chunk)


def fake(k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of the right shape."""
    u, left = (v.new_empty(v.shape, dtype=torch.float32) for _ in range(2))
    return u, left, v.new_empty(*v.shape[:2], tile("inverse", k.dtype, k.shape[-1]).queries, dtype=torch.float32)


_operator = operator("triton_delta", forward, backward, plain=plain, fake=fake, constants=2)


def delta(k: Tensor, v: Tensor, b: Tensor, state: Tensor, c: Tensor | None, scale: float) -> Tensor:
    """What the delta rule writes, (N, T, E) in float32; the state (N, D, E) stands at time 0 of the clock."""
    tensors = (x.contiguous() for x in (k, v, b.float(), state.float()))
    return _operator(*tensors, None if c is None else c.contiguous(), scale)[0]
