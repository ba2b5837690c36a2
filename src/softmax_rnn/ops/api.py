"""``attention``: the one entry. It checks, prepares, picks a form, and finishes; the forms do the sums.

q, k, v -> centre, mask, input gate, feature map -> a form: numerator and denominator -> gates and norm
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from .._shapes import Bool, Float, Int, checked
from ..algebra import Mechanism
from ..errors import MechanismError
from ..presets import mechanism as resolve
from . import chunked, inputs, parallel, recurrent, reference
from .cost import cheapest
from .kronecker import read, write
from .precision import autocast, chosen_precision
from .state import KroneckerState, KVState, State, check_state_size, state_rows
from .sums import Sums, finish, needs_lse, with_ones
from .visibility import Visibility


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: str | Mechanism = "softmax",
    *,
    return_state: Literal[False] = False,
    **options: Any,
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: str | Mechanism = "softmax",
    *,
    return_state: Literal[True],
    **options: Any,
) -> tuple[Tensor, State]: ...
@checked  # type: ignore[misc]  # the options are the keywords of this signature
def attention(
    q: Float[Tensor, "b h tq d"],
    k: Float[Tensor, "b hkv tk d"],
    v: Float[Tensor, "b hkv tk e"],
    mechanism: str | Mechanism = "softmax",
    *,
    causal: bool = True,
    scale: float | int | None = None,
    form: str = "auto",
    input_gate: Float[Tensor, "b hkv tk"] | None = None,
    output_gate: Float[Tensor, "b h tq"] | None = None,
    norm_weight: Float[Tensor, " e"] | None = None,
    norm_bias: Float[Tensor, " e"] | None = None,
    length_exponent: Float[Tensor, " h"] | None = None,
    key_padding_mask: Bool[Tensor, "b tk"] | None = None,
    segment_ids: Int[Tensor, "b tk"] | None = None,
    center: Float[Tensor, "hkv d"] | None = None,
    state: State | None = None,
    return_state: bool = False,
    chunk_size: int | None = None,
) -> Float[Tensor, "b h tq e"] | tuple[Float[Tensor, "b h tq e"], State]:
    """Attention by any mechanism, in any of its forms; all forms give the same numbers.

    Args:
        q, k, v: as in torch's SDPA; k and v may have fewer heads (GQA), v another width.
        mechanism: a name (``softmax_rnn.mechanisms()``) or a ``Mechanism``.
        causal: query t sees keys up to t. False: all keys (bidirectional or cross-attention).
        scale: on the score; None: 1/sqrt(d) for exp, Taylor and Power, 1 for linear feature maps.
        form: "parallel" (O(T) memory), "chunked" (linear time, finite kernels), "recurrent" (token by token), "reference" (dense),
            or "auto", the cheapest (see ``explain``).
        input_gate, output_gate: per head and token, in [0, 1], where the mechanism has them (the input gate per kv head).
        norm_weight, norm_bias: for rms and layer norms.
        length_exponent: c in t ** sigmoid(c), for ``Length(learned=True)``.
        key_padding_mask: True = keep. A query that sees no key gives 0.
        segment_ids: packed documents; a new document starts wherever the number changes.
        center: a vector per kv head that is subtracted from the keys.
        state, return_state: streaming; any way to cut a sequence gives the same as the whole.
        chunk_size: of the chunked form.

    >>> import torch, softmax_rnn as sr
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    >>> sr.attention(q, k, v, "norm").shape
    torch.Size([1, 2, 5, 4])
    """
    m = resolve(mechanism)
    q, k, v = autocast(q, k, v)
    dims = inputs.check_qkv(q, k, v)
    extras = {
        "output_gate": output_gate,
        "norm_weight": norm_weight,
        "norm_bias": norm_bias,
        "length_exponent": length_exponent,
    }
    inputs.check_mechanism_arguments(m, dims, {"input_gate": input_gate, **extras})
    inputs.check_devices(
        q,
        {
            **extras,
            "input_gate": input_gate,
            "key_padding_mask": key_padding_mask,
            "segment_ids": segment_ids,
            "center": center,
        },
    )
    inputs.check_masks(dims, key_padding_mask, segment_ids)
    inputs.check_center(m, dims, center)
    inputs.check_scale(scale)
    inputs.check_state(m, dims, causal, state, return_state, center is not None)
    inputs.check_form(m, form, causal, state, chunk_size)
    if form == "auto":
        form = _choose(m, dims, causal, state, return_state)

    dtype, queries = q.dtype, dims.queries
    if causal and 0 < queries < dims.keys:  # with a state: the queries are the last of the tokens
        q = F.pad(q, (0, 0, dims.keys - queries, 0))
        if output_gate is not None:
            extras["output_gate"] = F.pad(output_gate, (dims.keys - queries, 0))
    with chosen_precision(q):
        job = _prepare(m, q, k, v, causal, scale, form, input_gate, key_padding_mask, segment_ids, center, state)
        sums, new_state, count = job.run(state, return_state, chunk_size)
        out = finish(m, sums, count, dtype, may_be_empty=job.keep is not None or job.keys == 0, **extras)
    out = out[:, :, out.shape[2] - queries :]
    return (out, new_state) if return_state else out  # type: ignore[return-value]


def _choose(m: Mechanism, dims: inputs.Dims, causal: bool, state: State | None, return_state: bool) -> str:
    """The form that ``auto`` stands for."""
    if not m.kernel.finite or isinstance(state, KVState):
        return "parallel"
    if state is not None or return_state:
        return "recurrent" if dims.queries <= 1 else "chunked"
    return cheapest(
        m, dims.batch, dims.heads, dims.queries, dims.key_dim, dims.value_dim, dims.kv_heads, dims.keys, causal
    )


@dataclass(frozen=True)
class _Job:
    """Inputs ready for a form: keys centred, masked and mapped, values gated and zero where padded."""

    mechanism: Mechanism
    form: str
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    causal: bool
    keep: Tensor | None
    runs: Tensor | None  # of the new tokens; 0 continues the document of the state
    segment: Tensor | None
    centered: bool

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    def run(self, state: State | None, return_state: bool, chunk_size: int | None) -> tuple[Sums, State | None, Tensor]:
        finite = self.form == "chunked" or (self.form == "recurrent" and self.mechanism.kernel.finite)
        if not finite:
            assert state is None or isinstance(state, KVState)
            return self._with_keys(state, return_state)
        assert state is None or isinstance(state, KroneckerState)
        return self._with_moments(state, chunk_size)

    def _with_keys(self, state: KVState | None, return_state: bool) -> tuple[Sums, State | None, Tensor]:
        """Parallel and reference forms, and exp step by step: over all keys so far."""
        k, v, keep, runs = self.k, self.v, self.keep, self.runs
        if state is not None:
            if state.keep is not None or keep is not None:
                keep = torch.cat([_full(state.keep, state.key, True), _full(keep, k, True)], 1)
            if runs is not None:
                old = _full(state.runs, state.key, 0)
                base = old[:, -1:] if old.shape[1] else 0
                runs = torch.cat([old, runs + base], 1)
            k, v = torch.cat([state.key, k], 2), torch.cat([state.value, v], 2)
        see = Visibility(self.q.shape[2], k.shape[2], self.causal, k.device, keep, runs)
        sums = self._exp_steps(k, v, see) if self.form == "recurrent" else self._attend(self.q, k, v, see)
        new = KVState(self.mechanism, self.centered, self.segment, k, v, keep, runs) if return_state else None
        return sums, new, see.count()

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

        if see.queries == 0:
            return self._attend(self.q, k, v, see)
        return recurrent.step_by_step(one, see.queries)

    def _with_moments(self, state: KroneckerState | None, chunk_size: int | None) -> tuple[Sums, State | None, Tensor]:
        """Chunked and recurrent forms of a finite kernel: through the Kronecker state."""
        kernel, with_sum = self.mechanism.kernel, self.mechanism.denominator.needs_sum
        coefficients = kernel.coefficients or ()
        B, Hkv, T, E = self.v.shape
        D, H = self.q.shape[-1], self.q.shape[1]
        wide = torch.promote_types(self.q.dtype, torch.float32)
        q, k, v = (x.to(wide) for x in (self.q * self.scale, self.k, self.v))
        v = with_ones(v, self.keep) if with_sum else v
        check_state_size(kernel, D, v.shape[-1], B * Hkv)
        moments = v.new_zeros(B, Hkv, state_rows(kernel, D), v.shape[-1]) if state is None else state.moments.to(wide)
        q, k, v, flat = q.reshape(B * Hkv, H // Hkv, -1, D), k.flatten(0, 1), v.flatten(0, 1), moments.flatten(0, 1)
        runs = None if self.runs is None else self.runs.repeat_interleave(Hkv, 0)
        if not self.causal:
            out, flat = _both_ways(q, k, v, flat, runs, coefficients, chunk_size), flat
        elif T == 0:
            out = read(q.flatten(1, 2), flat, coefficients)
        elif self.form == "recurrent":
            out, flat = recurrent.steps(q, k, v, flat, runs, coefficients)
        else:
            out, flat = chunked.chunked(q, k, v, flat, runs, coefficients, chunk_size)
        out = out.reshape(B, H, -1, v.shape[-1])
        new, count = self._advance(state, flat.unflatten(0, (B, Hkv)))
        return Sums(out[..., :E], out[..., E:] if with_sum else None, None), new, count

    def _advance(self, state: KroneckerState | None, moments: Tensor) -> tuple[KroneckerState, Tensor]:
        """The state after these tokens, and how many keys each query saw."""
        B, _, T, _ = self.k.shape
        see = Visibility(self.q.shape[2], T, self.causal, self.k.device, self.keep, self.runs)
        count = see.count()
        if state is not None:
            old = state.count[:, None, None, None]
            first = None if self.runs is None else (self.runs == 0)[:, None, :, None]
            count = count + (old if first is None or T == 0 else old * first)
        last = count[:, 0, -1, 0].expand(B) if T and count.shape[2] else (state.count if state else count.new_zeros(B))
        tokens = T + (state.tokens if state else 0)
        new = KroneckerState(
            self.mechanism, self.centered, self.segment, moments, last.clone(), self.q.shape[-1], tokens
        )  # fmt: skip
        return new, count


def _full(x: Tensor | None, like: Tensor, value: int | bool) -> Tensor:
    """x, or (B, T) of one value for keys like (B, H, T, D)."""
    shape = (like.shape[0], like.shape[2])
    kind = torch.bool if isinstance(value, bool) else torch.long
    return torch.full(shape, value, dtype=kind, device=like.device) if x is None else x


def _both_ways(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    runs: Tensor | None,
    coefficients: tuple[float, ...],
    chunk: int | None,
) -> Tensor:
    """Bidirectional (App. C): every query reads the state of all keys; with documents, what came before plus what comes after."""
    if runs is None:
        return read(q.flatten(1, 2), write(k, v, coefficients), coefficients)
    ahead, _ = chunked.chunked(q, k, v, state, runs, coefficients, chunk)
    q_, k_, v_, r_ = q.flip(2), k.flip(1), v.flip(1), runs[:, -1:] - runs.flip(1)
    behind, _ = chunked.chunked(q_, k_, v_, state, r_, coefficients, chunk)
    own = (q * k[:, None]).sum(-1, keepdim=True)
    weight = sum(c * own**n for n, c in enumerate(coefficients))
    return ahead + behind.flip(2) - weight * v[:, None]


def _prepare(
    m: Mechanism, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, form: str, input_gate: Tensor | None,
    keep: Tensor | None, segments: Tensor | None, center: Tensor | None, state: State | None,
) -> _Job:  # fmt: skip
    scale = m.kernel.scale(q.shape[-1]) if scale is None else float(scale)
    if center is not None:
        k = k - center.to(k.dtype)[:, None]
    if input_gate is not None:
        v = v * input_gate.to(v.dtype)[..., None]
    if not m.kernel.exponential and form != "reference":  # feature maps and polynomials in full precision
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide), k.to(wide)
    q, k = m.kernel.map_vectors(q), m.kernel.map_vectors(k)
    if keep is not None:  # after the map: elu(0) + 1 is not 0; and so that garbage under the mask cannot spread
        k, v = (x.masked_fill(~keep[:, None, :, None], 0.0) for x in (k, v))
    runs, segment = _runs(segments, state, q.shape[0])
    if runs is None and state is not None and state.segment is not None:
        runs = torch.zeros(k.shape[0], k.shape[2], dtype=torch.long, device=k.device)
        segment = state.segment
    return _Job(m, form, q, k, v, scale, causal, keep, runs, segment, center is not None)


def _runs(segments: Tensor | None, state: State | None, batch: int) -> tuple[Tensor | None, Tensor | None]:
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
