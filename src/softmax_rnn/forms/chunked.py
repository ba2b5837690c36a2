"""The chunked form of a finite kernel: linear time in T, a state of constant size (eq. 2 and sec. 3.1), by the primitive ``scan``.

Without an order in time (bidirectional) the moments of all keys are written once and read by every query. ``Near`` is a window of exact
attention over the newest keys, plus a scan over the keys that have left it: the query at t reads what was written up to t - window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backends import ScanCall, native, scan_sums
from ..backends.chunks import Clocks, Sequences, scan
from ..backends.powers import read, write
from ..backends.scan import default_chunk
from ..context import NEW_DOCUMENT, Context, chunk_clock
from ..errors import MechanismError
from ..problem import Problem, Setting, Sums
from ..slots.kernels import Kernel, Near
from ..state import KroneckerState, KVState, NearState, State, check_state_size, state_rows
from .parallel import attend
from .reference import Cost, Form, constant_state, moment_bytes, near_and_far, no_constant_state, relative

ALIGNED = 8  # columns


class Chunked(Form):
    """Finite kernels, in linear time."""

    name = "chunked"

    def refuses(self, s: Setting) -> str | None:
        """What has no state of constant size."""
        return no_constant_state(s) or super().refuses(s)

    def state_of(self, s: Setting) -> type[State]:
        """Moments, or a ring and moments."""
        return constant_state(s) or KVState

    def cost(self, s: Setting) -> Cost:
        """Chunks, and what goes through the state."""
        d, kernel = s.dims, s.mechanism.kernel
        far = kernel.far if isinstance(kernel, Near) else kernel
        rows = state_rows(far, kernel.width(d.key_dim))
        columns = d.value_dim + int(s.mechanism.denominator.needs_sum)
        chunk = min(default_chunk(rows), max(d.queries, 1)) if s.causal else 0
        reads, writes = d.batch * d.heads * d.queries, d.batch * d.kv_heads * d.keys
        reads += writes if s.mechanism.update == "delta" else 0  # keys read, too
        near = kernel.window if isinstance(kernel, Near) else 0
        within = 2 * reads * (chunk + near) * (kernel.width(d.key_dim) + columns)
        features, passes = (
            (0, 1) if far.orders == [1] else (rows, len(far.coefficients or ()))
        )  # order 1 has its features
        elementwise = features * (reads + writes) + reads * (chunk * passes + 3 * near)
        traffic = d.batch * d.kv_heads * rows * columns * 3 * (-(-d.keys // chunk) if chunk else 1)
        products = 2 * rows * columns * (reads + writes)
        working = 4 * rows * max(chunk, 128) * d.batch * d.heads
        in_c = far.orders == [1] and s.mechanism.update == "add" and native.why_not() is None
        rate = native.RATE if in_c else 1.0
        return Cost(self.name, products + within, elementwise + traffic, 0, moment_bytes(s), working, rate)

    def run(self, p: Problem) -> tuple[Sums, Tensor, State]:
        """Through the state."""
        if isinstance(p.mechanism.kernel, Near):
            return self._near(p, p.mechanism.kernel)
        assert p.state is None or isinstance(p.state, KroneckerState)
        count, last = _count(p, None if p.state is None else p.state.count)
        q = p.seeing(count)
        call = moments_call(p, q, p.k, p.v, p.keep, p.mechanism.kernel, p.mechanism.denominator.needs_sum, p.state)
        out, after = self._moments(p, call)
        return call.sums(out, p.q.shape[2]), count, call.state(p, p.segment, after, last)

    def _moments(self, p: Problem, call: MomentsCall) -> tuple[Tensor, Tensor]:
        """(N, G, T, E) and the moments after."""
        if p.causal and call.k.shape[1] == 0:
            nothing = call.k.sum() + call.v.sum()  # 0, in the graph: their gradients are zeros, too
            return call.read(call.moments) + nothing, call.moments + nothing
        clock = chunk_clock(p.clock, p.documents, p.k.shape[1])
        channels = None if p.channels is None else p.channels.flatten(0, 1)
        if p.causal:
            return self.sweep(
                call,
                (clock, clock) if clock is not None else None,
                (channels, channels) if channels is not None else None,
            )
        if p.backend not in ("auto", "torch"):
            raise MechanismError(
                f"backend='{p.backend}' cannot compute this (chunks with no order in time run in torch alone): use backend='auto'."
            )
        if clock is None:
            total = write(call.k, call.v, call.coefficients)
            return call.read(total), total
        return _both_ways(call, clock), call.moments

    def sweep(self, call: MomentsCall, clock: Clocks, channels: Clocks) -> tuple[Tensor, Tensor]:
        """Forward in time; under the delta rule first what is written, then the sums."""
        asked = ScanCall(
            call.q,
            call.k,
            call.v,
            call.moments,
            call.coefficients,
            call.chunk_size,
            clock,
            channels,
            call.beta,
            call.scale,
            call.dtype,
        )
        return scan_sums(asked, call.backend)

    def _near(self, p: Problem, kernel: Near) -> tuple[Sums, Tensor, State]:
        past = p.state
        assert past is None or isinstance(past, NearState)
        kv, context = p.with_past(None if past is None else past.near)
        W, T = kernel.window, p.k.shape[2]
        if (
            torch.compiler.is_exporting() and past is None
        ):  # a full ring of empty places: one leaves with every token, for any T
            kv = kv.padded(W + T)
            context = replace(context, keys=W + T, keep=kv.keep, documents=kv.documents)
        near_context = context if T == 0 else replace(context, window=W)
        count, last = _count(p, None if past is None else past.far.count)
        queries = p.seeing(count)
        near = attend(queries, kv.key, kv.value, near_context, kernel.near, p)
        # The key of t - W arrives at the step of token t: those that leave the ring, oldest first.
        leaving = max(0, kv.key.shape[2] - W)
        keep = None if kv.keep is None else kv.keep[:, :leaving]
        q = queries if T == 0 or not leaving else queries[:, :, max(0, queries.shape[2] - leaving) :]
        k, v = kv.key[:, :, :leaving], kv.value[:, :, :leaving]
        if torch.compiler.is_exporting():  # whether a slice is contiguous would depend on T
            first = torch.arange(leaving, device=k.device)
            k, v = kv.key.index_select(2, first), kv.value.index_select(2, first)
        call = moments_call(p, q, k, v, keep, kernel.far, True, None if past is None else past.far)
        documents, reference = _far_documents(kv, past, leaving)
        if leaving:
            now = None if kv.documents is None or reference is None else kv.documents[:, kv.key.shape[2] - leaving :]
            clock = (
                None if now is None else (_document_clock(now, reference, p), _document_clock(documents, reference, p))
            )
            out, after = self.sweep(call, clock, None)
            far = call.sums(out, q.shape[2])
        else:
            after = call.moments
            own = None if kv.documents is None else kv.documents[:, -q.shape[2] :] if T else kv.documents[:, -1:]
            far = call.sums(call.read(call.moments), q.shape[2])
            if past is None or T:  # nothing has left the ring yet
                far = Sums(far.numerator * 0, None if far.total is None else far.total * 0, None)
            elif own is not None and reference is not None:
                same = (own == reference[:, None])[:, None, :, None]
                far = Sums(far.numerator * same, None if far.total is None else far.total * same, None)
        missing = p.q.shape[2] - far.numerator.shape[2]
        assert far.total is not None
        far = Sums(F.pad(far.numerator, (0, 0, missing, 0)), F.pad(far.total, (0, 0, missing, 0)), None)
        state = NearState(
            p.mechanism,
            p.center,
            p.segment,
            p.tokens,
            kv.newest(W),
            call.state(p, _last(documents, reference), after, last),
        )
        some = near_context.count() > 0 if p.may_be_empty else None
        return near_and_far(near, far, some), count, state


@dataclass(frozen=True)
class MomentsCall:
    """Inputs of ``scan``: sequences times kv heads in front, values with a column of ones where the sum of weights is needed."""

    q: Tensor  # (N, G, T, D), scaled
    k: Tensor  # (N, T, D)
    v: Tensor  # (N, T, E), or with a column of ones and some of zeros
    moments: Tensor  # (N, rows, as v)
    coefficients: tuple[float, ...]
    shape: tuple[int, int]  # batch, kv heads
    with_sum: bool
    columns: int  # of v that count
    chunk_size: int | None
    scale: float
    beta: Tensor | None  # (N, T), relative to the weight of a key with itself
    dtype: torch.dtype  # that the problem was given in
    backend: str

    def read(self, moments: Tensor) -> Tensor:
        """Every query reads the same moments: (N, G, T, E)."""
        return read(self.q.flatten(1, 2), moments, self.coefficients).unflatten(1, self.q.shape[1:3])

    def sums(self, out: Tensor, queries: int) -> Sums:
        """The output for the last queries, with the sum of weights split off."""
        out = out.reshape(self.shape[0], self.shape[1] * out.shape[1], *out.shape[2:])[:, :, out.shape[2] - queries :]
        if not self.with_sum:
            return Sums(out, None, None)
        numerator, total, _ = out.split([self.columns - 1, 1, out.shape[-1] - self.columns], -1)
        return Sums(numerator, total, None)

    def state(self, p: Problem, segment: Tensor | None, moments: Tensor, count: Tensor) -> KroneckerState:
        """The state after these tokens."""
        moments = moments.reshape(*self.shape, *moments.shape[1:])[..., : self.columns]
        return KroneckerState(p.mechanism, p.center, segment, p.tokens, moments, count, self.q.shape[-1])


def moments_call(
    p: Problem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    kernel: Kernel,
    with_sum: bool,
    state: KroneckerState | None,
) -> MomentsCall:
    """Make a problem's tensors ready for ``scan``: in float32 at least, with the state they go on from."""
    B, Hkv, T, _ = v.shape
    H, queries, D = q.shape[1:]
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, v = (x.to(wide) for x in (q if p.scale == 1 else q * p.scale, k, v))
    columns, room = v.shape[-1] + int(with_sum), 0
    check_state_size(kernel, D, columns, B * Hkv, itemsize=wide.itemsize)
    if with_sum:  # the weighted sum of ones is the sum of weights; products of 65 columns are slower than of 72
        room = -columns % ALIGNED if torch.compiler.is_exporting() or (T > 1 and v.device.type == "cpu") else 0
        ones = torch.ones_like(v[..., :1]) if keep is None else torch.ones_like(v[..., :1]) * keep[:, None, :, None]
        v = torch.cat([v, F.pad(ones, (0, room))], -1)
    beta = None if p.beta is None else relative(p.beta, k, kernel, p.scale).flatten(0, 1)
    rows = state_rows(kernel, D)
    moments = (
        v.new_zeros(B, Hkv, rows, v.shape[-1])
        if state is None
        else F.pad(state.moments, (0, room))
        if room
        else state.moments
    )
    if p.causal and queries < T:  # the queries are the last of the tokens
        q = F.pad(q, (0, 0, T - queries, 0))
    q = q.reshape(B * Hkv, H // Hkv, q.shape[2], D)
    k, v, moments = (x.flatten(0, 1) for x in (k, v, moments))
    return MomentsCall(
        q,
        k,
        v,
        moments,
        kernel.coefficients or (),
        (B, Hkv),
        with_sum,
        columns,
        p.chunk_size,
        p.scale,
        beta,
        p.q.dtype,
        p.backend,
    )


def _count(p: Problem, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """How many keys each query saw, (B, 1 or H, Tq, 1), and the number after the last token, to go on from."""
    B, _, T, _ = p.k.shape
    queries = p.q.shape[2]
    if p.clock is not None and p.mechanism.denominator.needs_count:
        return _decayed_count(p, before)
    old = torch.zeros(B, dtype=torch.long, device=p.k.device) if before is None else before
    if p.causal and T == 0:
        return old[:, None, None, None].expand(B, 1, queries, 1), old
    rows = T if p.causal else queries
    count = Context(rows, T, p.causal, p.k.device, p.keep, p.documents).count().expand(B, 1, rows, 1)
    if before is not None:
        first = 1 if p.documents is None else (p.documents == 0)[:, None, :, None]
        count = count + old[:, None, None, None] * first
    last = count[:, 0, -1, 0].clone() if p.causal and T else old
    return count[:, :, count.shape[2] - queries :], last


def _decayed_count(p: Problem, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sum of D is a scan of order 0 over ones."""
    B, Hkv, T, _ = p.k.shape
    group, queries = p.q.shape[1] // Hkv, p.q.shape[2]
    assert p.clock is not None
    old = p.clock.new_zeros(B, Hkv) if before is None else before
    if T == 0:
        return old.repeat_interleave(group, 1)[:, :, None, None].expand(-1, -1, queries, 1), old
    ones = p.clock.new_ones(B, T) if p.keep is None else p.keep.to(p.clock.dtype)
    ones = ones[:, None].expand(B, Hkv, T).reshape(B * Hkv, T, 1)
    clock = chunk_clock(p.clock, p.documents, Hkv)
    assert clock is not None
    zero = torch.zeros_like(ones)
    x = Sequences(zero[:, None], zero, ones, old.reshape(B * Hkv, 1, 1), (clock, clock))
    out, after = scan(x, (1.0,))
    count = out.reshape(B, Hkv, T, 1)[:, :, T - queries :].repeat_interleave(group, 1)
    return count, after.reshape(B, Hkv)


def _both_ways(call: MomentsCall, clock: Tensor) -> Tensor:
    """Bidirectional with documents: the keys up to a query in its document, and those after it, one step late in the other direction."""
    q, k, v, c = call.q, call.k, call.v, call.coefficients
    ahead, _ = scan(Sequences(q, k, v, call.moments, (clock, clock)), c, call.chunk_size)
    back = clock[:, -1:] - clock.flip(1)
    late_k, late_v = (F.pad(x.flip(1)[:, :-1], (0, 0, 1, 0)) for x in (k, v))
    late = F.pad(back[:, :-1], (1, 0))
    behind, _ = scan(Sequences(q.flip(2), late_k, late_v, call.moments, (back, late)), c, call.chunk_size)
    return ahead + behind.flip(2)


def _far_documents(kv: KVState, past: NearState | None, leaving: int) -> tuple[Tensor | None, Tensor | None]:
    """The documents of the keys that leave the ring, and the one that the moments are of."""
    if kv.documents is None:
        return None, None
    reference = kv.documents[:, 0] if past is None or past.far.segment is None else past.far.segment
    return kv.documents[:, :leaving], reference


def _document_clock(documents: Tensor | None, reference: Tensor | None, p: Problem) -> Tensor:
    assert documents is not None
    assert reference is not None
    steps = (documents - reference[:, None]).to(torch.float64) * -NEW_DOCUMENT
    return steps.repeat_interleave(p.k.shape[1], 0)


def _last(documents: Tensor | None, reference: Tensor | None) -> Tensor | None:
    return reference if documents is None or documents.shape[1] == 0 else documents[:, -1]
