"""The delta rule of order 1 in chunks, read at once: DeltaNet, Gated DeltaNet and KDA (the symbols are those of linear.py).

    A = tril(R K^T, -1)        T = (I + diag(b) A)^-1 diag(b)        U = T (V - R S) = T V - (T R) S        S' = carry (S + K^T U)

All but the last two is made for every chunk at once; the loop over chunks has two products. Backward, with G the gradient of the output,
Y that of S + K^T U and dU that of all that was written:

    dU = tril(Q K^T)^T G + K Y        dS = Q^T G + Y - (T R)^T dU
    dZ = dV = T^T dU        dA = -dZ U^T        db = (dU - A^T dZ) . (Z - A U)

with Z = V - R S. Where a clock falls too fast, ``delta.py`` and ``scan.py`` compute it one after the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import delta, scan
from .linear import ORDER_1, _fake, _Gradients, _Sequences, _sum, multiplications, steep
from .operators import operator
from .threads import share, some


def _delta(
    q: Tensor, k: Tensor, v: Tensor, b: Tensor, state: Tensor, cq: Tensor | None, ck: Tensor | None,
    aq: Tensor | None, ak: Tensor | None, scale: float, chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    out, after, states, scores, u, inverse, w = _shapes(q, k, v, state, chunk)
    if steep((cq, ck, aq, ak), chunk, q.dtype):
        u = delta._scan(k, v, b, state, ck, ak, ORDER_1, scale, chunk)[0]
        unused = [x.zero_() for x in (states, scores, inverse, w)]
        out, after = scan._scan(q, k, u, state, cq, ck, aq, ak, ORDER_1, chunk)
        return out, after, unused[0], unused[1], u, unused[2], unused[3]

    def work(n: slice) -> None:
        Q, K, V, B, first, A, S, X, U, I, W, *clocks = some(
            n, q, k, v, b, state, out, states, scores, u, inverse, w, cq, ck, aq, ak
        )
        s = _Sequences(Q, K, V, clocks, scale, chunk)
        s.begin(S, first)
        keys = K if s.vectors is None else K * s.vectors.late
        for ns, ts in s.pieces():
            R = s.reader(ns, ts)
            solved = unit_inverse(torch.bmm(R, s.cut(keys, ns, ts).mT).tril_(-1), s.cut(B[..., None], ns, ts))
            s.cut(I, ns, ts).copy_(solved)
            torch.bmm(solved, s.cut(s.v, ns, ts), out=s.cut(U, ns, ts))
            torch.bmm(solved, R, out=s.cut(W, ns, ts))
        for i in range(s.chunks):
            k_i, u_i, w_i = (x[:, i * chunk : (i + 1) * chunk] for x in (keys, U, W))
            u_i.baddbmm_(w_i, S[:, i], alpha=-1)
            s.carry_(torch.baddbmm(S[:, i], k_i.mT, u_i, out=S[:, i + 1]), i)
        s.read(U, S, X, A)
        after[n] = S[:, -1]

    share(len(q), 2 * multiplications(q, v, chunk), q.device, work, turns=1)
    return out, after, states, scores, u, inverse, w


def _delta_backward(
    grad: Tensor | None, dlast: Tensor | None, _1: Tensor | None, _2: Tensor | None, _3: Tensor | None, _4: Tensor | None,
    _5: Tensor | None, q: Tensor, k: Tensor, v: Tensor, b: Tensor, state: Tensor,
    cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None, scale: float, chunk: int,
    out: Tensor, after: Tensor, states: Tensor, scores: Tensor, u: Tensor, inverse: Tensor, w: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    if steep((cq, ck, aq, ak), chunk, q.dtype):
        return _delta_backward_steep(grad, dlast, q, k, v, b, state, cq, ck, aq, ak, scale, chunk, out, after)
    dq, dk, dv, db, dfirst = (torch.empty_like(x) for x in (q, k, v, b, state))
    dclocks = [None if x is None else torch.empty_like(x) for x in (cq, ck, aq, ak)]

    def work(n: slice) -> None:
        Q, K, V, G, A, last, end, S, X, U, I, W, *clocks = some(
            n, q, k, v, grad, out, dlast, after, states, scores, u, inverse, w, cq, ck, aq, ak
        )
        dQ, dK, dV, dB, *dclock = some(n, dq, dk, dv, db, *dclocks)
        s, dU = _Sequences(Q, K, V, clocks, scale, chunk), torch.empty_like(U)
        inner, found = s.gradient(G, A), _Gradients(s, dQ, dK)
        dS = s.read_backward(inner, last, X, dU)
        keys = K if s.vectors is None else K * s.vectors.late
        for i in reversed(range(s.chunks)):
            k_i, du_i, w_i = (x[:, i * chunk : (i + 1) * chunk] for x in (keys, dU, W))
            Y = s.carry_(dS[:, i + 1], i)
            du_i.baddbmm_(k_i, Y)
            dS[:, i].add_(Y).baddbmm_(w_i.mT, du_i, alpha=-1)
        for ns, ts in s.pieces():
            cut = (ns, ts)
            R, before, Y = s.reader(*cut), s.around(S, *cut), s.around(dS, *cut, 1)
            k_, v_, u_, du_ = (s.cut(x, *cut) for x in (keys, s.v, U, dU))
            dZ = torch.bmm(s.cut(I, *cut).mT, du_, out=s.cut(dV, *cut))
            a = torch.bmm(R, k_.mT).tril_(-1)
            left = torch.baddbmm(v_, R, before, alpha=-1).baddbmm_(a, u_, alpha=-1)  # what b multiplies
            db_ = torch.baddbmm(du_, a.mT, dZ, alpha=-1).mul_(left)
            torch.sum(db_, -1, keepdim=True, out=s.cut(dB[..., None], *cut))
            da = torch.bmm(dZ, u_.mT).tril_(-1)
            dk_ = found.scores(*cut, k_, u_, before, Y, inner).baddbmm_(da.mT, R, alpha=-1)
            found.keys(*cut, dk_, k_, torch.bmm(dZ, before.mT).baddbmm_(da, k_).neg_(), R)
        s.first_(dfirst[n].copy_(dS[:, 0]))
        found.put_clocks(dclock, G, A, dV, V, last, end)

    share(len(q), 2 * multiplications(q, v, chunk), q.device, work, turns=1)
    dcq, dck, daq, dak = dclocks
    return dq, dk, dv, db, dfirst, dcq, dck, daq, dak


def _delta_backward_steep(
    grad: Tensor | None, dlast: Tensor | None, q: Tensor, k: Tensor, v: Tensor, b: Tensor, state: Tensor, cq: Tensor | None,
    ck: Tensor | None, aq: Tensor | None, ak: Tensor | None, scale: float, chunk: int, out: Tensor, after: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The two operators one after the other."""
    made = delta._scan(k, v, b, state, ck, ak, ORDER_1, scale, chunk)
    dq, dk, du, dstate, dcq, dck, daq, dak = scan._scan_backward(
        grad, dlast, q, k, made[0], state, cq, ck, aq, ak, ORDER_1, chunk, out, after
    )
    more = delta._scan_backward(du, None, None, k, v, b, state, ck, ak, ORDER_1, scale, chunk, *made)
    dck, dak = _sum(dck, more[4]), _sum(dak, more[5])
    return dq, dk + more[0], more[1], more[2], dstate + more[3], dcq, dck, daq, dak


def unit_inverse(a: Tensor, b: Tensor) -> Tensor:
    """(I + diag(b) A)^-1 diag(b) for strictly lower A (M, C, C) and b (M, C, 1)."""
    return torch.linalg.solve_triangular(a * b, torch.diag_embed(b[..., 0]), upper=False, unitriangular=True)


def delta_plain(
    q: Tensor, k: Tensor, v: Tensor, b: Tensor, state: Tensor, cq: Tensor | None, ck: Tensor | None,
    aq: Tensor | None, ak: Tensor | None, scale: float, chunk: int,
) -> tuple[Tensor, Tensor]:
    """As ``delta.py`` and ``scan.py`` say it."""
    u = delta.delta_scan_plain(k, v, b, state, ck, ak, ORDER_1, scale, chunk)[0]
    return scan.scan_plain(q, k, u, state, cq, ck, aq, ak, ORDER_1, chunk)


def _shapes(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return *_fake(q, v, state, chunk), torch.empty_like(v), v.new_empty(*v.shape[:2], chunk), torch.empty_like(k)


delta_operator = operator(
    "linear_delta", _delta, _delta_backward, plain=delta_plain, constants=5,
    fake=lambda q, k, v, b, state, *others: _shapes(q, k, v, state, others[-1]),
)
