"""Order 1 in chunks: w(x) = x, so the features of the state are the vectors themselves.

With r the clock in the middle of a chunk, D_ts = exp(c_t - r) exp(r - c_s): the second factor goes on the values, the first on the outputs.
Channel decay goes into the vectors in the same way, a clock for every channel:

    Q = q exp(a_t - r)        K = k exp(r - a_s)        R = scale k exp(a_s - r)

So nothing fades inside a chunk. U is what is written, S the state in the middle of the chunk, r' the middle of the next:

    1 write    U  = V, or under the delta rule (linear_delta.py)  (I + b tril(R K^T, -1))^-1 b (V - R S)
    2 carry    S' = exp(r' - r) (S + K^T U)
    3 read     A  = tril(Q K^T) U + Q S

That is exact, and cannot overflow, while a clock falls by less than ``FALL`` within a chunk. Where it falls faster, and where a new
document begins, the functions of ``scan.py`` and ``delta.py`` compute it, which are for every order. Products are over pieces of
4,096 tokens of a sequence, which are views and stay in cache. States, scores and inverses are kept for the backward pass: about as much
as q, k and v again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from . import scan
from .operators import operator

TOKENS = 4096  # in a piece
FALL = {torch.float32: 80.0, torch.float64: 600.0}
ORDER_1 = (0.0, 1.0)


class _Fade(NamedTuple):
    """Factors of keys or values and of queries or outputs, (N, T, 1 or d), and of states (N, chunks, 1 or d, 1)."""

    late: Tensor  # exp(r - c_s)
    early: Tensor  # exp(c_t - r), of queries
    reader: Tensor  # the same of keys
    carry: Tensor
    first: Tensor


def _fade(cq: Tensor, ck: Tensor, chunk: int, dtype: torch.dtype) -> _Fade | None:
    """From the clocks of queries and keys, (N, T, 1 or d) float64; None where one falls too fast."""
    last = ck[:, chunk - 1 :: chunk]  # at the end of each chunk
    begin = torch.cat([torch.zeros_like(last[:, :1]), last[:, :-1]], 1)
    low = torch.minimum(last, cq[:, chunk - 1 :: chunk])
    if bool((begin - low).max() > FALL[dtype]):
        return None
    middle = (begin + low) / 2
    after = torch.cat([middle[:, 1:], last[:, -1:]], 1)
    spread = middle.repeat_interleave(chunk, 1)
    late, early = (spread - ck).to(dtype).exp_(), (cq - spread).to(dtype).exp_()
    reader = early if cq.data_ptr() == ck.data_ptr() else (ck - spread).to(dtype).exp_()
    return _Fade(
        late, early, reader, (after - middle).to(dtype).exp_()[..., None], middle[:, 0, :, None].to(dtype).exp()
    )


class _Sequences:
    """The inputs, cut into pieces and chunks."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, clocks: Sequence[Tensor | None], scale: float, chunk: int
    ) -> None:
        self.q, self.k, self.scale, self.chunk = q, k, scale, chunk
        self.N, self.G, self.T, self.d = q.shape
        self.chunks = self.T // chunk
        cq, ck, aq, ak = clocks
        self.with_token = cq is not None
        of_queries, of_keys = _clock(cq, aq), _clock(ck, ak)
        self.fades = of_queries is not None
        self.fade = None if of_queries is None or of_keys is None else _fade(of_queries, of_keys, chunk, q.dtype)
        self.vectors = self.fade if aq is not None else None  # the factors go into q and k
        self.values = self.fade if aq is None else None  # or onto values and outputs
        self.v = v

    def value(self, ns: slice, ts: slice) -> Tensor:
        """V with its factor, for a piece: small enough to stay in cache, where all of it would be new memory."""
        V = self.cut(self.v, ns, ts)
        return V if self.values is None else V * self.cut(self.values.late, ns, ts)

    def gradient(self, grad: Tensor, ns: slice, g: int, ts: slice) -> Tensor:
        """That of the outputs before their factor, for a piece."""
        G = self.cut(grad[:, g], ns, ts)
        return G if self.values is None else G * self.cut(self.values.early, ns, ts)

    @property
    def steep(self) -> bool:
        """Does a clock fall too fast for this?"""
        return self.fades and self.fade is None

    def pieces(self) -> Iterator[tuple[slice, slice]]:
        """(sequences, tokens): one sequence, or some with all their tokens; so that chunks of a piece are a view."""
        if self.T >= TOKENS or self.G > 1:
            step = max(1, TOKENS // self.chunk) * self.chunk
            yield from ((slice(n, n + 1), slice(t, t + step)) for n in range(self.N) for t in range(0, self.T, step))
        else:
            step = max(1, TOKENS // self.T)
            yield from ((slice(n, n + step), slice(0, self.T)) for n in range(0, self.N, step))

    def cut(self, x: Tensor, ns: slice, ts: slice) -> Tensor:
        """The chunks of a piece: a view (M, C, x) of (N, T, x)."""
        return x[ns, ts].view(-1, self.chunk, x.shape[-1])

    def query(self, ns: slice, g: int, ts: slice) -> Tensor:
        """Q."""
        Q = self.cut(self.q[:, g], ns, ts)
        return Q if self.vectors is None else Q * self.cut(self.vectors.early, ns, ts)

    def key(self, ns: slice, ts: slice) -> Tensor:
        """K."""
        K = self.cut(self.k, ns, ts)
        return K if self.vectors is None else K * self.cut(self.vectors.late, ns, ts)

    def reader(self, ns: slice, ts: slice) -> Tensor:
        """R."""
        R = self.cut(self.k, ns, ts) * self.scale
        return R if self.vectors is None else R.mul_(self.cut(self.vectors.reader, ns, ts))

    def around(self, states: Tensor, ns: slice, ts: slice, shift: int = 0) -> Tensor:
        """Of states (N, chunks + 1, d, e) those before each chunk of a piece, or with ``shift`` 1 those after: (M, d, e)."""
        return self._in_chunks(states, ns, ts, shift).reshape(-1, *states.shape[2:])

    def put_product(self, states: Tensor, ns: slice, ts: slice, shift: int, a: Tensor, b: Tensor, add: bool) -> None:
        """The product of a (M, d, C) and b (M, C, e) in place of such states, or added to them."""
        target = self._in_chunks(states, ns, ts, shift)
        if len(target) == 1:
            torch.baddbmm(target[0], a, b, beta=float(add), out=target[0])
        else:
            product = torch.bmm(a, b).view(target.shape)
            target.copy_(target + product if add else product)

    def _in_chunks(self, states: Tensor, ns: slice, ts: slice, shift: int) -> Tensor:
        first, last = ts.start // self.chunk, min(ts.stop, self.T) // self.chunk
        return states[ns, first + shift : last + shift]

    def states(self, first: Tensor) -> Tensor:
        """(N, chunks + 1, d, e), with the first of them."""
        states = self.q.new_empty(self.N, self.chunks + 1, *first.shape[1:])
        self.first_(states[:, 0].copy_(first))
        return states

    def first_(self, state: Tensor) -> Tensor:
        """From the beginning to the middle of the first chunk."""
        return state if self.fade is None else state.mul_(self.fade.first)

    def carry_(self, state: Tensor, i: int) -> Tensor:
        """From the middle of chunk i to that of the next, or of the last to its end."""
        return state if self.fade is None else state.mul_(self.fade.carry[:, i])

    def read(self, u: Tensor | None, states: Tensor, scores: Tensor, out: Tensor) -> None:
        """3 read; without ``u`` of the values."""
        for ns, ts in self.pieces():
            K, S = self.key(ns, ts), self.around(states, ns, ts)
            U = self.value(ns, ts) if u is None else self.cut(u, ns, ts)
            for g in range(self.G):
                Q, w = self.query(ns, g, ts), self.cut(scores[:, g], ns, ts)
                torch.bmm(Q, K.mT, out=w).tril_()
                A = torch.bmm(w, U, out=self.cut(out[:, g], ns, ts)).baddbmm_(Q, S)
                if self.values is not None:
                    A.mul_(self.cut(self.values.early, ns, ts))

    def read_backward(self, grad: Tensor, dlast: Tensor | None, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of what is written, (N, T, e), and of the states, each through its own chunk alone."""
        du = grad.new_empty(self.N, self.T, grad.shape[-1])
        dstates = grad.new_empty(self.N, self.chunks + 1, self.d, grad.shape[-1])
        dstates[:, -1] = 0.0 if dlast is None else dlast
        for ns, ts in self.pieces():
            dU = self.cut(du, ns, ts)
            for g in range(self.G):
                G, w = self.gradient(grad, ns, g, ts), self.cut(scores[:, g], ns, ts)
                torch.baddbmm(dU, w.mT, G, beta=float(g > 0), out=dU)
                self.put_product(dstates, ns, ts, 0, self.query(ns, g, ts).mT, G, g > 0)
        return du, dstates


def _dots(a: Tensor, b: Tensor, factor: Tensor | None = None) -> Tensor:
    """Sums of products over the last axis; a is multiplied by the factor. A sequence at a time, so that all stays in cache."""
    found = []
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        x = x if factor is None else x.mul_(factor[i])
        found.append((x * y).sum(-1))
    return torch.stack(found)


def _clock(c: Tensor | None, a: Tensor | None) -> Tensor | None:
    """The clocks of tokens (N, T) and of channels (N, T, d) as one, (N, T, 1 or d)."""
    return _sum(None if c is None else c[..., None], a)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


class _Gradients:
    """Those of q, k and the clocks, gathered from those of the vectors with their factors."""

    def __init__(self, s: _Sequences) -> None:
        self.s, self.dq, self.dk = s, torch.empty_like(s.q), torch.empty_like(s.k)
        self.clock_q = None if s.vectors is None else torch.zeros_like(s.k)
        self.clock_k = None if s.vectors is None else torch.zeros_like(s.k)

    def scores(self, ns: slice, ts: slice, K: Tensor, U: Tensor, S: Tensor, Y: Tensor, grad: Tensor) -> Tensor:
        """Puts dq, and gives dK, in the place of dk, through Q K^T and through what is written; Y is the gradient of S + K^T U."""
        s = self.s
        dK = torch.bmm(U, Y.mT, out=s.cut(self.dk, ns, ts))
        for g in range(s.G):
            Q, G, dQ = s.query(ns, g, ts), s.gradient(grad, ns, g, ts), s.cut(self.dq[:, g], ns, ts)
            dx = torch.bmm(G, U.mT).tril_()
            torch.bmm(dx, K, out=dQ).baddbmm_(G, S.mT)
            dK.baddbmm_(dx.mT, Q)
            if s.vectors is not None and self.clock_q is not None:
                s.cut(self.clock_q, ns, ts).addcmul_(dQ, Q)
                dQ.mul_(s.cut(s.vectors.early, ns, ts))
        return dK

    def keys(
        self, ns: slice, ts: slice, dK: Tensor, K: Tensor, dR: Tensor | None = None, R: Tensor | None = None
    ) -> None:
        """dk from dK, which is in its place, and from dR."""
        s = self.s
        if s.vectors is not None and self.clock_k is not None:  # K falls with its clock, R grows
            s.cut(self.clock_k, ns, ts).addcmul_(dK, K, value=-1)
            dK.mul_(s.cut(s.vectors.late, ns, ts))
        if dR is None or R is None:
            return
        if s.vectors is not None and self.clock_k is not None:
            s.cut(self.clock_k, ns, ts).addcmul_(dR, R)
            dR.mul_(s.cut(s.vectors.reader, ns, ts))
        dK.add_(dR, alpha=s.scale)

    def clocks(
        self, grad: Tensor | None, out: Tensor, dv: Tensor, v: Tensor, dlast: Tensor | None, after: Tensor
    ) -> list[Tensor | None]:
        """Of cq, ck, aq and ak; ``dv`` is that of the values with their factor, and gets it here."""
        s = self.s
        if s.fade is None:
            return [None] * 4
        end = None if dlast is None else (dlast * after).sum(-1)  # the last state grows with the last of all
        if s.values is not None:  # outputs grow with their clock, values fall
            dck = _dots(dv, v, s.values.late).neg_().double()
            dcq = torch.zeros_like(dck) if grad is None else _dots(grad, out).sum(1).double()
            if end is not None:
                dck[:, -1] += end.sum(-1)
            return [dcq, dck, None, None]
        assert self.clock_q is not None
        assert self.clock_k is not None
        both = [self.clock_q.double(), self.clock_k.double()]
        if end is not None:
            both[1][:, -1] += end
        return [*([x.sum(-1) for x in both] if s.with_token else (None, None)), *both]


def _scan(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    s = _Sequences(q, k, v, (cq, ck, aq, ak), 1.0, chunk)
    out, scores, states = q.new_empty(*q.shape[:3], v.shape[-1]), s.q.new_empty(*q.shape[:3], chunk), s.states(state)
    if s.steep:
        return *scan._scan(q, k, v, state, cq, ck, aq, ak, ORDER_1, chunk), states.zero_(), scores.zero_()
    for ns, ts in s.pieces():
        s.put_product(states, ns, ts, 1, s.key(ns, ts).mT, s.value(ns, ts), False)
    for i in range(s.chunks):
        s.carry_(states[:, i + 1].add_(states[:, i]), i)
    s.read(None, states, scores, out)
    return out, states[:, -1].clone(), states, scores


def _scan_backward(
    grad: Tensor | None, dlast: Tensor | None, _states: Tensor | None, _scores: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
    state: Tensor, cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None, chunk: int,
    out: Tensor, after: Tensor, states: Tensor, scores: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    s = _Sequences(q, k, v, (cq, ck, aq, ak), 1.0, chunk)
    if s.steep:
        return scan._scan_backward(grad, dlast, q, k, v, state, cq, ck, aq, ak, ORDER_1, chunk, out, after)
    inner = torch.zeros_like(out) if grad is None else grad.contiguous()
    dv, dstates = s.read_backward(inner, dlast, scores)
    for i in reversed(range(s.chunks)):
        dstates[:, i] += s.carry_(dstates[:, i + 1], i)
    found = _Gradients(s)
    for ns, ts in s.pieces():
        K, V, Y = s.key(ns, ts), s.value(ns, ts), s.around(dstates, ns, ts, 1)
        s.cut(dv, ns, ts).baddbmm_(K, Y)
        found.keys(ns, ts, found.scores(ns, ts, K, V, s.around(states, ns, ts), Y, inner), K)
    dcq, dck, daq, dak = found.clocks(grad, out, dv, v, dlast, after)
    return found.dq, found.dk, dv, s.first_(dstates[:, 0].clone()), dcq, dck, daq, dak


def scan_plain(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """As ``scan.py`` says it."""
    return scan.scan_plain(q, k, v, state, cq, ck, aq, ak, ORDER_1, chunk)


def _fake(q: Tensor, v: Tensor, state: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    N, G, T, d = q.shape
    kept = q.new_empty(N, T // chunk + 1, d, v.shape[-1]), q.new_empty(N, G, T, chunk)
    return q.new_empty(N, G, T, v.shape[-1]), torch.empty_like(state), *kept


scan_operator = operator(
    "linear_scan", _scan, _scan_backward, plain=scan_plain, constants=2,
    fake=lambda q, k, v, state, *others: _fake(q, v, state, others[-1]),
)
