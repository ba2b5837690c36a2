"""The third primitive, ``scan``: a finite kernel in linear time, through a state of constant size (eq. 2 and sec. 3.1).

With phi(x) the monomials of x in all orders n, and weights c_n (times multiplicities) on the query's side, w(q . k) = phi(q) . W phi(k),
the sequence is cut into chunks. D = exp(c_t - c_s) is the decay of the context's clock, which also separates documents; for each chunk:

    1  within   A  = (w(Q K^T) * D) V                 the chunk's own keys, as in the parallel form
    2  read     A += D(t, begin) phi(Q) W H           all earlier keys, through the state
    3  write    H  = D(end, begin) H + phi(K)^T (D(end, s) V)          the state moves on
    4  combine                                        several chunks at a time, so that each step is one large matrix product

Channel decay acts inside the score: phi(Q exp(a_t - a_begin)), phi(K exp(a_end - a_s)), and the state times the monomials of
exp(a_end - a_begin).

``scan_plain`` says this in thirty lines of ordinary torch. The operator keeps nothing but its inputs and outputs for the backward pass: one
sweep forward makes H again and gives dQ, one sweep backward carries dH and gives dK and dV. The clocks' gradients follow from those:
dc_t = dA_t . A_t - dV_t . V_t and da_t = dQ_t Q_t - dK_t K_t, because D and exp(a) only ever multiply A, V, Q and K.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .operators import operator
from .powers import Features, exponents, symmetric_dim, symmetric_powers
from .scores import inside, inside_backward, weights, weights_and_slopes

LARGEST = 2**26  # numbers in the features of one chunk
AT_ONCE = 2**21  # numbers of query features made at once: bounds memory, and large enough to keep the cores busy


def _orders(coefficients: Sequence[float]) -> list[int]:
    return [n for n, c in enumerate(coefficients) if c != 0]


def scan_plain(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, cq: Tensor | None, ck: Tensor | None,
    aq: Tensor | None, ak: Tensor | None, coefficients: Sequence[float], chunk: int,
) -> tuple[Tensor, Tensor]:
    """The algorithm as the docstring above says it, one chunk after another; differentiated by autograd."""
    orders = _orders(coefficients)
    weight = torch.cat([q.new_full((symmetric_dim(q.shape[-1], n),), coefficients[n]) for n in orders])
    now_c, now_a = (None if x is None else torch.zeros_like(x[:, 0]) for x in (ck, ak))
    out = []
    for t in range(0, q.shape[2], chunk):
        Q, K, V = q[:, :, t : t + chunk], k[:, t : t + chunk], v[:, t : t + chunk]
        earlier = torch.ones(Q.shape[2], Q.shape[2], dtype=torch.bool, device=q.device).tril()
        Qr, Kw, end_a = Q, K, None
        if aq is None or ak is None or now_a is None:
            x = Q @ K.mT[:, None]
        else:
            A, B, end_a = aq[:, t : t + chunk], ak[:, t : t + chunk], ak[:, t : t + chunk][:, -1]
            pairs = (A[:, :, None] - B[:, None]).masked_fill(~earlier[..., None], -torch.inf).exp().to(q.dtype)
            x = torch.einsum("ngtd,nsd,ntsd->ngts", Q, K, pairs)
            Qr, Kw = Q * (A - now_a[:, None]).exp().to(q.dtype)[:, None], K * (end_a[:, None] - B).exp().to(q.dtype)
        w = sum(c * x**n for n, c in enumerate(coefficients)) * earlier
        read = (symmetric_powers(Qr, orders) * weight) @ state[:, None]
        carry: float | Tensor = 1.0
        Vw = V
        if cq is not None and ck is not None and now_c is not None:
            C, S = cq[:, t : t + chunk], ck[:, t : t + chunk]
            w = w * (C[:, :, None] - S[:, None]).masked_fill(~earlier, -torch.inf).exp().to(q.dtype)[:, None]
            read = read * (C - now_c[:, None]).exp().to(q.dtype)[:, None, :, None]
            Vw, carry = (
                V * (S[:, -1:] - S).exp().to(q.dtype)[..., None],
                (S[:, -1] - now_c).exp().to(q.dtype)[:, None, None],
            )
            now_c = S[:, -1]
        if end_a is not None and now_a is not None:
            one = symmetric_powers(torch.ones_like(end_a), orders)
            carry = carry * (symmetric_powers((end_a - now_a).exp(), orders) / one).to(q.dtype)[..., None]
            now_a = end_a
        out.append(w @ V[:, None] + read)  # 1 within, 2 read, 4 combine
        state = carry * state + symmetric_powers(Kw, orders).mT @ Vw  # 3 write
    return torch.cat(out, 2), state


class _Block:
    """Some consecutive chunks of all sequences, as views with sequence and chunk in one batch axis M = N * g."""

    def __init__(self, tokens: slice, chunk: int, group: int, clocks: _Clocks, phi: Features) -> None:
        self.tokens, self.chunk, self.group, self.phi = tokens, chunk, group, phi
        self.read = self.write = self.within = self.carry = self.qa = self.ka = None
        if clocks.ck is not None and clocks.cq is not None:
            c, q = (x[:, tokens].unflatten(1, (-1, chunk)) for x in (clocks.ck, clocks.cq))  # (N, g, C)
            begin, end = clocks.around(clocks.ck, tokens, chunk)
            later = torch.ones(chunk, chunk, dtype=torch.bool, device=c.device).triu(1)
            difference = q[..., :, None] - c[..., None, :]
            self.within = difference.masked_fill_(later, -torch.inf).to(clocks.dtype).exp_().flatten(0, 1)  # (M, C, C)
            self.read = (q - begin).to(clocks.dtype).exp_().flatten(0, 1)  # (M, C)
            self.write = (end - c).to(clocks.dtype).exp_().flatten(0, 1)  # (M, C)
            self.carry = (end - begin).to(clocks.dtype).exp_()[..., None]  # (N, g, 1, 1)
        if clocks.ak is not None and clocks.aq is not None:
            a, q = (x[:, tokens].unflatten(1, (-1, chunk)) for x in (clocks.ak, clocks.aq))  # (N, g, C, d)
            begin, end = clocks.around(clocks.ak, tokens, chunk)
            self.aq, self.ak = q.flatten(0, 1), a.flatten(0, 1)
            self.qa = (q - begin).to(clocks.dtype).exp_().flatten(0, 1)  # (M, C, d): on queries that read
            self.ka = (end - a).to(clocks.dtype).exp_().flatten(0, 1)  # (M, C, d): on keys that are written
            rows = phi.of((end - begin).to(clocks.dtype).exp_().flatten(0, 1)).unflatten(
                0, a.shape[:2]
            )  # (N, g, rows, 1)
            self.carry = rows if self.carry is None else self.carry * rows

    def keys(self, x: Tensor) -> Tensor:
        """(N, T, d) -> (M, C, d)."""
        return x[:, self.tokens].unflatten(1, (-1, self.chunk)).flatten(0, 1)

    def rows(self, x: Tensor) -> Tensor:
        """(N, G, T, d) -> (M, G * C, d)."""
        return x[:, :, self.tokens].unflatten(2, (-1, self.chunk)).transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def put_rows(self, out: Tensor, x: Tensor) -> None:
        """The inverse of ``rows``, into out (N, G, T, d)."""
        x = x.unflatten(0, (len(out), -1)).unflatten(2, (self.group, self.chunk)).transpose(1, 2)
        out[:, :, self.tokens] = x.flatten(2, 3)

    def put_keys(self, out: Tensor, x: Tensor) -> None:
        """Add x (M, C, d) to out (N, T, d)."""
        out[:, self.tokens] += x.unflatten(0, (len(out), -1)).flatten(1, 2)

    def reading(self, x: Tensor) -> Tensor:
        """Rows (M, G * C, e) times what has faded between the state and the query."""
        return x if self.read is None else x * self.read.repeat(1, self.group)[..., None]

    def writing(self, v: Tensor) -> Tensor:
        """Values (M, C, e) times what will have faded at the end of the chunk."""
        return v if self.write is None else v * self.write[..., None]

    def read_rows(self, rows: Tensor) -> Tensor:
        """Queries (M, G * C, d) as they read the state, under channel decay."""
        return rows if self.qa is None else (rows.unflatten(1, (self.group, -1)) * self.qa[:, None]).flatten(1, 2)

    def write_keys(self, keys: Tensor) -> Tensor:
        """Keys (M, C, d) as they are written, under channel decay."""
        return keys if self.ka is None else keys * self.ka

    def scores(self, rows: Tensor, keys: Tensor) -> Tensor:
        """(M, G * C, C)."""
        if self.qa is None:
            return torch.bmm(rows, keys.mT)
        return inside(rows.unflatten(1, (self.group, -1)), keys, self.aq, self.ak).flatten(1, 2)

    def scores_backward(self, dx: Tensor, rows: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of rows and keys."""
        if self.qa is None:
            return torch.bmm(dx, keys), torch.bmm(dx.mT, rows)
        split = (self.group, -1)
        dq, dk = inside_backward(dx.unflatten(1, split), rows.unflatten(1, split), keys, self.aq, self.ak)
        return dq.flatten(1, 2), dk

    def fade_(self, w: Tensor) -> Tensor:
        """Causal within the chunk, and what fades inside it."""
        part = w.unflatten(1, (self.group, -1))
        if self.within is None:
            part.tril_()
        else:
            part.mul_(self.within[:, None])
        return w

    def states(self, first: Tensor, updates: Tensor) -> tuple[Tensor, Tensor]:
        """The state before each chunk (M, rows, e), and the one after the last (N, rows, e)."""
        all_ = torch.cat([first[:, None], updates.unflatten(0, (len(first), -1))], 1)
        for c in range(1, all_.shape[1]):
            old = all_[:, c - 1]
            if self.carry is None:
                all_[:, c] += old
            else:
                all_[:, c].addcmul_(old, self.carry[:, c - 1])
        return all_[:, :-1].flatten(0, 1), all_[:, -1]

    def states_backward(self, last: Tensor, reads: Tensor) -> tuple[Tensor, Tensor]:
        """From the gradients of the last state and of what each chunk read: those of the updates, and of the first state."""
        all_ = torch.cat([reads.unflatten(0, (len(last), -1)), last[:, None]], 1)
        for c in range(all_.shape[1] - 2, -1, -1):
            new = all_[:, c + 1]
            if self.carry is None:
                all_[:, c] += new
            else:
                all_[:, c].addcmul_(new, self.carry[:, c])
        return all_[:, 1:].flatten(0, 1), all_[:, 0]


class _Clocks:
    """The clocks of queries and keys, and their values at the borders of chunks; before the first token they stand at 0."""

    def __init__(
        self, cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None, dtype: torch.dtype
    ) -> None:
        self.cq, self.ck, self.aq, self.ak, self.dtype = cq, ck, aq, ak, dtype

    def around(self, x: Tensor, tokens: slice, chunk: int) -> tuple[Tensor, Tensor]:
        """The clock at the beginning and at the end of each chunk, (N, g, 1, ...)."""
        end = x[:, tokens].unflatten(1, (-1, chunk))[:, :, -1:]
        first = x[:, tokens.start - 1][:, None, None] if tokens.start else torch.zeros_like(end[:, :1])
        return torch.cat([first, end[:, :-1]], 1), end


def _blocks(q: Tensor, chunk: int, clocks: _Clocks, phi: Features) -> Iterator[_Block]:
    N, group, T, _ = q.shape
    step = max(1, AT_ONCE // max(1, N * group * phi.rows * chunk)) * chunk
    for t in range(0, T, step):
        yield _Block(slice(t, min(T, t + step)), chunk, group, clocks, phi)


def _scan(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, cq: Tensor | None, ck: Tensor | None,
    aq: Tensor | None, ak: Tensor | None, coefficients: Sequence[float], chunk: int,
) -> tuple[Tensor, Tensor]:
    phi = Features(coefficients, q.shape[-1], q)
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    state = state / phi.root
    for b in _blocks(q, chunk, _Clocks(cq, ck, aq, ak, q.dtype), phi):
        rows, keys, values = b.rows(q), b.keys(k), b.keys(v)
        update = torch.bmm(phi.of(b.write_keys(keys)), b.writing(values))  # 3 write
        before, state = b.states(state, update)
        read = b.reading(torch.bmm(phi.of(b.read_rows(rows)).mT, before * phi.weight))  # 2 read
        w = b.fade_(weights(b.scores(rows, keys), coefficients))  # 1 within
        b.put_rows(out, read.baddbmm_(w, values))  # 4 combine
    return out, state * phi.root


def _scan_backward(
    grad: Tensor | None, dstate: Tensor | None, q: Tensor, k: Tensor, v: Tensor, state: Tensor,
    cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None,
    coefficients: Sequence[float], chunk: int, out: Tensor, after: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    phi = Features(coefficients, q.shape[-1], q)
    grad = torch.zeros_like(out) if grad is None else grad.contiguous()
    dlast = torch.zeros_like(after) if dstate is None else dstate
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    blocks = list(_blocks(q, chunk, _Clocks(cq, ck, aq, ak, q.dtype), phi))
    state, dstate = state / phi.root, dlast * phi.root
    for b in blocks:  # forward in time: the state again, dQ, and all that stays within a chunk
        rows, keys, values, g = b.rows(q), b.keys(k), b.keys(v), b.rows(grad)
        before, state = b.states(state, torch.bmm(phi.of(b.write_keys(keys)), b.writing(values)))
        x, powers, _ = phi.powers(b.read_rows(rows))
        drows = b.read_rows(phi.backward(x, powers, torch.bmm(before.mul_(phi.weight), b.reading(g).mT)))
        w, slope = weights_and_slopes(b.scores(rows, keys), coefficients)
        dx = b.fade_(torch.bmm(g, values.mT).mul_(slope))
        dr, dkeys = b.scores_backward(dx, rows, keys)
        b.put_rows(dq, drows + dr)
        b.put_keys(dk, dkeys)
        b.put_keys(dv, torch.bmm(b.fade_(w).mT, g))
    for b in reversed(blocks):  # backward in time: dH, dK and dV
        reads = torch.bmm(phi.of(b.read_rows(b.rows(q))), b.reading(b.rows(grad))).mul_(phi.weight)
        dupdate, dstate = b.states_backward(dstate, reads)
        x, powers, features = phi.powers(b.write_keys(b.keys(k)))
        b.put_keys(dv, b.writing(torch.bmm(features.mT, dupdate)))
        b.put_keys(dk, b.write_keys(phi.backward(x, powers, torch.bmm(dupdate, b.writing(b.keys(v)).mT))))
    dcq = dck = daq = dak = None
    if cq is not None:
        dcq, dck = (grad * out).sum((1, -1)).double(), (dv * v).sum(-1).neg_().double()
        dck[:, -1] += (dlast * after).sum((1, 2))
    if aq is not None:
        daq, dak = (dq * q).sum(1).double(), (dk * k).neg_().double()
        dak[:, -1] += (dlast * after).sum(-1).double() @ exponents(tuple(phi.orders), q.shape[-1]).to(q.device)
    return dq, dk, dv, dstate / phi.root, dcq, dck, daq, dak


scan_operator = operator(
    "scan", _scan, _scan_backward, plain=scan_plain,
    fake=lambda q, k, v, state, *_: (q.new_empty(*q.shape[:3], v.shape[-1]), torch.empty_like(state)),
)


def default_chunk(rows: int, group: int = 1) -> int:
    """Work within a chunk grows with its length, the traffic of the state shrinks: longer chunks for larger states.

    Very large states have features that are larger still, and get short chunks again.
    """
    chunk = 64 if rows <= 64 else 128 if rows <= 1024 else 256 if rows <= 2**16 else 64
    while chunk > 1 and rows * group * chunk > LARGEST:
        chunk //= 2
    return chunk
