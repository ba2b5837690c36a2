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
from .linear import ORDER_1, _fake, _Gradients, _Sequences, _sum
from .operators import operator


def _delta(
    q: Tensor, k: Tensor, v: Tensor, b: Tensor, state: Tensor, cq: Tensor | None, ck: Tensor | None,
    aq: Tensor | None, ak: Tensor | None, scale: float, chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    s = _Sequences(q, k, (cq, ck, aq, ak), scale, chunk)
    out, scores, states = q.new_empty(*q.shape[:3], v.shape[-1]), s.q.new_empty(*q.shape[:3], chunk), s.states(state)
    u, inverse, w = torch.empty_like(v), v.new_empty(s.N, s.T, chunk), torch.empty_like(k)
    if s.steep:
        u = delta._scan(k, v, b, state, ck, ak, ORDER_1, scale, chunk)[0]
        unused = [x.zero_() for x in (states, scores, inverse, w)]
        out, after = scan._scan(q, k, u, state, cq, ck, aq, ak, ORDER_1, chunk)
        return out, after, unused[0], unused[1], torch.zeros_like(q), torch.zeros_like(k), u, unused[2], unused[3]
    for ns, ts in s.pieces():
        K, R = s.key(ns, ts), s.reader(ns, ts)
        solved = unit_inverse(torch.bmm(R, K.mT).tril_(-1), s.cut(b[..., None], ns, ts))
        s.cut(inverse, ns, ts).copy_(solved)
        torch.bmm(solved, s.cut(v, ns, ts), out=s.cut(u, ns, ts))
        torch.bmm(solved, R, out=s.cut(w, ns, ts))
    for i in range(s.chunks):
        K, U, W = (x[:, i * chunk : (i + 1) * chunk] for x in (s.K, u, w))
        U.baddbmm_(W, states[:, i], alpha=-1)
        s.carry_(torch.baddbmm(states[:, i], K.mT, U, out=states[:, i + 1]), i)
    s.read(u, states, scores, out)
    return out, states[:, -1].clone(), states, scores, *s.made(), u, inverse, w


def _delta_backward(
    grad: Tensor | None, dlast: Tensor | None, _1: Tensor | None, _2: Tensor | None, _3: Tensor | None, _4: Tensor | None,
    _5: Tensor | None, _6: Tensor | None, _7: Tensor | None, q: Tensor, k: Tensor, v: Tensor, b: Tensor, state: Tensor,
    cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None, scale: float, chunk: int,
    out: Tensor, after: Tensor, states: Tensor, scores: Tensor, Q: Tensor, K: Tensor,
    u: Tensor, inverse: Tensor, w: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    s = _Sequences(q, k, (cq, ck, aq, ak), scale, chunk, (Q, K))
    if s.steep:
        return _delta_backward_steep(grad, dlast, q, k, v, b, state, cq, ck, aq, ak, scale, chunk, out, after)
    inner = torch.zeros_like(out) if grad is None else grad.contiguous()
    du, dstates = s.read_backward(inner, dlast, scores)
    for i in reversed(range(s.chunks)):
        K, dU, W = (x[:, i * chunk : (i + 1) * chunk] for x in (s.K, du, w))
        Y = s.carry_(dstates[:, i + 1], i)
        dU.baddbmm_(K, Y)
        dstates[:, i].add_(Y).baddbmm_(W.mT, dU, alpha=-1)
    found, dv, db = _Gradients(s), torch.empty_like(v), torch.empty_like(b)
    for ns, ts in s.pieces():
        K, R, S, Y = s.key(ns, ts), s.reader(ns, ts), s.around(states, ns, ts), s.around(dstates, ns, ts, 1)
        V, U, dU = s.cut(v, ns, ts), s.cut(u, ns, ts), s.cut(du, ns, ts)
        dZ = torch.bmm(s.cut(inverse, ns, ts).mT, dU, out=s.cut(dv, ns, ts))
        A = torch.bmm(R, K.mT).tril_(-1)
        left = torch.baddbmm(V, R, S, alpha=-1).baddbmm_(A, U, alpha=-1)  # what b multiplies
        torch.sum(torch.baddbmm(dU, A.mT, dZ, alpha=-1).mul_(left), -1, keepdim=True, out=s.cut(db[..., None], ns, ts))
        dA = torch.bmm(dZ, U.mT).tril_(-1)
        dK = found.scores(ns, ts, K, U, S, Y, inner).baddbmm_(dA.mT, R, alpha=-1)
        found.keys(ns, ts, dK, K, torch.bmm(dZ, S.mT).baddbmm_(dA, K).neg_(), R)
    dcq, dck, daq, dak = found.clocks(dlast, after)
    return found.dq, found.dk, dv, db, s.first_(dstates[:, 0].clone()), dcq, dck, daq, dak


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


delta_operator = operator(
    "linear_delta", _delta, _delta_backward, plain=delta_plain, constants=7,
    fake=lambda q, k, v, b, state, cq, ck, aq, ak, scale, chunk: (
        *_fake(q, v, state, chunk),
        *(torch.empty_like(x) if cq is not None or aq is not None else x.new_empty(0) for x in (q, k)),
        torch.empty_like(v), v.new_empty(*v.shape[:2], chunk), torch.empty_like(k),
    ),
)
