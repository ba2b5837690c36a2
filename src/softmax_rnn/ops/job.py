"""One call of ``attention`` on its way: inputs made ready, handed to a form, and the state moved on.

prepare   centre, mask, input gate, feature map; documents numbered
run       over all keys so far (parallel, reference, exp step by step), or through Kronecker moments (chunked, recurrent)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..algebra import Mechanism
from ..errors import MechanismError
from . import chunked, parallel, recurrent, reference
from .kronecker import read, write
from .state import KroneckerState, KVState, State, check_state_size, state_rows
from .sums import Sums, needs_lse, with_ones
from .visibility import Visibility


@dataclass(frozen=True)
class Job:
    """Inputs ready for a form: keys centred and mapped, values gated; both 0 where padded."""

    mechanism: Mechanism
    form: str
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    causal: bool
    keep: Tensor | None
    runs: Tensor | None  # documents of the new tokens; 0 is the one that the state is in the middle of
    segment: Tensor | None
    center: Tensor | None

    def may_be_empty(self, state: State | None) -> bool:
        """Can there be a query that sees no key?"""
        return self.keep is not None or self.k.shape[2] == 0 or (isinstance(state, KVState) and state.keep is not None)

    def run(self, state: State | None, chunk_size: int | None) -> tuple[Sums, Tensor, State]:
        """The sums, how many keys each query saw, and the state after."""
        if self.form in ("parallel", "reference") or not self.mechanism.kernel.finite:
            assert state is None or isinstance(state, KVState)
            return self._with_keys(state)
        assert state is None or isinstance(state, KroneckerState)
        return self._with_moments(state, chunk_size)

    def _with_keys(self, state: KVState | None) -> tuple[Sums, Tensor, State]:
        """Over all keys so far."""
        k, v, keep, runs = self.k, self.v, self.keep, self.runs
        if state is not None:
            if state.keep is not None or keep is not None:
                keep = torch.cat([_full(state.keep, state.key, True), _full(keep, k, True)], 1)
            if runs is not None:
                old = _full(state.runs, state.key, 0)
                base = old[:, -1:] if old.shape[1] else 0
                runs = torch.cat([old, runs + base], 1)
            k, v = torch.cat([state.key, k], 2), torch.cat([state.value, v], 2)
        queries, causal = self.q.shape[2], self.causal and self.k.shape[2] > 0
        see = Visibility(queries, k.shape[2], causal, k.device, keep, runs, reads_last=self.causal and not causal)
        sums = self._exp_steps(k, v, see) if self.form == "recurrent" else self._attend(self.q, k, v, see)
        return sums, see.count(), KVState(self.mechanism, self.center, self.segment, k, v, keep, runs)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, see: Visibility) -> Sums:
        kernel = self.mechanism.kernel
        if self.form == "reference":
            return reference.sums(q * self.scale, k, v, kernel, see)
        with_sum = self.mechanism.denominator.needs_sum
        return parallel.sums(q, k, v, kernel, see, self.scale, with_sum, needs_lse(self.mechanism))

    def _exp_steps(self, k: Tensor, v: Tensor, see: Visibility) -> Sums:
        def one(t: int) -> Sums:
            end = see.offset + t + 1
            keep, runs = (None if x is None else x[:, :end] for x in (see.keep, see.runs))
            part = replace(see, queries=1, keys=end, keep=keep, runs=runs)
            return self._attend(self.q[:, :, t : t + 1], k[:, :, :end], v[:, :, :end], part)

        if see.queries == 0 or not see.causal:
            return self._attend(self.q, k, v, see)
        return recurrent.step_by_step(one, see.queries)

    def _with_moments(self, state: KroneckerState | None, chunk_size: int | None) -> tuple[Sums, Tensor, State]:
        """Through the Kronecker state of a finite kernel."""
        kernel, with_sum = self.mechanism.kernel, self.mechanism.denominator.needs_sum
        B, Hkv, T, E = self.v.shape
        H, queries, D = self.q.shape[1:]
        wide = torch.promote_types(self.q.dtype, torch.float32)
        q, k, v = (x.to(wide) for x in (self.q * self.scale, self.k, self.v))
        v = with_ones(v, self.keep) if with_sum else v
        columns = v.shape[-1]
        check_state_size(kernel, D, columns, B * Hkv, itemsize=wide.itemsize)
        moments = v.new_zeros(B, Hkv, state_rows(kernel, D), columns) if state is None else state.moments.to(wide)
        if self.causal and queries < T:  # the queries are the last of the tokens
            q = F.pad(q, (0, 0, T - queries, 0))
        q, k, v = q.reshape(B * Hkv, H // Hkv, q.shape[2], D), k.flatten(0, 1), v.flatten(0, 1)
        out, after = self._moments_form(q, k, v, moments.flatten(0, 1), chunk_size)
        out = out.reshape(B, H, out.shape[-2], columns)[:, :, out.shape[-2] - queries :]
        new, count = self._advance(state, after.reshape(moments.shape))
        return Sums(out[..., :E], out[..., E:] if with_sum else None, None), count, new

    def _moments_form(
        self, q: Tensor, k: Tensor, v: Tensor, moments: Tensor, chunk: int | None
    ) -> tuple[Tensor, Tensor]:
        """q (N, G, T, D), k (N, T, D), v (N, T, E), moments (N, rows, E) -> (N, G, T, E) and the moments after."""
        coefficients = self.mechanism.kernel.coefficients or ()
        runs = None if self.runs is None else self.runs.repeat_interleave(self.k.shape[1], 0)
        if self.causal and k.shape[1] == 0:
            return read(q.flatten(1, 2), moments, coefficients).unflatten(1, q.shape[1:3]), moments
        if self.causal and self.form == "recurrent":
            return recurrent.steps(q, k, v, moments, runs, coefficients)
        if self.causal:
            return chunked.chunked(q, k, v, moments, runs, coefficients, chunk)
        if runs is None:
            total = write(k, v, coefficients)
            return read(q.flatten(1, 2), total, coefficients).unflatten(1, q.shape[1:3]), total
        return _both_ways(q, k, v, moments, runs, coefficients, chunk), moments

    def _advance(self, state: KroneckerState | None, moments: Tensor) -> tuple[KroneckerState, Tensor]:
        """The state after these tokens, and how many keys each query saw."""
        B, _, T, _ = self.k.shape
        queries = self.q.shape[2]
        before = torch.zeros(B, dtype=torch.long, device=moments.device) if state is None else state.count
        if self.causal and T == 0:
            count = before[:, None, None, None].expand(B, 1, queries, 1)
        else:
            rows = T if self.causal else queries
            count = Visibility(rows, T, self.causal, self.k.device, self.keep, self.runs).count().expand(B, 1, rows, 1)
            first = 1 if self.runs is None else (self.runs == 0)[:, None, :, None]
            count = count + before[:, None, None, None] * first if state is not None else count
        last = count[:, 0, -1, 0].clone() if self.causal and T else before
        count = count[:, :, count.shape[2] - queries :]
        tokens = T + (0 if state is None else state.tokens)
        new = KroneckerState(self.mechanism, self.center, self.segment, moments, last, self.q.shape[-1], tokens)
        return new, count


def _full(x: Tensor | None, like: Tensor, value: int | bool) -> Tensor:
    """x, or (B, T) of one value for keys like (B, H, T, D)."""
    shape = (like.shape[0], like.shape[2])
    kind = torch.bool if isinstance(value, bool) else torch.long
    return torch.full(shape, value, dtype=kind, device=like.device) if x is None else x


def _both_ways(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, runs: Tensor, coefficients: tuple[float, ...], chunk: int | None
) -> Tensor:
    """Bidirectional with documents: what came before in the document, plus what comes after, less what was counted twice."""
    ahead, _ = chunked.chunked(q, k, v, state, runs, coefficients, chunk)
    q_, k_, v_, r_ = q.flip(2), k.flip(1), v.flip(1), runs[:, -1:] - runs.flip(1)
    behind, _ = chunked.chunked(q_, k_, v_, state, r_, coefficients, chunk)
    own = (q * k[:, None]).sum(-1, keepdim=True)
    weight = sum(c * own**n for n, c in enumerate(coefficients))
    return ahead + behind.flip(2) - weight * v[:, None]


def prepare(
    m: Mechanism,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float | None,
    form: str,
    input_gate: Tensor | None,
    keep: Tensor | None,
    segments: Tensor | None,
    center: Tensor | None,
    state: State | None,
) -> Job:
    """Everything that comes before the sums."""
    scale = m.kernel.scale(q.shape[-1]) if scale is None else float(scale)
    # First of all, so that nothing under the mask can spread; its values stay 0, whatever the map makes of the keys.
    if keep is not None:
        k, v = (x.masked_fill(~keep[:, None, :, None], 0.0) for x in (k, v))
    center = state.center if center is None and state is not None else center
    if center is not None:
        k = k - center.to(k.dtype)[:, None]
    if input_gate is not None:
        v = v * input_gate.to(v.dtype)[..., None]
    if not m.kernel.exponential and form != "reference":  # feature maps and polynomials in full precision
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide), k.to(wide)
    q, k = m.kernel.map_vectors(q), m.kernel.map_vectors(k)
    runs, segment = _runs(segments, state)
    if runs is None and state is not None and state.segment is not None:
        runs = torch.zeros(k.shape[0], k.shape[2], dtype=torch.long, device=k.device)
    return Job(m, form, q, k, v, scale, causal, keep, runs, segment, center)


def _runs(segments: Tensor | None, state: State | None) -> tuple[Tensor | None, Tensor | None]:
    """Documents as ascending numbers, 0 for the one that the state is in the middle of; and the id of the last."""
    if segments is None or segments.shape[1] == 0:
        return None, None if state is None else state.segment
    segments = segments.long()
    if state is None or state.tokens == 0:
        first = segments[:, :1]
    elif state.segment is None:
        raise MechanismError("The state was built without segment_ids; go on without them, or begin with them.")
    else:
        first = state.segment[:, None]
    change = segments != torch.cat([first, segments[:, :-1]], 1)
    return change.long().cumsum(1), segments[:, -1]
