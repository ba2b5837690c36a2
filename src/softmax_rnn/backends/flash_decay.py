"""``softmax_lse`` with token decay on the CPU: torch's flash kernel with one more key channel.

    softmax_s( scale q_t . k_s + c_t - c_s ) = softmax_s( scale [q_t, 1] . [k_s, (r - c_s) / scale] )        lse_t += c_t - r

for any time r: what belongs to the query cancels in the softmax. One call would do, but for two things. c over a long sequence is too
large for float32, and weights between e^-87 and e^-103 are denormal numbers, which make the kernel several times slower. So queries go in
blocks, r is the clock at the beginning of the block, and keys that have faded for a whole block are not visited; inside a block a faded key
gets a score so low that its weight is 0. A key has faded when its decay is below e^-30 even if its score were the highest that |q| and |k|
allow and all others the lowest.

Where the clock falls by more than 60 within a block, the extra channel is too coarse, and the tiles compute it all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .dense import softmax_dense
from .flash import _backward, _forward, _with_lse_gradient
from .operators import operator
from .tiles import _softmax, _softmax_backward

ROWS = 256  # queries per block
STEEP = 60.0  # how far the clock may fall within a block
FADED = 30.0
GONE = -1e5  # a score whose exponential is 0
PAD = 8  # channels added, so that rows stay aligned


class _Block(NamedTuple):
    """Some queries, the keys they see, the extra channel of those keys (B, Hkv, J), the shift of lse (B, Hkv, R), and the mask."""

    queries: slice
    keys: slice
    channel: Tensor
    shift: Tensor
    mask: Tensor | None  # None: plain causal order


def _blocks(
    q: Tensor, k: Tensor, clock: Tensor, keep: Tensor | None, lo: Tensor | None, hi: Tensor | None, scale: float
) -> Iterator[_Block]:
    Tq, Tk = q.shape[2], k.shape[2]
    offset = Tk - Tq
    if (
        lo is None and keep is None and not offset and bool((clock[:, :, 0] - clock[:, :, -1]).max() < STEEP)
    ):  # one call does it
        fall = clock[:, :, :1] - clock
        yield _Block(slice(0, Tq), slice(0, Tk), fall.to(q.dtype) / scale, (-fall).to(q.dtype), None)
        return
    spread = (
        2 * abs(scale) * float(torch.linalg.vector_norm(q, dim=-1).max() * torch.linalg.vector_norm(k, dim=-1).max())
    )
    for i in range(0, Tq, ROWS):
        rows = slice(i, min(Tq, i + ROWS))
        now = clock[:, :, offset + i : offset + rows.stop]
        begin = clock[:, :, offset + i, None]
        fall = begin - clock[:, :, : offset + rows.stop]  # negative for the past
        alive = fall > -(FADED + spread)
        first = int((~alive).sum(-1).min()) if lo is None else max(int((~alive).sum(-1).min()), int(lo[:, rows].min()))
        keys = slice(first, offset + rows.stop)
        channel = fall[..., keys].masked_fill(~alive[..., keys], GONE).to(q.dtype) / scale
        j = torch.arange(keys.start, keys.stop, device=q.device)
        t = torch.arange(offset + i, offset + rows.stop, device=q.device)
        mask = (j <= t[:, None])[None]
        if lo is not None and hi is not None:
            mask = (j >= lo[:, rows, None]) & (j < hi[:, rows, None])
        if keep is not None:
            mask = mask & keep[:, None, keys]
        bias = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~mask, -torch.inf)[:, None]
        yield _Block(rows, keys, channel, (now - begin).to(q.dtype), bias)


def _steep(q: Tensor, clock: Tensor) -> bool:
    ends = clock[:, :, clock.shape[2] - q.shape[2] :]
    falls = [ends[:, :, i] - ends[:, :, min(i + ROWS, ends.shape[2]) - 1] for i in range(0, ends.shape[2], ROWS)]
    return bool(torch.stack(falls).max() > STEEP)


def _extended(x: Tensor, extra: Tensor | float | None) -> Tensor:
    """x with ``PAD`` more channels, the first of them ``extra``."""
    x = F.pad(x, (0, PAD))
    if extra is not None:
        x[..., -PAD] = extra
    return x


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
) -> tuple[Tensor, Tensor]:  # fmt: skip
    B, H, Tq, _ = q.shape
    if _steep(q, clock):
        out, lse = _softmax(*_grouped(q, k, v, clock, keep, lo, hi, scale))
        return out.reshape(B, H, Tq, -1), lse.reshape(B, H, Tq)
    out, lse = torch.zeros_like(q), q.new_zeros(B, H, Tq)
    group = H // k.shape[1]
    for b in _blocks(q, k, clock, keep, lo, hi, scale):
        q_, k_ = _extended(q[:, :, b.queries], 1.0), _extended(k[:, :, b.keys], b.channel)
        v_, causal = _extended(v[:, :, b.keys], None), b.mask is None
        o, s = _forward(q_, k_, v_, 0.0, causal, attn_mask=b.mask, scale=scale)
        out[:, :, b.queries] = o[..., : q.shape[-1]]
        s = s + b.shift.repeat_interleave(group, 1)
        # A row that sees nothing has lse 0.
        lse[:, :, b.queries] = s if b.mask is None else torch.where((b.mask > -1).any(-1), s, torch.zeros_like(s))
    return out, lse


def _decayed_backward(
    grad: Tensor | None, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, clock: Tensor, keep: Tensor | None,
    lo: Tensor | None, hi: Tensor | None, scale: float, out: Tensor, lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    B, H, Tq, D = q.shape
    Hkv, group = k.shape[1], H // k.shape[1]
    grad = torch.zeros_like(out) if grad is None else grad
    if _steep(q, clock):
        shape = (B * Hkv, group, Tq, -1)
        ends: list[Any] = [x.reshape(shape) for x in (out, lse)]
        given: list[Any] = [grad.reshape(shape), None if dlse is None else dlse.reshape(shape)]
        dq, dk, dv, dcq, dck, *_ = _softmax_backward(*given, *_grouped(q, k, v, clock, keep, lo, hi, scale), *ends)
        assert dcq is not None
        assert dck is not None
        dclock = dck.reshape(clock.shape)
        dclock[:, :, clock.shape[2] - Tq :] += dcq.reshape(B, Hkv, Tq)
        return dq.reshape(q.shape) * scale, dk.reshape(k.shape), dv.reshape(v.shape), dclock
    if dlse is not None:
        out = _with_lse_gradient(out, grad, dlse)
    dq, dk, dv, dclock = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(clock)
    for b in _blocks(q, k, clock, keep, lo, hi, scale):
        q_, k_ = _extended(q[:, :, b.queries], 1.0), _extended(k[:, :, b.keys], b.channel)
        v_ = _extended(v[:, :, b.keys], None)
        g, o = (_extended(x[:, :, b.queries], None) for x in (grad, out))
        s = lse[:, :, b.queries] - b.shift.repeat_interleave(group, 1)
        a, c, e = _backward(g, q_, k_, v_, o, s, 0.0, b.mask is None, attn_mask=b.mask, scale=scale)
        dq[:, :, b.queries] = a[..., :D]
        dk[:, :, b.keys] += c[..., :D]
        dv[:, :, b.keys] += e[..., :D]
        dclock[:, :, b.keys] -= c[..., D] / scale
        if dlse is not None:  # lse_t has c_t in it, unless the row sees nothing
            shifted = dlse[:, :, b.queries] if b.mask is None else dlse[:, :, b.queries] * (b.mask > -1).any(-1)
            dclock[:, :, k.shape[2] - Tq :][:, :, b.queries] += shifted.unflatten(1, (Hkv, group)).sum(2)
    return dq, dk, dv, dclock


def _plain(
    q: Tensor, k: Tensor, v: Tensor, clock: Tensor, keep: Tensor | None, lo: Tensor | None, hi: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out, lse = softmax_dense(*_grouped(q, k, v, clock, keep, lo, hi, scale))
    return out.reshape(q.shape), lse.reshape(q.shape[:3])


_operator = operator(
    "flash_decay", _decayed, _decayed_backward, plain=_plain,
    fake=lambda q, *_: (torch.empty_like(q), q.new_empty(q.shape[:3])),
)  # fmt: skip


def flash_decay_lse(
    q: Tensor, k: Tensor, v: Tensor, clock: Tensor, keep: Tensor | None, bounds: tuple[Tensor, Tensor] | None, scale: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Softmax output (B, H, Tq, D) and lse (B, H, Tq), causal; ``clock`` (B, Hkv, Tk), the queries are the last of the tokens."""
    lo, hi = (None, None) if bounds is None else bounds
    q, k, v = (x.contiguous() for x in (q, k, v))
    return _operator(q, k, v, clock.contiguous(), keep, lo, hi, scale)
