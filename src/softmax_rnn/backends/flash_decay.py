"""``softmax_lse`` with token decay on the CPU: torch's flash kernel with a bias on each key.

    softmax_s( scale q_t . k_s + c_t - c_s ) = softmax_s( scale q_t . k_s + (r - c_s) )        lse_t += c_t - r

for any time r: what belongs to the query cancels in the softmax. The kernel adds a bias per key at no cost. What forbids a single call is
that c over a long sequence is too large for float32, and that weights between e^-87 and e^-103 are denormal numbers, which make the kernel
several times slower. So queries go in blocks within which the clock falls by at most ``CALM``, and r is the clock at the beginning of the
block. A block is two calls, its own keys in causal order and the keys before it, joined by their log-sum-exps. Keys that have faded for the
whole block are not visited, and those that have faded for a head alone get a score so low that their weight is 0. A key has faded when its
weight cannot reach e^-``FADED`` of its row, whatever its direction.

Backward, both calls are given the log-sum-exp of the whole row, so their gradients just add. The kernel has no gradient for a bias; it is
that of one more key channel, which every query reads with a 1.

Where the clock falls too fast even for small blocks, and where documents or a window cut the rows, the tiles compute it all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .dense import softmax_dense
from .flash import _backward, _forward, _with_lse_gradient
from .operators import operator
from .threads import share, some
from .tiles import _softmax, _softmax_backward

ROWS = (512, 256, 128, 64, 32)  # queries per block, the most that stay calm
CALM = 32.0  # how far the clock may fall within a block
ONCE = 60.0  # and within a sequence that is one block, whose weights have no further to fall
FADED = {torch.float32: 20.0, torch.float64: 40.0}
GONE = -1e5  # a score whose exponential is 0
PAD = 8  # channels added in the backward pass, so that rows stay aligned


class _Part(NamedTuple):
    """Some queries, keys they see (all of them, or in causal order), the bias of those keys (B, H, 1, J), and c_t - r (B, H, R)."""

    queries: slice
    keys: slice
    causal: bool
    bias: Tensor
    shift: Tensor


def _rows(clock: Tensor, queries: int) -> int | None:
    """How many queries make a block; None if too few would be calm."""
    now = clock[:, :, clock.shape[2] - queries :]
    for rows in (queries, *(r for r in ROWS if r < queries)):
        begins = now[:, :, ::rows]
        ends = torch.cat([now[:, :, rows - 1 :: rows], now[:, :, -1:]], 2)[:, :, : begins.shape[2]]
        whole = rows == queries == clock.shape[2]
        if bool((begins - ends).max() <= (ONCE if whole else CALM)):
            return rows
    return None


def _reach(q: Tensor, k: Tensor, clock: Tensor, keep: Tensor | None, scale: float) -> Tensor:
    """By how much a key's score can lie above the log-sum-exp of a query, without decay: (B, Hkv, Tq)."""
    group, offset = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    longest = torch.linalg.vector_norm(k, dim=-1).amax(-1)[..., None, None]
    highest = torch.linalg.vector_norm(q, dim=-1).unflatten(1, (-1, group)) * longest * scale
    if keep is not None:  # its own key may be padding; the newest that is not has not faded
        return 2 * highest.amax(2)
    own = (q.unflatten(1, (-1, group)) * k[:, :, None, offset:]).sum(-1) * scale
    return (highest - own).amax(2)


def _parts(q: Tensor, k: Tensor, clock: Tensor, keep: Tensor | None, scale: float) -> Iterator[tuple[_Part, ...]]:
    """For each block of queries one part, or its own keys and those before; such blocks exist."""
    rows = _rows(clock, q.shape[2])
    assert rows is not None
    group, Tq, offset = q.shape[1] // k.shape[1], q.shape[2], k.shape[2] - q.shape[2]
    one = rows >= Tq and not offset
    reach = None if one else _reach(q, k, clock, keep, scale)

    def part(queries: slice, keys: slice, causal: bool, begin: Tensor, least: Tensor | None) -> _Part:
        bias = begin - clock[:, :, keys]
        if least is not None:
            bias.masked_fill_(bias < least, GONE)
        if keep is not None:
            bias.masked_fill_(~keep[:, None, keys], GONE)
        now = clock[:, :, offset + queries.start : offset + queries.stop]
        wide = (x.to(q.dtype).repeat_interleave(group, 1) for x in (bias, now - begin))
        bias, shift = wide
        return _Part(queries, keys, causal, bias[:, :, None], shift)

    for i in range(0, Tq, rows):
        queries = slice(i, min(Tq, i + rows))
        own, begin = slice(offset + i, offset + queries.stop), clock[:, :, offset + i, None]
        parts = [part(queries, own, True, begin, None)]
        if reach is not None and own.start:
            now = clock[:, :, own] - begin
            least = -(reach[:, :, queries] + now).amax(-1, keepdim=True) - FADED[q.dtype]
            alive = (begin - clock[:, :, : own.start]) >= least
            first = int((~alive).sum(-1).min())
            if first < own.start:
                parts.append(part(queries, slice(first, own.start), False, begin, least))
        yield tuple(parts)


def _seen(keep: Tensor | None, queries: int) -> Tensor | None:
    """(B, 1, Tq): does a query see any key? None if all do."""
    return None if keep is None else (keep.cumsum(1) > 0)[:, None, keep.shape[1] - queries :]


def _grouped(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    clock: Tensor,
    keep: Tensor | None,
    lo: Tensor | None,
    hi: Tensor | None,
    scale: float,
) -> list[Any]:
    """As the tiles want it."""
    B, H, Tq, D = q.shape
    Hkv = k.shape[1]
    rows = [None if x is None else x.expand(B, -1).repeat_interleave(Hkv, 0) for x in (lo, hi, keep)]
    c = clock.flatten(0, 1)
    grouped = (q * scale).reshape(B * Hkv, H // Hkv, Tq, D)
    return [grouped, k.flatten(0, 1), v.flatten(0, 1), c[:, c.shape[1] - Tq :], c, None, None, None, *rows, True, None]


def _decayed(
    q: Tensor, k: Tensor, v: Tensor, clock: Tensor, keep: Tensor | None, lo: Tensor | None, hi: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    B, H, Tq, _ = q.shape
    if lo is not None or _rows(clock, Tq) is None:
        out, lse = _softmax(*_grouped(q, k, v, clock, keep, lo, hi, scale))
        return out.reshape(B, H, Tq, -1), lse.reshape(B, H, Tq)
    out, lse = torch.empty_like(q), q.new_empty(B, H, Tq)
    given = _by_head(clock, keep, q, k, v, out, lse)

    def work(n: slice) -> None:
        C, seen, Q, K, V, O, L = some(n, *given)
        for parts in _parts(Q, K, C, seen, scale):
            found = [
                _forward(Q[:, :, p.queries], K[:, :, p.keys], V[:, :, p.keys], 0.0, p.causal, attn_mask=p.bias, scale=scale)
                for p in parts
            ]
            (o, s), at = found[0], parts[0].queries
            if len(found) > 1:
                (o2, s2), own = found[1], s
                s = torch.logaddexp(own, s2)
                o = o * (own - s).exp_()[..., None] + o2 * (s2 - s).exp_()[..., None]
            O[:, :, at], L[:, :, at] = o, s + parts[0].shift

    share(B * k.shape[1], _multiplications(q, k, clock), q.device, work)
    seen = _seen(keep, Tq)
    return (out, lse) if seen is None else (out.mul_(seen[..., None]), lse.masked_fill_(~seen, 0.0))


def _multiplications(q: Tensor, k: Tensor, clock: Tensor) -> int:
    """To be divided between threads; none where all is one call, which torch divides itself."""
    one = q.shape[2] == k.shape[2] == _rows(clock, q.shape[2])
    return 0 if one else q.numel() * k.shape[2]


def _by_head(clock: Tensor, keep: Tensor | None, *tensors: Tensor | None) -> list[Tensor | None]:
    """Clock (N, 1, Tk), keep (N, Tk) and tensors (N, heads, T, ...) with a key head for a sequence, N = B * Hkv: what one head still sees
    does not depend on what others do.
    """
    Hkv = clock.shape[1]
    kept = None if keep is None else keep.repeat_interleave(Hkv, 0)
    heads = [None if x is None else x.view(len(x) * Hkv, x.shape[1] // Hkv, *x.shape[2:]) for x in tensors]
    return [clock.view(-1, 1, clock.shape[2]), kept, *heads]


def _extended(x: Tensor, extra: float = 0.0) -> Tensor:
    """x with ``PAD`` more channels, the first of them ``extra``."""
    tail = x.new_tensor([extra] + [0.0] * (PAD - 1))
    return torch.cat([x, tail.expand(*x.shape[:-1], PAD)], -1)


def _added(total: Tensor | None, at: slice, x: Tensor) -> Tensor:
    """The total with x added at some tokens; x itself where there is none yet."""
    if total is None:
        return x.contiguous()
    total[:, :, at] += x
    return total


def _decayed_backward(
    grad: Tensor | None, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, clock: Tensor, keep: Tensor | None,
    lo: Tensor | None, hi: Tensor | None, scale: float, out: Tensor, lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad = torch.zeros_like(out) if grad is None else grad
    if lo is not None or _rows(clock, q.shape[2]) is None:
        return _tiles_backward(grad, dlse, q, k, v, clock, keep, lo, hi, scale, out, lse)
    dq, dk, dv, dclock = (torch.zeros_like(x) for x in (q, k, v, clock))
    dlse = None if dlse is None else dlse.contiguous()
    given = _by_head(clock, keep, q, k, v, grad.contiguous(), dlse, out, lse, dq, dk, dv, dclock)
    share(len(q) * k.shape[1], _multiplications(q, k, clock), q.device, lambda n: _heads_backward(scale, *some(n, *given)))
    return dq, dk, dv, dclock


def _heads_backward(
    scale: float, clock: Tensor, keep: Tensor | None, q: Tensor, k: Tensor, v: Tensor, grad: Tensor, dlse: Tensor | None,
    out: Tensor, lse: Tensor, dq: Tensor, dk: Tensor, dv: Tensor, dclock: Tensor,
) -> None:
    """Adds to the gradients of some heads."""
    Tq, D = q.shape[2:]
    out = out if dlse is None else _with_lse_gradient(out, grad, dlse)
    wide_q, wide_k, wide_v, wide_grad, wide_out = _extended(q, 1.0), *(_extended(x) for x in (k, v, grad, out))
    parts = [p for both in _parts(q, k, clock, keep, scale) for p in both]
    for p in parts:
        Q, G, O = (x[:, :, p.queries] for x in (wide_q, wide_grad, wide_out))
        K, V = (x[:, :, p.keys] for x in (wide_k, wide_v))
        found = _backward(G, Q, K, V, O, lse[:, :, p.queries] - p.shift, 0.0, p.causal, attn_mask=p.bias, scale=scale)
        dclock[:, :, p.keys].sub_(found[1][..., D], alpha=1 / scale)
        for x, at, y in zip((dq, dk, dv), (p.queries, p.keys, p.keys), found, strict=True):
            put = x[:, :, at].copy_ if len(parts) == 1 else x[:, :, at].add_
            put(y[..., :D])
    if dlse is not None:  # lse_t has c_t in it, unless the row sees nothing
        seen = _seen(keep, Tq)
        dclock[:, :, k.shape[2] - Tq :] += (dlse if seen is None else dlse * seen).sum(1, keepdim=True)


def _tiles_backward(
    grad: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, clock: Tensor, keep: Tensor | None,
    lo: Tensor | None, hi: Tensor | None, scale: float, out: Tensor, lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    B, Hkv, _ = clock.shape
    Tq = q.shape[2]
    shape = (B * Hkv, q.shape[1] // Hkv, Tq, -1)
    ends: list[Any] = [x.reshape(shape) for x in (out, lse)]
    given: list[Any] = [grad.reshape(shape), None if dlse is None else dlse.reshape(shape)]
    dq, dk, dv, dcq, dck, *_ = _softmax_backward(*given, *_grouped(q, k, v, clock, keep, lo, hi, scale), *ends)
    assert dcq is not None
    assert dck is not None
    dclock = dck.reshape(clock.shape)
    dclock[:, :, clock.shape[2] - Tq :] += dcq.reshape(B, Hkv, Tq)
    return dq.reshape(q.shape) * scale, dk.reshape(k.shape), dv.reshape(v.shape), dclock


def _plain(
    q: Tensor, k: Tensor, v: Tensor, clock: Tensor, keep: Tensor | None, lo: Tensor | None, hi: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    out, lse = softmax_dense(*_grouped(q, k, v, clock, keep, lo, hi, scale))
    return out.reshape(q.shape), lse.reshape(q.shape[:3])


_operator = operator(
    "flash_decay", _decayed, _decayed_backward, plain=_plain,
    fake=lambda q, *_: (torch.empty_like(q), q.new_empty(q.shape[:3])),
)


def flash_decay_lse(
    q: Tensor, k: Tensor, v: Tensor, clock: Tensor, keep: Tensor | None, bounds: tuple[Tensor, Tensor] | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Softmax output (B, H, Tq, D) and lse (B, H, Tq), causal; ``clock`` (B, Hkv, Tk), the queries are the last of the tokens."""
    lo, hi = (None, None) if bounds is None else bounds
    q, k, v = (x.contiguous() for x in (q, k, v))
    return _operator(q, k, v, clock.contiguous(), keep, lo, hi, scale)
