"""The first two primitives tile by tile, O(T) memory forward and backward, with every factor that the context knows:

    weighted_sum   A_t = sum_s D_ts w(x_ts) v_s     Z_t = sum_s D_ts w(x_ts)       w a polynomial, or exp, of min(x, limit)
    softmax_lse    O_t = sum_s p_ts v_s             p = softmax_s( cap(x_ts) - bias_s + log D_ts )       and its log-sum-exp

For a block of queries the scores against the keys they see (of a weighted sum: some of these at a time) are made, turned into weights in
place, and used at once. Nothing but the inputs and outputs is kept for the backward pass, which makes the weights again; the derivative of
a polynomial is another one (for a Taylor series the one of an order less), never N score matrices on autograd's tape. Keys whose decay has
ended (exp gives 0) are not visited.

On the CPU the same loops in C (native/tiles.h) take their place where they can be built, except for channel decay and soft caps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from . import native, scores
from .dense import softmax_dense, weighted_dense
from .operators import operator
from .scores import weights, weights_and_slopes
from .threads import share

ROWS = 128  # queries per tile
SMALL = (160, 4096)  # queries and keys per tile of a weighted sum on the CPU: large enough that threads seldom meet at the lock of Python
BUDGET = {"cpu": 2**20, "default": 2**26}  # scores per tile: about the cache of a core, or what keeps a GPU busy


class _Tile:
    """A block of sequences n and queries i, and the keys j that any of them sees."""

    def __init__(self, call: _Call, n: slice, i: slice, j: slice, past: int, mask: Tensor | None, where: slice) -> None:
        self.call, self.n, self.i, self.j, self.past = call, n, i, j, past
        self.mask, self.where = mask, where  # (n or 1, 1, R, columns of ``where``): True = seen

    def split(self, keys: int) -> Iterator[_Tile]:
        """The same by parts of the keys; a mask that is for the last keys alone goes with these."""
        for first in range(self.j.start, max(self.j.stop, self.j.start + 1), keys):
            j = slice(first, min(self.j.stop, first + keys))
            past = min(max(self.j.start + self.past - first, 0), j.stop - first)
            if self.mask is None or self.where == slice(None):
                mask = None if self.mask is None else self.mask[..., first - self.j.start : j.stop - self.j.start]
                yield _Tile(self.call, self.n, self.i, j, past, mask, slice(None))
                continue
            own = self.j.stop - self.mask.shape[-1]  # the first key of the mask
            if j.stop <= own:
                yield _Tile(self.call, self.n, self.i, j, past, None, slice(None))
            else:
                mask = self.mask[..., max(first - own, 0) : j.stop - own]
                yield _Tile(self.call, self.n, self.i, j, past, mask, slice(max(own - first, 0), None))

    def rows(self, x: Tensor) -> Tensor:
        """Of x (N, G, Tq, d) the tile's queries, (n, G * R, d); with one head in the group a view to write to."""
        return self.call.kept((id(x), self.n.start, self.i.start), lambda: x[self.n, :, self.i].flatten(1, 2))

    def keys(self, x: Tensor, turned: bool = False) -> Tensor:
        """Of x (N, Tk, d) the tile's keys, a view (n, J, d), or ``turned`` (n, d, J)."""
        at = (id(x), self.n.start, self.j.start, self.j.stop, turned)
        return self.call.kept(at, lambda: x[self.n, self.j].mT if turned else x[self.n, self.j])

    def add_product(self, out: Tensor, a: Tensor, b: Tensor) -> None:
        """Add a (n, G * R, J) times b (n, J, d) to the tile's queries of out (N, G, Tq, d)."""
        if out.shape[1] == 1:
            self.rows(out).baddbmm_(a, b)
        else:
            out[self.n, :, self.i].add_(torch.bmm(a, b).unflatten(1, (out.shape[1], -1)))

    def clock(self) -> Tensor | None:
        """log D (n, R, J), or None."""
        c = self.call
        if c.cq is None or c.ck is None:
            return None
        return (c.cq[self.n, self.i, None] - c.ck[self.n, None, self.j]).to(c.q.dtype)

    def scores(self) -> Tensor:
        """(n, G * R, J)."""
        c = self.call
        if c.aq is None or c.ak is None:
            return torch.bmm(self.rows(c.q), self.keys(c.k, turned=True))
        q, k = c.q[self.n, :, self.i], c.k[self.n, self.j]
        aq, ak, p = c.aq[self.n, self.i], c.ak[self.n, self.j], self.past
        parts = [scores.before(q, k[:, :p], aq, ak[:, :p])] if p else []
        parts += [scores.inside(q, k[:, p:], aq, ak[:, p:])] if p < k.shape[1] else []
        return torch.cat(parts, -1).flatten(1, 2)

    def scores_backward(self, dx: Tensor, dq: Tensor, dk: Tensor) -> None:
        """Add the gradients of q and k to those there are."""
        c = self.call
        if c.aq is None or c.ak is None:
            self.add_product(dq, dx, self.keys(c.k))
            self.keys(dk).baddbmm_(dx.mT, self.rows(c.q))
            return
        q, k = c.q[self.n, :, self.i], c.k[self.n, self.j]
        split = (q.shape[1], -1)
        aq, ak, p, dx = c.aq[self.n, self.i], c.ak[self.n, self.j], self.past, dx.unflatten(1, split)
        for part, backward in ((slice(0, p), scores.before_backward), (slice(p, None), scores.inside_backward)):
            if k[:, part].shape[1]:
                a, b = backward(dx[..., part], q, k[:, part], aq, ak[:, part])
                dq[self.n, :, self.i] += a
                dk[self.n, self.j][:, part] += b

    def fade_(self, w: Tensor, group: int) -> Tensor:
        """Weights (n, G * R, J) times D, 0 for what is not seen."""
        if self.mask is None and self.call.cq is None:
            return w
        part = w.unflatten(1, (group, -1))
        clock = self.clock()
        if clock is not None:
            part.mul_(clock.clamp_(max=0).exp_()[:, None])
        if self.mask is not None:
            part[..., self.where].mul_(self.mask.to(w.dtype))
        return w

    def shift_(self, x: Tensor, group: int) -> Tensor:
        """Logits (n, G * R, J) plus log D, -inf for what is not seen."""
        part = x.unflatten(1, (group, -1))
        clock = self.clock()
        if clock is not None:
            part.add_(clock[:, None])
        if self.call.bias is not None:
            part.sub_(self.call.bias[self.n, None, None, self.j])
        if self.mask is not None:
            part[..., self.where].masked_fill_(~self.mask, -torch.inf)
        if self.call.keep is not None:
            part.masked_fill_(~self.call.keep[self.n, None, None, self.j], -torch.inf)
        return x


class _Call:
    """The inputs of an operator, and the tiles they are computed in."""

    def __init__(
        self, q: Tensor, k: Tensor, cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None,
        lo: Tensor | None, hi: Tensor | None, keep: Tensor | None, causal: bool, bias: Tensor | None = None, gone: Tensor | None = None,
    ) -> None:
        self.q, self.k, self.cq, self.ck, self.aq, self.ak = q, k, cq, ck, aq, ak
        self.lo, self.hi, self.keep, self.causal, self.bias = lo, hi, keep, causal, bias
        self.gone = gone  # (N, 1): keys whose log D is below that count for nothing
        self._kept: dict[tuple[int, ...], Tensor] = {}

    def kept(self, at: tuple[int, ...], make: Callable[[], Tensor]) -> Tensor:
        """What ``make`` gives, made once: views of blocks are used by many tiles, and threads that make them wait for one another."""
        found = self._kept.get(at)
        if found is None:
            found = self._kept[at] = make()
        return found

    def share(self, width: int, work: Callable[[slice], None]) -> None:
        """Call ``work`` with some sequences at a time, in several threads where it pays; ``width`` is that of the values."""
        N, group, Tq, D = self.q.shape
        share(N, N * group * Tq * self.k.shape[1] * (D + width), self.q.device, work)

    def split(self, some: slice) -> Iterator[_Tile]:
        """The tiles of some sequences, on the CPU of at most ``SMALL`` size: one sequence for each thread, or several short ones."""
        if self.q.device.type != "cpu":
            yield from self.tiles(some)
            return
        _, group, Tq, _ = self.q.shape
        most, keys = SMALL
        rows = max(1, most // group)
        reach = self.k.shape[1] if self.lo is None or self.hi is None else int((self.hi - self.lo).max()) + rows
        sequences = most * keys // max(1, group * min(rows, Tq) * min(keys, self.k.shape[1], reach))
        for t in self.tiles(some, rows, max(sequences, torch.get_num_threads())):
            yield from t.split(keys)

    def tiles(
        self, some: slice, size: int = ROWS, sequences: int | None = None, backwards: bool = False
    ) -> Iterator[_Tile]:
        """Those of some sequences, queries inside; forward in time, or backwards. ``sequences``: in a tile, if not by ``BUDGET``."""
        _, group, Tq, _ = self.q.shape
        Tk = self.k.shape[1]
        offset = Tk - Tq if self.causal else Tk
        budget = BUDGET.get(self.q.device.type, BUDGET["default"])
        per_tile = sequences or max(2, budget // max(1, size * group * Tk))
        index = torch.arange(size, device=self.q.device)
        triangle = (index[None, :] <= index[:, None])[None, None]
        for n in range(some.start, some.stop, per_tile):
            ns = slice(n, min(some.stop, n + per_tile))
            starts = range(0, Tq, size)
            for i in reversed(starts) if backwards else starts:
                qs = slice(i, min(Tq, i + size))
                rows = qs.stop - qs.start
                past = offset + i if self.causal else Tk
                if self.lo is not None and self.hi is not None:
                    first, last = (x[ns if len(x) > 1 else slice(None), qs] for x in (self.lo, self.hi))
                    begin = self._begin(ns, qs, int(first.min()))
                    end = max(begin, int(last.max()))
                    j = torch.arange(begin, end, device=self.q.device)
                    mask = ((j >= first[..., None]) & (j < last[..., None]))[:, None]
                    yield _Tile(
                        self, ns, qs, slice(begin, end), min(max(past - begin, 0), end - begin), mask, slice(None)
                    )
                elif self.causal:
                    begin = self._begin(ns, qs, 0)
                    keys = slice(begin, qs.stop + offset)
                    yield _Tile(self, ns, qs, keys, past - begin, triangle[..., :rows, :rows], slice(-rows, None))
                else:
                    begin = self._begin(ns, qs, 0)
                    yield _Tile(self, ns, qs, slice(begin, Tk), Tk - begin, None, slice(None))

    def _begin(self, ns: slice, qs: slice, first: int) -> int:
        """The first key whose decay has not ended for the first of the queries, which remembers most."""
        if self.cq is None or self.ck is None or self.gone is None or self.ck.shape[1] == 0:
            return first
        gone = (self.cq[ns, qs.start, None] - self.ck[ns]) <= self.gone[ns]  # falling in s: True ... True False ... False
        return max(first, int(gone.sum(-1).min()))


def _ended(q: Tensor) -> Tensor:
    """Where D itself is 0."""
    return q.new_full((len(q), 1), -800.0 if q.dtype == torch.float64 else -110.0)


def _faded(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor | None:
    """Where a weight cannot be e^-20 (float64: e^-40) of its row, whose newest key has log D = 0: scores differ by 2 |q| |k| at most."""
    if bias is not None or k.shape[1] == 0 or q.numel() == 0:
        return None
    q_most, k_most = (torch.linalg.vector_norm(x, dim=-1).flatten(1).amax(1, keepdim=True) for x in (q, k))
    return -2 * q_most * k_most - (40.0 if q.dtype == torch.float64 else 20.0)


def _weighted(
    q: Tensor, k: Tensor, v: Tensor, cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None,
    lo: Tensor | None, hi: Tensor | None, keep: Tensor | None, causal: bool, coefficients: Sequence[float], limit: float | None,
    with_total: bool,
) -> tuple[Tensor, Tensor]:
    group = q.shape[1]
    out = q.new_zeros(*q.shape[:3], v.shape[-1])
    total = q.new_zeros(*q.shape[:3], 1 if with_total else 0)
    if native.takes(q, aq, coefficients):
        native.run("weighted", q, k, v, causal, coefficients, limit, cq=cq, ck=ck, lo=lo, hi=hi, keep=keep, out=out, sums=total)
        return out, total
    call = _Call(q, k, cq, ck, aq, ak, lo, hi, None, causal, gone=_ended(q))

    def work(some: slice) -> None:
        for t in call.split(some):
            w = t.fade_(weights(t.scores(), coefficients, limit), group)
            t.add_product(out, w, t.keys(v))
            if with_total:
                kept = w.sum(-1, keepdim=True) if keep is None else torch.bmm(w, keep[t.n, t.j, None].to(w.dtype))
                if group == 1:
                    t.rows(total).add_(kept)
                else:
                    total[t.n, :, t.i] += kept.unflatten(1, (group, -1))

    call.share(v.shape[-1], work)
    return out, total


def _weighted_backward(
    grad: Tensor | None, gtotal: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
    cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None, lo: Tensor | None, hi: Tensor | None,
    keep: Tensor | None, causal: bool, coefficients: Sequence[float], limit: float | None, with_total: bool,
    out: Tensor, total: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    group = q.shape[1]
    grad = torch.zeros_like(out) if grad is None else grad.contiguous()
    gtotal = None if gtotal is None or not with_total else gtotal.contiguous()
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    dones = k.new_zeros(len(k), k.shape[1], 1) if gtotal is not None and cq is not None else None
    call = _Call(q, k, cq, ck, aq, ak, lo, hi, None, causal, gone=_ended(q))

    def work(some: slice) -> None:
        for t in call.split(some):
            g, turned = t.rows(grad), t.keys(v, turned=True)
            w, slope = weights_and_slopes(t.scores(), coefficients, limit)
            if gtotal is None:
                dw = torch.bmm(g, turned)
            else:
                dz = t.rows(gtotal)
                dw = torch.baddbmm(dz if keep is None else dz * keep[t.n, None, t.j].to(dz.dtype), g, turned)
            t.fade_(w, group)
            t.keys(dv).baddbmm_(w.mT, g)
            if dones is not None and gtotal is not None:
                dones[t.n, t.j].baddbmm_(w.mT, t.rows(gtotal))
            dx = dw.mul_(slope)
            t.scores_backward(dx if slope is w else t.fade_(dx, group), dq, dk)  # w has faded already

    if native.takes(q, aq, coefficients):
        native.run(
            "weighted_backward", q, k, v, causal, coefficients, limit, cq=cq, ck=ck, lo=lo, hi=hi, keep=keep, grad=grad, gtotal=gtotal,
            dq=dq, dk=dk, dv=dv, dones=dones,
        )
    else:
        call.share(v.shape[-1], work)
    dcq = dck = None
    if cq is not None:
        dcq, dck = (grad * out).sum((1, -1)).double(), (dv * v).sum(-1).double()
        if gtotal is not None and dones is not None:
            dcq += (gtotal * total).sum((1, -1))
            dck += dones[..., 0] if keep is None else dones[..., 0] * keep
        dck.neg_()
    daq, dak = (None, None) if aq is None else ((dq * q).sum(1).double(), (dk * k).neg_().double())
    return dq, dk, dv, dcq, dck, daq, dak


def _cap_(x: Tensor, softcap: float | None) -> Tensor:
    return x if softcap is None else x.div_(softcap).tanh_().mul_(softcap)


def _softmax(
    q: Tensor, k: Tensor, v: Tensor, cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None,
    bias: Tensor | None, lo: Tensor | None, hi: Tensor | None, keep: Tensor | None, causal: bool, softcap: float | None,
) -> tuple[Tensor, Tensor]:
    group = q.shape[1]
    out, lse = q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(*q.shape[:3], 1)
    if native.takes(q, aq, softcap=softcap):
        native.run("softmax", q, k, v, causal, cq=cq, ck=ck, lo=lo, hi=hi, keep=keep, bias=bias, out=out, sums=lse)
        return out, lse
    call = _Call(q, k, cq, ck, aq, ak, lo, hi, keep, causal, bias, _faded(q, k, bias))

    def work(some: slice) -> None:
        for t in call.tiles(some):
            x = t.shift_(_cap_(t.scores(), softcap), group)
            z = torch.logsumexp(x, -1, keepdim=True) if x.shape[-1] else x.new_full((*x.shape[:2], 1), -torch.inf)
            z = torch.where(z > -torch.inf, z, torch.zeros_like(z))
            out[t.n, :, t.i] = torch.bmm(x.sub_(z).exp_(), t.keys(v)).unflatten(1, (group, -1))
            lse[t.n, :, t.i] = z.unflatten(1, (group, -1))

    call.share(v.shape[-1], work)
    return out, lse


def _softmax_backward(
    grad: Tensor | None, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
    cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None, bias: Tensor | None,
    lo: Tensor | None, hi: Tensor | None, keep: Tensor | None, causal: bool, softcap: float | None, out: Tensor, lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    group = q.shape[1]
    grad = torch.zeros_like(out) if grad is None else grad.contiguous()
    delta = (grad * out).sum(-1, keepdim=True)
    delta = delta if dlse is None else (delta - dlse).contiguous()
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    dcq, dck = (None, None) if cq is None or ck is None else (torch.zeros_like(cq), torch.zeros_like(ck))
    dbias = None if bias is None else torch.zeros_like(bias)
    call = _Call(q, k, cq, ck, aq, ak, lo, hi, keep, causal, bias, _faded(q, k, bias))

    def work(some: slice) -> None:
        for t in call.tiles(some):
            g, x = t.rows(grad), _cap_(t.scores(), softcap)
            slope = None if softcap is None else 1 - (x / softcap).square()
            p = t.shift_(x, group).sub_(t.rows(lse)).exp_()
            t.keys(dv).baddbmm_(p.mT, g)
            dx = torch.bmm(g, t.keys(v, turned=True)).sub_(t.rows(delta)).mul_(p)
            if dcq is not None and dck is not None:
                dcq[t.n, t.i] += dx.sum(-1).unflatten(1, (group, -1)).sum(1)
                dck[t.n, t.j] -= dx.sum(1)
            if dbias is not None:
                dbias[t.n, t.j] -= dx.sum(1)
            t.scores_backward(dx if slope is None else dx.mul_(slope), dq, dk)

    if native.takes(q, aq, softcap=softcap):
        dtimes = None if cq is None and bias is None else k.new_zeros(len(k), k.shape[1], dtype=torch.float64)
        native.run(
            "softmax_backward", q, k, v, causal, cq=cq, ck=ck, lo=lo, hi=hi, keep=keep, bias=bias, grad=grad, sums=lse, gtotal=delta,
            dq=dq, dk=dk, dv=dv, dcq=dcq, dck=dtimes,
        )
        dck = None if ck is None else dtimes
        dbias = None if bias is None or dtimes is None else dtimes.to(bias.dtype, copy=True)
    else:
        call.share(v.shape[-1], work)
    daq, dak = (None, None) if aq is None else ((dq * q).sum(1).double(), (dk * k).neg_().double())
    return dq, dk, dv, dcq, dck, daq, dak, dbias


def _shapes(q: Tensor, v: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(*q.shape[:3], columns)


weighted_tiles = operator(
    "weighted_sum", _weighted, _weighted_backward, plain=weighted_dense,
    fake=lambda q, k, v, *others: _shapes(q, v, int(others[-1])),
)
softmax_tiles = operator(
    "softmax_lse", _softmax, _softmax_backward, plain=softmax_dense, fake=lambda q, k, v, *_: _shapes(q, v, 1)
)
