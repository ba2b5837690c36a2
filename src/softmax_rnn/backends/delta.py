"""What the delta rule writes: each key's value, less what is read at that key from the keys before it.

    u_s = b_s p_s        p_s = v_s - sum_{r<s} W_sr u_r        W_sr = D_sr w(x_sr),  x_sr = scale k_s . k_r

so U = (I + diag(b) tril(W, -1))^-1 diag(b) V. For exp, W_sr = D_sr exp(x_sr - x_rr), and u stands for exp(x_ss) u_s (``bias`` is x_rr).
The output is then the same sum as without the rule, over u in place of v. Two operators:

    delta_tiles    any kernel, O(T) memory: a block of keys reads all earlier u tile by tile, then a triangular solve within the block
    delta_scan     finite kernels, linear time: a chunk of keys reads the state, a triangular solve within the chunk, and writes

Their backward passes go backward in time. With G the gradient of u from outside and l_s all of it, that of later writes included,

    l_r = G_r - sum_{s>r} W_sr m_s        m_s = b_s l_s = dv_s        db_s = l_s . p_s        dW_sr = -m_s . u_r

and for the clocks, which only ever multiply W: dc_s = m_s . (p_s - v_s) as a reader, and u_s . (G_s - l_s) as one who is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .dense import delta_dense, unit_solve, weight
from .operators import operator
from .powers import Features, symmetric_dim, symmetric_powers
from .scan import _Block, _blocks, _Clocks
from .scores import weights, weights_and_slopes
from .tiles import _Call, _cap_, _Tile

Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class _Kernel:
    """w: a polynomial or exp of min(x, limit); with a bias the exponential of cap(x) - bias."""

    coefficients: Sequence[float]
    limit: float | None
    softcap: float | None

    def wild(self, k: Tensor, scale: float) -> bool:
        """May W leave the range of numbers? By the longest key: k_s . k_r - k_r . k_r is at most k_s . k_s / 4."""
        most = scale * torch.linalg.vector_norm(k, dim=-1).max().square()
        if k.is_meta or self.softcap is not None or (self.limit is not None and not self.coefficients):
            return False
        if not self.coefficients:
            return bool(most / 4 > math.log(torch.finfo(k.dtype).max) - 1)
        return not bool(weight(most, [abs(c) for c in self.coefficients], None).isfinite())

    def strengths(self, t: _Tile) -> Tensor:
        """W for a block of keys and all keys before its end, (n, R, J); right where r < s."""
        if t.call.bias is not None:
            return t.shift_(_cap_(t.scores(), self.softcap), 1).exp_()
        return t.fade_(weights(t.scores(), self.coefficients, self.limit), 1)

    def strengths_and_slopes(self, t: _Tile) -> tuple[Tensor, Tensor]:
        """W and its derivative by the score, which for a plain exponential is the same tensor."""
        if t.call.bias is None:
            w, slope = weights_and_slopes(t.scores(), self.coefficients, self.limit)
            return t.fade_(w, 1), w if slope is w else t.fade_(slope, 1)
        x = _cap_(t.scores(), self.softcap)
        if self.softcap is None:
            w = t.shift_(x, 1).exp_()
            return w, w
        slope = 1 - (x / self.softcap).square()
        w = t.shift_(x, 1).exp_()
        return w, slope.mul_(w)


def _call(
    k: Tensor, c: Tensor | None, a: Tensor | None, bias: Tensor | None, lo: Tensor | None, new: int, scale: float
) -> _Call:
    """The new keys as the queries of all keys."""
    first = k.shape[1] - new
    q = (k[:, None, first:] * scale).contiguous()
    hi = None if lo is None else torch.arange(first + 1, k.shape[1] + 1, device=k.device)[None].expand_as(lo)
    cq, aq = (None if x is None else x[:, first:] for x in (c, a))
    return _Call(q, k, cq, c, aq, a, lo, hi, None, True, bias)


def _tame_(w: Tensor, readers: Tensor, read: Tensor) -> None:
    """Infinite strengths (n, R, J) of readers that write nothing, and at keys where nothing was written, do not matter: 0."""
    w.masked_fill_(w.isinf() & ~(readers[:, :, None] & read[:, None]), 0.0)


def _tiles(
    k: Tensor, v: Tensor, b: Tensor, c: Tensor | None, a: Tensor | None, bias: Tensor | None, lo: Tensor | None,
    coefficients: Sequence[float], limit: float | None, softcap: float | None, scale: float,
) -> tuple[Tensor, Tensor]:
    new = b.shape[1]
    kernel, first = _Kernel(coefficients, limit, softcap), k.shape[1] - new
    u, p = v.clone(), v[:, first:].clone()
    call, wild = _call(k, c, a, bias, lo, new, scale), kernel.wild(k, scale)
    writes = torch.cat([v[:, :first].any(-1), b != 0], 1)

    def work(some: slice) -> None:
        for t in call.tiles(some):
            w, own = kernel.strengths(t), slice(t.i.start + first, t.i.stop + first)
            if wild:
                _tame_(w, writes[t.n, own], writes[t.n, t.j])
            inside = w[..., t.past :].tril_(-1)
            if t.past:
                p[t.n, t.i].baddbmm_(w[..., : t.past], u[t.n, t.j][:, : t.past], alpha=-1)
            u[t.n, own] = unit_solve(b[t.n, t.i], inside, b[t.n, t.i, None] * p[t.n, t.i])
            if wild:
                u[t.n, own].masked_fill_(~writes[t.n, own, None], 0.0)
            p[t.n, t.i].baddbmm_(inside, u[t.n, own], alpha=-1)

    call.share(v.shape[-1], work)
    return u[:, first:].contiguous(), p


def _tiles_backward(
    grad: Tensor | None, _: Tensor | None, k: Tensor, v: Tensor, b: Tensor, c: Tensor | None, a: Tensor | None,
    bias: Tensor | None, lo: Tensor | None, coefficients: Sequence[float], limit: float | None, softcap: float | None,
    scale: float, u: Tensor, p: Tensor,
) -> Gradients:
    assert grad is not None
    new, kernel = b.shape[1], _Kernel(coefficients, limit, softcap)
    first = k.shape[1] - new
    outside = F.pad(grad, (0, 0, first, 0))  # nobody but the new keys reads the old ones here
    written, total = torch.cat([v[:, :first], u], 1), outside.clone()
    call, wild = _call(k, c, a, bias, lo, new, scale), kernel.wild(k, scale)
    writes = torch.cat([v[:, :first].any(-1), b != 0], 1)
    dq, dk, m = torch.zeros_like(call.q), torch.zeros_like(k), torch.empty_like(u)

    def work(some: slice) -> None:
        for t in call.tiles(some, backwards=True):
            own = slice(t.i.start + first, t.i.stop + first)
            w, slope = kernel.strengths_and_slopes(t)
            if wild:
                for x in (w, slope):
                    _tame_(x, writes[t.n, own], writes[t.n, t.j])
            inside = w[..., t.past :].tril_(-1)
            total[t.n, own] = unit_solve(b[t.n, t.i], inside, total[t.n, own], transposed=True)
            m[t.n, t.i] = b[t.n, t.i, None] * total[t.n, own]
            if wild:
                m[t.n, t.i].masked_fill_(~writes[t.n, own, None], 0.0)
            if t.past:
                total[t.n, t.j][:, : t.past].baddbmm_(w[..., : t.past].mT, m[t.n, t.i], alpha=-1)
            dx = torch.bmm(m[t.n, t.i], written[t.n, t.j].mT).mul_(slope).neg_()
            dx[..., t.past :].tril_(-1)
            t.scores_backward(dx, dq, dk)

    call.share(v.shape[-1], work)
    return _gathered(dq[:, 0], dk, k, v, c, a, bias, scale, outside, total, m, written, p, first)


def _gathered(
    dq: Tensor, dk: Tensor, k: Tensor, v: Tensor, c: Tensor | None, a: Tensor | None, bias: Tensor | None, scale: float,
    outside: Tensor, total: Tensor, m: Tensor, written: Tensor, p: Tensor, first: int,
) -> Gradients:
    """All gradients from those of the scores (as readers dq, as read dk), G, l and m."""
    db = (total[:, first:] * p).sum(-1)
    dv = torch.cat([total[:, :first], m], 1) if first else m
    dc = da = None
    dbias = None if bias is None else (written * (outside - total)).sum(-1)
    if c is not None:
        dc = (written * (outside - total)).sum(-1).double()
        dc[:, first:] += (m * (p - v[:, first:])).sum(-1)
    if a is not None:
        da = (dk * k).neg_().double()
        da[:, first:] += dq * (k[:, first:] * scale)
    dk[:, first:] += dq * scale
    return dk, dv, db, dc, da, dbias


_tiles_operator = operator(
    "delta_tiles", _tiles, _tiles_backward, plain=delta_dense, constants=1,
    fake=lambda k, v, b, *_: (v.new_empty(*b.shape, v.shape[-1]), v.new_empty(*b.shape, v.shape[-1])),
)


def delta_tiles(
    k: Tensor, v: Tensor, b: Tensor, c: Tensor | None, a: Tensor | None, bias: Tensor | None, lo: Tensor | None,
    coefficients: Sequence[float], limit: float | None, softcap: float | None, scale: float,
) -> Tensor:
    """k (N, T, D), v (N, T, E), b (N, new) -> u (N, new, E) of the last ``new`` keys; before them v holds what was written.

    Clocks c (N, T) and a (N, T, D) in float64, bias (N, T); lo (N, new) is the first key that each new one sees.
    """
    tensors = [None if x is None else x.contiguous() for x in (k, v, b, c, a, bias, lo)]
    return _tiles_operator(*tensors, list(coefficients), limit, softcap, scale)[0]


def _by_chunk(x: Tensor, n: int) -> Tensor:
    """(N * g, ...) -> (N, g, ...)."""
    return x.unflatten(0, (n, -1))


def _linear(coefficients: Sequence[float]) -> bool:
    return list(coefficients) == [0.0, 1.0]


def _strengths(
    block: _Block, rows: Tensor, keys: Tensor, coefficients: Sequence[float]
) -> tuple[Tensor, Tensor | None]:
    """W within each chunk (M, C, C), and the slope of w, or None where it is 1."""
    x = block.scores(rows, keys)
    w, slope = (x, None) if _linear(coefficients) else weights_and_slopes(x, coefficients)
    return block.fade_(w).tril_(-1), slope


def _reads(block: _Block, phi: Features, rows: Tensor, coefficients: Sequence[float]) -> Tensor:
    """What the keys of each chunk read the state with, (M, C, rows)."""
    features = phi.of(block.read_rows(rows)).mT
    return block.reading(features if _linear(coefficients) else features * phi.weight.mT)


def _scan(
    k: Tensor, v: Tensor, b: Tensor, state: Tensor, c: Tensor | None, a: Tensor | None,
    coefficients: Sequence[float], scale: float, chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    phi, (N, T, E) = Features(coefficients, k.shape[-1], k), v.shape
    q, state = (k * scale)[:, None], state / phi.root
    u, p, inverse = torch.empty_like(v), torch.empty_like(v), v.new_empty(N, T, chunk)
    for block in _blocks(q, chunk, _Clocks(c, c, a, a, k.dtype), phi):
        at, rows, keys = block.tokens, block.rows(q), block.keys(k)
        within, beta = _strengths(block, rows, keys, coefficients)[0], block.keys(b[..., None])
        solve = _by_chunk(unit_solve(beta[..., 0], within, torch.diag_embed(beta[..., 0])), N)  # (I + diag(b) W)^-1 diag(b)
        read = _by_chunk(_reads(block, phi, rows, coefficients), N)
        write = _by_chunk(block.writing(phi.of(block.write_keys(keys)).mT), N)
        values = v[:, at].unflatten(1, (-1, chunk))
        left, new = v.new_empty(values.shape[1], N, chunk, E), v.new_empty(values.shape[1], N, chunk, E)
        for i in range(len(new)):
            torch.baddbmm(values[:, i], read[:, i], state, alpha=-1, out=left[i])
            torch.bmm(solve[:, i], left[i], out=new[i])
            carried = state if block.carry is None else state * block.carry[:, i]
            state = torch.baddbmm(carried, write[:, i].mT, new[i])
        u[:, at], p[:, at], inverse[:, at] = _in_time(new), _in_time(left), solve.flatten(1, 2)
        block.put_keys(p, torch.bmm(within, block.keys(u)).neg_())
    return u, p, inverse


def _in_time(x: Tensor) -> Tensor:
    """(g, N, C, E) -> (N, g * C, E)."""
    return x.transpose(0, 1).flatten(1, 2)


def _scan_backward(
    grad: Tensor | None, _p: Tensor | None, _inverse: Tensor | None, k: Tensor, v: Tensor, b: Tensor, state: Tensor,
    c: Tensor | None, a: Tensor | None, coefficients: Sequence[float], scale: float, chunk: int,
    u: Tensor, p: Tensor, inverse: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    assert grad is not None
    phi, (N, _, E) = Features(coefficients, k.shape[-1], k), v.shape
    total, m, q = torch.empty_like(u), torch.empty_like(u), (k * scale)[:, None]
    dq, dk, dstate = torch.zeros_like(k), torch.zeros_like(k), torch.zeros_like(state)
    blocks = list(_blocks(q, chunk, _Clocks(c, c, a, a, k.dtype), phi))
    for block in reversed(blocks):  # backward in time: l, m and dH, and all that stays within a chunk
        at, rows, keys, written = block.tokens, block.rows(q), block.keys(k), block.keys(u)
        x, powers, features = phi.powers(block.write_keys(keys))
        read, write = _by_chunk(_reads(block, phi, rows, coefficients), N), _by_chunk(block.writing(features.mT), N)
        solve, g = (t[:, at].unflatten(1, (-1, chunk)) for t in (inverse, grad))
        after = state.new_empty(N, g.shape[1], *state.shape[1:])
        before, new = v.new_empty(g.shape[1], N, chunk, E), v.new_empty(g.shape[1], N, chunk, E)
        for i in reversed(range(len(new))):
            after[:, i] = dstate
            torch.baddbmm(g[:, i], write[:, i], dstate, out=before[i])
            torch.bmm(solve[:, i].mT, before[i], out=new[i])
            carried = dstate if block.carry is None else dstate * block.carry[:, i]
            dstate = torch.baddbmm(carried, read[:, i].mT, new[i], alpha=-1)
        m[:, at], total[:, at] = _in_time(new), _in_time(before)
        within, slope = _strengths(block, rows, keys, coefficients)
        moved = block.keys(m).neg()
        block.put_keys(total, torch.bmm(within.mT, moved))
        dx = torch.bmm(moved, written.mT)
        drows, dkeys = block.scores_backward(block.fade_(dx if slope is None else dx.mul_(slope)).tril_(-1), rows, keys)
        dfeatures = torch.bmm(after.flatten(0, 1), block.writing(written).mT)
        block.put_keys(dq, drows)
        block.put_keys(dk, dkeys + block.write_keys(phi.backward(x, powers, dfeatures)))
    state = state / phi.root
    for block in blocks:  # forward in time: the state again, and dQ
        update = torch.bmm(phi.of(block.write_keys(block.keys(k))), block.writing(block.keys(u)))
        earlier, state = block.states(state, update)
        x, powers, _features = phi.powers(block.read_rows(block.rows(q)))
        drows = torch.bmm(earlier.mul_(phi.weight), block.reading(block.keys(m).neg()).mT)
        block.put_keys(dq, block.read_rows(phi.backward(x, powers, drows)))
    dk, dv, db, dc, da, _none = _gathered(dq, dk, k, v, c, a, None, scale, grad, total, m, u, p, 0)
    return dk, dv, db, dstate / phi.root, dc, da


def delta_scan_plain(
    k: Tensor, v: Tensor, b: Tensor, state: Tensor, c: Tensor | None, a: Tensor | None,
    coefficients: Sequence[float], scale: float, chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """u, p and the inverse of each chunk, (I + diag(b) W)^-1 diag(b), one chunk after another; differentiated by autograd."""
    orders = [n for n, x in enumerate(coefficients) if x != 0]
    weight = torch.cat([k.new_full((symmetric_dim(k.shape[-1], n),), coefficients[n]) for n in orders])
    now_c, now_a = (None if x is None else torch.zeros_like(x[:, :1]) for x in (c, a))
    parts = []
    for t in range(0, k.shape[1], chunk):
        i = slice(t, t + chunk)
        C, A = (None if x is None else x[:, i] for x in (c, a))
        read_by, written_as, fade, carry = k[:, i] * scale, k[:, i], v.new_ones(()), v.new_ones(())
        if A is not None and now_a is not None:
            read_by, written_as = (x * y.exp().to(k.dtype) for x, y in ((read_by, A - now_a), (k[:, i], A[:, -1:] - A)))
            one = symmetric_powers(torch.ones_like(now_a), orders)
            carry = (symmetric_powers((A[:, -1:] - now_a).exp(), orders) / one).to(k.dtype).mT
            now_a = A[:, -1:]
        read = (symmetric_powers(read_by, orders) * weight) @ state
        if C is not None and now_c is not None:
            read = read * (C - now_c).exp().to(k.dtype)[..., None]
            fade, carry = (
                (C[:, -1:] - C).exp().to(k.dtype)[..., None],
                carry * (C[:, -1:] - now_c).exp().to(k.dtype)[..., None],
            )
            now_c = C[:, -1:]
        u, p = delta_dense(k[:, i], v[:, i] - read, b[:, i], C, A, None, None, coefficients, None, None, scale)
        state = carry * state + symmetric_powers(written_as, orders).mT @ (fade * u)
        eye = torch.eye(chunk, dtype=k.dtype, device=k.device).expand(len(k), -1, -1)
        inverse = delta_dense(k[:, i], eye, b[:, i], C, A, None, None, coefficients, None, None, scale)[0].detach()
        parts.append((u, p, inverse))
    us, ps, inverses = zip(*parts, strict=True)
    return torch.cat(us, 1), torch.cat(ps, 1), torch.cat(inverses, 1)


delta_operator = operator(
    "delta_scan", _scan, _scan_backward, plain=delta_scan_plain, constants=2,
    fake=lambda k, v, *o: (torch.empty_like(v), torch.empty_like(v), v.new_empty(*v.shape[:2], o[-1])),
)
