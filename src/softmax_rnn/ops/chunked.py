"""The chunked form of a finite kernel: linear time in T, a state of constant size (eq. 2 and sec. 3.1).

With phi(x) the symmetric powers of x in all orders n, and weights c_n (times multiplicities) on the query's side,
w(q . k) = phi(q) . W phi(k), the sequence is cut into chunks, and for each chunk:

    1  within   A  = tril(w(Q K^T)) V            the chunk's own keys, as in the parallel form
    2  read     A += phi(Q) W H                  all earlier keys, through the state
    3  write    H += phi(K)^T V                  the state moves on
    4  combine                                   several chunks at a time, so that each step is one large matrix product

The backward pass keeps nothing but q, k, v and the first state: one sweep forward makes H again and gives dQ, one sweep backward
carries dH and gives dK and dV. Features are feature-major, (features, tokens), so that they are made from contiguous slices.

Documents: the state holds the keys of the current document only. A chunk whose last token is in another document than that
of the chunk before drops the state; reads and writes are masked to the document the state is of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .kronecker import Features
from .precision import chosen_precision
from .weights import weights, weights_and_slopes

LARGEST = 2**26  # numbers in the features of one chunk
BLOCK = 2**21  # numbers of query features made at once: bounds memory, and large enough to keep the cores busy


class _Block:
    """Some consecutive chunks of all sequences, as views with sequence and chunk in one batch axis M = N * g."""

    def __init__(self, tokens: slice, chunk: int, group: int, runs: Tensor | None, previous: Tensor | None) -> None:
        self.tokens, self.chunk, self.group = tokens, chunk, group
        self.read_mask = self.write_mask = self.same = self.carry = None
        self.last = previous
        if runs is not None and previous is not None:
            r = runs[:, tokens].unflatten(1, (-1, chunk))  # (N, g, C)
            last = r[:, :, -1]
            before = torch.cat([previous[:, None], last[:, :-1]], 1)
            self.read_mask = (r == before[..., None]).flatten(
                0, 1
            )  # (M, C): who may read the state of the chunk before
            self.write_mask = (r == last[..., None]).flatten(0, 1)  # (M, C): whose keys the chunk's state keeps
            self.same = (r[..., :, None] == r[..., None, :]).flatten(0, 1)  # (M, C, C)
            self.carry = (last == before)[..., None, None]  # (N, g, 1, 1): is the old state of the same document?
            self.last = last[:, -1]

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

    def readable(self, x: Tensor) -> Tensor:
        """Rows (M, G * C, e) that may read the state, the others 0."""
        if self.read_mask is None:
            return x
        return x * self.read_mask.repeat(1, self.group)[..., None]

    def writable(self, v: Tensor) -> Tensor:
        """Values (M, C, e) that the state keeps, the others 0."""
        return v if self.write_mask is None else v * self.write_mask[..., None]

    def blank_(self, w: Tensor) -> Tensor:
        """Causal within the chunk, and within the document."""
        part = w.unflatten(1, (self.group, -1))
        part.tril_()
        if self.same is not None:
            part.mul_(self.same[:, None])
        return w

    def states(self, first: Tensor, updates: Tensor) -> tuple[Tensor, Tensor]:
        """The state before each chunk (M, rows, e), and the one after the last (N, rows, e)."""
        all_ = torch.cat([first[:, None], updates.unflatten(0, (len(first), -1))], 1)
        for c in range(1, all_.shape[1]):
            old = all_[:, c - 1]
            all_[:, c] += old if self.carry is None else old * self.carry[:, c - 1]
        return all_[:, :-1].flatten(0, 1), all_[:, -1]

    def states_backward(self, last: Tensor, reads: Tensor) -> tuple[Tensor, Tensor]:
        """From the gradients of the last state and of what each chunk read: those of the updates, and of the first state."""
        all_ = torch.cat([reads.unflatten(0, (len(last), -1)), last[:, None]], 1)
        for c in range(all_.shape[1] - 2, -1, -1):
            new = all_[:, c + 1]
            all_[:, c] += new if self.carry is None else new * self.carry[:, c]
        return all_[:, 1:].flatten(0, 1), all_[:, 0]


def _blocks(q: Tensor, rows: int, chunk: int, runs: Tensor | None) -> Iterator[_Block]:
    N, group, T, _ = q.shape
    step = max(1, BLOCK // max(1, N * group * rows * chunk)) * chunk
    last = None if runs is None else runs.new_zeros(N)
    for t in range(0, T, step):
        block = _Block(slice(t, min(T, t + step)), chunk, group, runs, last)
        last = block.last
        yield block


@torch.library.custom_op("softmax_rnn::chunked", mutates_args=())
def _chunked(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, runs: Tensor | None, coefficients: Sequence[float], chunk: int
) -> tuple[Tensor, Tensor]:
    phi = Features(coefficients, q.shape[-1], q)
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    state = state / phi.root
    for b in _blocks(q, len(phi.weight), chunk, runs):
        rows, keys, values = b.rows(q), b.keys(k), b.keys(v)
        update = torch.bmm(phi.of(keys), b.writable(values))  # 3 write
        before, state = b.states(state, update)
        read = b.readable(torch.bmm(phi.of(rows).mT, before * phi.weight))  # 2 read
        w = b.blank_(weights(torch.bmm(rows, keys.mT), coefficients))  # 1 within
        b.put_rows(out, read.baddbmm_(w, values))  # 4 combine
    return out, state * phi.root


@torch.library.custom_op("softmax_rnn::chunked_backward", mutates_args=())
def _chunked_backward(
    grad: Tensor, dstate: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Tensor, runs: Tensor | None,
    coefficients: Sequence[float], chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    phi = Features(coefficients, q.shape[-1], q)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    blocks = list(_blocks(q, len(phi.weight), chunk, runs))
    state, dstate = state / phi.root, dstate * phi.root
    for b in blocks:  # forward in time: the state again, dQ, and all that stays within a chunk
        rows, keys, values, g = b.rows(q), b.keys(k), b.keys(v), b.rows(grad)
        before, state = b.states(state, torch.bmm(phi.of(keys), b.writable(values)))
        x, powers, _ = phi.powers(rows)
        drows = phi.backward(x, powers, torch.bmm(before.mul_(phi.weight), b.readable(g).mT))
        w, slope = weights_and_slopes(torch.bmm(rows, keys.mT), coefficients)
        dx = b.blank_(torch.bmm(g, values.mT).mul_(slope))
        b.put_rows(dq, torch.baddbmm(drows, dx, keys))
        b.put_keys(dk, torch.bmm(dx.mT, rows))
        b.put_keys(dv, torch.bmm(b.blank_(w).mT, g))
    for b in reversed(blocks):  # backward in time: dH, dK and dV
        reads = torch.bmm(phi.of(b.rows(q)), b.readable(b.rows(grad))).mul_(phi.weight)
        dupdate, dstate = b.states_backward(dstate, reads)
        x, powers, features = phi.powers(b.keys(k))
        b.put_keys(dv, b.writable(torch.bmm(features.mT, dupdate)))
        b.put_keys(dk, phi.backward(x, powers, torch.bmm(dupdate, b.writable(b.keys(v)).mT)))
    return dq, dk, dv, dstate / phi.root


@_chunked.register_fake
def _(q, k, v, state, runs, coefficients, chunk):  # type: ignore[no-untyped-def]
    return q.new_empty(*q.shape[:3], v.shape[-1]), torch.empty_like(state)


@_chunked_backward.register_fake
def _(grad, dstate, q, k, v, state, runs, coefficients, chunk):  # type: ignore[no-untyped-def]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(state)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, state, runs, ctx.coefficients, ctx.chunk = inputs
    ctx.save_for_backward(q, k, v, state, runs)


def _grad(ctx: Any, grad: Tensor, dstate: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, state, runs = ctx.saved_tensors
    with chosen_precision(q):
        grads = _chunked_backward(grad.contiguous(), dstate, q, k, v, state, runs, ctx.coefficients, ctx.chunk)
    return (*grads, None, None, None)


_chunked.register_autograd(_grad, setup_context=_setup)


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    runs: Tensor | None,
    coefficients: Sequence[float],
    chunk: int | None,
) -> tuple[Tensor, Tensor]:
    """q (N, G, T, D), k (N, T, D), v (N, T, E), state (N, rows, E) -> output (N, G, T, E) and the state after.

    ``runs`` (N, T): the document of each token, ascending; those of document 0 continue the given state. T = 0 is allowed.
    """
    T = q.shape[2]
    if q.numel() == 0:
        return q.new_zeros(*q.shape[:3], v.shape[-1]) + q.sum() * 0, state
    chunk = chunk or default_chunk(state.shape[1])
    exporting = torch.compiler.is_exporting()  # then T may be any length, and no decision may depend on it
    chunk = chunk if exporting else min(chunk, T)
    pad = chunk - T % chunk if exporting else -T % chunk
    if exporting or pad:  # zero values write nothing; the padded outputs are cut off
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        runs = None if runs is None else torch.cat([runs, runs[:, -1:].expand(-1, pad)], 1)
    q, k, v, state = (x.contiguous() for x in (q, k, v, state))
    # The features of one chunk of these sequences at a time: bounds the memory of large states.
    step = max(1, LARGEST // (q.shape[1] * state.shape[1] * chunk))
    parts = [
        _chunked(
            *(x[n : n + step] for x in (q, k, v, state)),
            None if runs is None else runs[n : n + step],
            list(coefficients),
            chunk,
        )
        for n in range(0, len(q), step)
    ]
    out, state = parts[0] if len(parts) == 1 else (torch.cat(x) for x in zip(*parts, strict=True))
    out = out[:, :, :T]
    return out.contiguous() if exporting else out, state


def default_chunk(rows: int) -> int:
    """Work within a chunk grows with its length, the traffic of the state shrinks: longer chunks for larger states.

    Very large states have features that are larger still, and get short chunks again.
    """
    return 64 if rows <= 64 else 128 if rows <= 1024 else 256 if rows <= 2**16 else 64
