"""Order 1 in chunks: w(x) = x, so the features of the state are the vectors themselves.

With r the clock in the middle of a chunk, D_ts = exp(c_t - r) exp(r - c_s): the factors go into the vectors, the same for all channels of
a token, or with a clock c for every channel:

    Q = q exp(c_t - r)        K = k exp(r - c_s)        R = scale k exp(c_s - r)

So nothing fades inside a chunk. U is what is written, S the state in the middle of the chunk, r' the middle of the next:

    1 write    U  = V, or under the delta rule (linear_delta.py)  (I + b tril(R K^T, -1))^-1 b (V - R S)
    2 carry    S' = exp(r' - r) (S + K^T U)
    3 read     A  = tril(Q K^T) U + Q S

That is exact, and cannot overflow, while a clock falls by less than ``FALL`` within a chunk. Where it falls faster, and where a new
document begins, the functions of ``scan.py`` and ``delta.py`` compute it, which are for every order. Products are over pieces of
4,096 tokens of a sequence, which are views and stay in cache; in C (native/scan.h) a chunk at a time, and a sequence for each thread.
States, scores and, under the delta rule, inverses and vectors with a factor are kept for the backward pass: about as much as q, k and v
again, or twice that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from . import native, scan
from .operators import operator

TOKENS = 4096  # in a piece
FALL = {torch.float32: 80.0, torch.float64: 600.0}
ORDER_1 = (0.0, 1.0)


class _Fade:
    """Factors of queries and keys, (N, T, 1 or d), and of states (N, chunks, 1 or d, 1), from clocks and their middle in each chunk."""

    def __init__(self, cq: Tensor, ck: Tensor, middle: Tensor, last: Tensor, chunk: int, dtype: torch.dtype) -> None:
        self.cq, self.ck, self.middle, self.last, self.chunk, self.dtype = cq, ck, middle, last, chunk, dtype

    def _factor(self, difference: Tensor) -> Tensor:
        return difference.to(self.dtype).exp_()

    @cached_property
    def _spread(self) -> Tensor:
        return self.middle.repeat_interleave(self.chunk, 1)

    @cached_property
    def late(self) -> Tensor:
        """exp(r - c_s), of keys that write."""
        return self._factor(self._spread - self.ck)

    @cached_property
    def early(self) -> Tensor:
        """exp(c_t - r), of queries."""
        return self._factor(self.cq - self._spread)

    @cached_property
    def reader(self) -> Tensor:
        """The same of keys that read."""
        return self.early if self.cq.data_ptr() == self.ck.data_ptr() else self._factor(self.ck - self._spread)

    @cached_property
    def carry(self) -> Tensor:
        """From the middle of a chunk to that of the next, or of the last to its end."""
        return self._factor(torch.cat([self.middle[:, 1:], self.last], 1) - self.middle)[..., None]

    @cached_property
    def first(self) -> Tensor:
        """From the beginning to the middle of the first."""
        return self.middle[:, 0, :, None].to(self.dtype).exp()


def _fade(cq: Tensor, ck: Tensor, chunk: int, dtype: torch.dtype) -> _Fade | None:
    """From the clocks of queries and keys, (N, T, 1 or d) float64; None where one falls too fast."""
    last = ck[:, chunk - 1 :: chunk]  # at the end of each chunk
    begin = torch.cat([torch.zeros_like(last[:, :1]), last[:, :-1]], 1)
    low = torch.minimum(last, cq[:, chunk - 1 :: chunk])
    if bool((begin - low).max() > FALL[dtype]):
        return None
    return _Fade(cq, ck, (begin + low) / 2, last[:, -1:], chunk, dtype)


class _Sequences:
    """The inputs, cut into pieces and chunks; ``made`` are Q and K where the forward pass has kept them."""

    def __init__(
        self, q: Tensor, k: Tensor, clocks: Sequence[Tensor | None], scale: float, chunk: int, made: Sequence[Tensor] = ()
    ) -> None:
        self.q, self.k, self.scale, self.chunk = q, k, scale, chunk
        self.N, self.G, self.T, self.d = q.shape
        self.chunks = self.T // chunk
        cq, ck, aq, ak = clocks
        self.by_token, self.by_channel = cq is not None, aq is not None
        of_queries, of_keys = _clock(cq, aq), _clock(ck, ak)
        self.fades = of_queries is not None
        self.fade = None if of_queries is None or of_keys is None else _fade(of_queries, of_keys, chunk, q.dtype)
        self._made = made

    @cached_property
    def Q(self) -> Tensor:
        """Queries with their factor."""
        if self.fade is None:
            return self.q
        return self._made[0] if self._made else self.q * self.fade.early[:, None]

    @cached_property
    def K(self) -> Tensor:
        """Keys with theirs."""
        if self.fade is None:
            return self.k
        return self._made[1] if self._made else self.k * self.fade.late

    def factors(self) -> dict[str, Tensor]:
        """For the loops in C."""
        names = ("cq", "ck", "middle", "carry", "first")
        return {} if self.fade is None else {at: getattr(self.fade, at).contiguous() for at in names}

    def made(self) -> tuple[Tensor, Tensor]:
        """Q and K, for the backward pass; nothing where they are q and k."""
        return (self.q.new_empty(0), self.q.new_empty(0)) if self.fade is None else (self.Q, self.K)

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
        return self.cut(self.Q[:, g], ns, ts)

    def key(self, ns: slice, ts: slice) -> Tensor:
        """K."""
        return self.cut(self.K, ns, ts)

    def reader(self, ns: slice, ts: slice) -> Tensor:
        """R."""
        R = self.cut(self.k, ns, ts) * self.scale
        return R if self.fade is None else R.mul_(self.cut(self.fade.reader, ns, ts))

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

    def read(self, u: Tensor, states: Tensor, scores: Tensor, out: Tensor) -> None:
        """3 read."""
        for ns, ts in self.pieces():
            K, S, U = self.key(ns, ts), self.around(states, ns, ts), self.cut(u, ns, ts)
            for g in range(self.G):
                Q, w = self.query(ns, g, ts), self.cut(scores[:, g], ns, ts)
                torch.bmm(Q, K.mT, out=w).tril_()
                torch.bmm(w, U, out=self.cut(out[:, g], ns, ts)).baddbmm_(Q, S)

    def read_backward(self, grad: Tensor, dlast: Tensor | None, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of what is written, (N, T, e), and of the states, each through its own chunk alone."""
        du = grad.new_empty(self.N, self.T, grad.shape[-1])
        dstates = grad.new_empty(self.N, self.chunks + 1, self.d, grad.shape[-1])
        dstates[:, -1] = 0.0 if dlast is None else dlast
        for ns, ts in self.pieces():
            dU = self.cut(du, ns, ts)
            for g in range(self.G):
                G, w = self.cut(grad[:, g], ns, ts), self.cut(scores[:, g], ns, ts)
                torch.baddbmm(dU, w.mT, G, beta=float(g > 0), out=dU)
                self.put_product(dstates, ns, ts, 0, self.query(ns, g, ts).mT, G, g > 0)
        return du, dstates


def _clock(c: Tensor | None, a: Tensor | None) -> Tensor | None:
    """The clocks of tokens (N, T) and of channels (N, T, d) as one, (N, T, 1 or d)."""
    return _sum(None if c is None else c[..., None], a)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


class _Gradients:
    """Those of q, k and the clocks, (N, T, 1 or d), gathered from those of the vectors with their factors."""

    def __init__(self, s: _Sequences) -> None:
        self.s, self.dq, self.dk = s, torch.empty_like(s.q), torch.empty_like(s.k)
        width = 0 if s.fade is None else s.d if s.by_channel else 1
        self.clock_q, self.clock_k = (s.k.new_zeros(s.N, s.T, width) for _ in range(2))

    def scores(self, ns: slice, ts: slice, K: Tensor, U: Tensor, S: Tensor, Y: Tensor, grad: Tensor) -> Tensor:
        """Puts dq, and gives dK, in the place of dk, through Q K^T and through what is written; Y is the gradient of S + K^T U."""
        s = self.s
        dK = torch.bmm(U, Y.mT, out=s.cut(self.dk, ns, ts))
        for g in range(s.G):
            Q, G, dQ = s.query(ns, g, ts), s.cut(grad[:, g], ns, ts), s.cut(self.dq[:, g], ns, ts)
            dx = torch.bmm(G, U.mT).tril_()
            torch.bmm(dx, K, out=dQ).baddbmm_(G, S.mT)
            dK.baddbmm_(dx.mT, Q)
            if s.fade is not None:
                self._unfade(s.cut(self.clock_q, ns, ts), dQ, Q, s.cut(s.fade.early, ns, ts))
        return dK

    def keys(
        self, ns: slice, ts: slice, dK: Tensor, K: Tensor, dR: Tensor | None = None, R: Tensor | None = None
    ) -> None:
        """dk from dK, which is in its place, and from dR."""
        s = self.s
        if s.fade is not None:
            self._unfade(s.cut(self.clock_k, ns, ts), dK, K, s.cut(s.fade.late, ns, ts), -1)
        if dR is None or R is None:
            return
        if s.fade is not None:
            self._unfade(s.cut(self.clock_k, ns, ts), dR, R, s.cut(s.fade.reader, ns, ts))
        dK.add_(dR, alpha=s.scale)

    def _unfade(self, clock: Tensor, dx: Tensor, x: Tensor, factor: Tensor, sign: int = 1) -> None:
        """dx becomes the gradient of the vector without its factor; x grows with its clock (or falls: sign -1)."""
        if self.s.by_channel:
            clock.addcmul_(dx, x, value=sign)
        else:
            clock.add_((dx * x).sum(-1, keepdim=True), alpha=sign)
        dx.mul_(factor)

    def clocks(self, dlast: Tensor | None, after: Tensor) -> list[Tensor | None]:
        """Of cq, ck, aq and ak."""
        s = self.s
        if s.fade is None:
            return [None] * 4
        both = [self.clock_q.double(), self.clock_k.double()]
        if dlast is not None:  # the last state grows with the last of all
            end = (dlast * after).sum(-1)
            both[1][:, -1] += end if s.by_channel else end.sum(-1, keepdim=True)
        by_token = [x.sum(-1) for x in both] if s.by_token else [None, None]
        return [*by_token, *(both if s.by_channel else (None, None))]


def _scan(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    s = _Sequences(q, k, (cq, ck, aq, ak), 1.0, chunk)
    out, scores = q.new_empty(*q.shape[:3], v.shape[-1]), s.q.new_empty(*q.shape[:3], chunk)
    if s.steep:
        found = scan._scan(q, k, v, state, cq, ck, aq, ak, ORDER_1, chunk)
        return *found, s.states(state).zero_(), scores.zero_()
    if native.takes(q):
        states = q.new_empty(s.N, s.chunks + 1, *state.shape[1:])
        native.scan("scan", q, k, v, chunk, state=state, out=out, states=states, scores=scores, **s.factors())
        return out, states[:, -1].clone(), states, scores
    states = s.states(state)
    for ns, ts in s.pieces():
        s.put_product(states, ns, ts, 1, s.key(ns, ts).mT, s.cut(v, ns, ts), False)
    for i in range(s.chunks):
        s.carry_(states[:, i + 1].add_(states[:, i]), i)
    s.read(v, states, scores, out)
    return out, states[:, -1].clone(), states, scores


def _scan_backward(
    grad: Tensor | None, dlast: Tensor | None, _1: Tensor | None, _2: Tensor | None,
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None,
    chunk: int, out: Tensor, after: Tensor, states: Tensor, scores: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    s = _Sequences(q, k, (cq, ck, aq, ak), 1.0, chunk)
    if s.steep:
        return scan._scan_backward(grad, dlast, q, k, v, state, cq, ck, aq, ak, ORDER_1, chunk, out, after)
    inner, found = torch.zeros_like(out) if grad is None else grad.contiguous(), _Gradients(s)
    if native.takes(q):
        dv, dstate = torch.empty_like(v), torch.zeros_like(state) if dlast is None else torch.empty_like(state).copy_(dlast)
        native.scan(
            "scan_backward", q, k, v, chunk, grad=inner, states=states, scores=scores, dq=found.dq, dk=found.dk, dv=dv, dstate=dstate,
            clock_q=found.clock_q, clock_k=found.clock_k, **s.factors(),
        )
        dcq, dck, daq, dak = found.clocks(dlast, after)
        return found.dq, found.dk, dv, dstate, dcq, dck, daq, dak
    dv, dstates = s.read_backward(inner, dlast, scores)
    for i in reversed(range(s.chunks)):
        dstates[:, i] += s.carry_(dstates[:, i + 1], i)
    for ns, ts in s.pieces():
        K, V, Y = s.key(ns, ts), s.cut(v, ns, ts), s.around(dstates, ns, ts, 1)
        s.cut(dv, ns, ts).baddbmm_(K, Y)
        found.keys(ns, ts, found.scores(ns, ts, K, V, s.around(states, ns, ts), Y, inner), K)
    dcq, dck, daq, dak = found.clocks(dlast, after)
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
    fake=lambda q, k, v, state, cq, ck, aq, ak, chunk: _fake(q, v, state, chunk),
)
