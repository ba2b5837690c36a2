"""One call of ``attention``: everything a user can get wrong is checked here, and its inputs are made ready for the forms.

check     each wrong thing is one sentence, before anything is computed
prepare   mask, centre, gate, feature map, documents, clock of the decay
sums      what a form gives back: numerator and denominator
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .backends import BACKENDS
from .backends.operators import tracing
from .context import Context, number_documents
from .errors import MechanismError, is_number
from .slots.base import Input
from .slots.kernels import Near
from .slots.mechanism import Mechanism
from .state import KroneckerState, KVState, NearState, State

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Dims(NamedTuple):
    """Sizes by name."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    key_dim: int
    value_dim: int

    def size(self, symbol: str) -> int:
        """The size that a slot's declaration calls B, H, Hkv, Tq, Tk, D or E."""
        return self[("B", "H", "Hkv", "Tq", "Tk", "D", "E").index(symbol)]

    def shape(self, declared: Input) -> tuple[int, ...]:
        """The shape of a declared tensor."""
        return tuple(self.size(s) for s in declared.sizes)


@dataclass(frozen=True)
class Setting:
    """What decides which forms can compute a call and what they cost."""

    mechanism: Mechanism
    dims: Dims
    causal: bool = True
    window: int | None = None
    state: type[State] | None = None  # the kind of state that is continued


class Sums(NamedTuple):
    """Numerator (B, H, T, E) and sum of weights (B, H, T, 1), or softmax output and its log-sum-exp (B, H, T, 1)."""

    numerator: Tensor
    total: Tensor | None
    lse: Tensor | None


@dataclass(frozen=True)
class Problem:
    """Inputs ready for a form: keys centred and mapped, values gated; both 0 where padded, where nothing decays either."""

    setting: Setting
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    keep: Tensor | None
    documents: Tensor | None  # of the new tokens; 0 is the one that the state is in the middle of
    clock: Tensor | None  # (B, Hkv, T) float64: running sums of log_decay over the new tokens
    channels: Tensor | None  # (B, Hkv, T, D)
    beta: Tensor | None
    segment: Tensor | None
    center: Tensor | None
    state: State | None
    tensors: Mapping[str, Tensor]  # what the slots declared
    backend: str
    chunk_size: int | None

    @property
    def mechanism(self) -> Mechanism:
        """Short for the setting's."""
        return self.setting.mechanism

    @property
    def causal(self) -> bool:
        """Short for the setting's."""
        return self.setting.causal

    @property
    def tokens(self) -> int:
        """How many tokens there are with these."""
        return self.k.shape[2] + (0 if self.state is None else self.state.tokens)

    @property
    def may_be_empty(self) -> bool:
        """Can there be a query that sees no key?"""
        past = self.state.near if isinstance(self.state, NearState) else self.state
        padded = isinstance(past, KVState) and past.keep is not None
        return self.keep is not None or self.k.shape[2] == 0 or padded

    def seeing(self, count: Tensor) -> Tensor:
        """The queries, 0 where they see no key: whatever stands there must not spread, not even into gradients."""
        return self.q.masked_fill(count == 0, 0.0) if self.may_be_empty else self.q

    def with_past(self, past: KVState | None) -> tuple[KVState, Context]:
        """All keys and values so far, and who sees them."""
        now = KVState(
            self.mechanism, self.center, self.segment, self.tokens, self.k, self.v, self.keep, self.documents,
            self.clock, self.channels,
        )  # fmt: skip
        kv = now if past is None else _joined(past, now)
        queries, causal = self.q.shape[2], self.causal and self.k.shape[2] > 0
        context = Context(
            queries, kv.key.shape[2], causal, self.k.device, kv.keep, kv.documents, self.setting.window, 0,
            kv.clock, kv.channels, reads_last=self.causal and not causal,
        )  # fmt: skip
        return kv, context


def _joined(old: KVState, new: KVState) -> KVState:
    """One after the other; documents and clocks go on where the old ones ended."""

    def full(x: Tensor | None, state: KVState, value: bool | int) -> Tensor:
        kind = torch.bool if isinstance(value, bool) else torch.long
        shape = (state.key.shape[0], state.key.shape[2])
        return torch.full(shape, value, dtype=kind, device=state.key.device) if x is None else x

    def running(a: Tensor | None, b: Tensor | None, axis: int) -> Tensor | None:
        if a is None or b is None:
            return b
        return torch.cat([a, b + a.narrow(axis, a.shape[axis] - 1, 1)], axis) if a.shape[axis] else b

    keep = documents = None
    if old.keep is not None or new.keep is not None:
        keep = torch.cat([full(old.keep, old, True), full(new.keep, new, True)], 1)
    if new.documents is not None:
        documents = running(full(old.documents, old, 0), new.documents, 1)
    return replace(
        new, key=torch.cat([old.key, new.key], 2), value=torch.cat([old.value, new.value], 2), keep=keep, documents=documents,
        clock=running(old.clock, new.clock, 2), channels=running(old.channels, new.channels, 2),
    )  # fmt: skip


def prepare(
    setting: Setting,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: dict[str, Tensor],
    *,
    scale: float | None,
    reference: bool,
    keep: Tensor | None,
    segments: Tensor | None,
    center: Tensor | None,
    state: State | None,
    backend: str,
    chunk_size: int | None,
) -> Problem:
    """Everything that comes before the sums."""
    m = setting.mechanism
    scale = m.kernel.scale(q.shape[-1]) if scale is None else float(scale)
    # First of all, so that nothing under the mask can spread; its values stay 0, whatever the map makes of the keys.
    if keep is not None:
        k, v = (x.masked_fill(~keep[:, None, :, None], 0.0) for x in (k, v))
        tensors = {name: _blank(tensors[name], m, name, keep) for name in tensors}
    center = state.center if center is None and state is not None else center
    wide = torch.promote_types(q.dtype, torch.float32)
    if center is not None:
        k = (k.to(wide) - center.to(wide)[:, None]).to(k.dtype)
    if "input_gate" in tensors:
        v = v * tensors["input_gate"].to(v.dtype)[..., None]
    given = q.dtype
    if not m.kernel.exponential or m.decay == "channel":  # feature maps and polynomials in full precision
        q, k = q.to(wide), k.to(wide)
    before = 0 if state is None else state.tokens
    if m.kernel.longest is not None and before + k.shape[2] > m.kernel.longest:
        raise MechanismError(f"'{m}' is for at most {m.kernel.longest} tokens, got {before + k.shape[2]}.")
    positions = torch.arange(k.shape[2], device=k.device) + before
    own = (
        positions[k.shape[2] - q.shape[2] :]
        if setting.causal and k.shape[2]
        else torch.arange(q.shape[2], device=q.device) + before
    )
    q, k = m.kernel.map_vectors(q, own), m.kernel.map_vectors(k, positions)
    if "log_temperature" in tensors:
        q = q * tensors["log_temperature"].to(q.dtype).exp()[:, None, None]
    if reference:  # which computes in the dtype it is given
        q, k = q.to(given), k.to(given)
    documents, segment = _documents(segments, state, k)
    clock, channels = _clocks(m, tensors.get("log_decay"), k, keep)
    return Problem(
        setting, q, k, v, scale, keep, documents, clock, channels, tensors.get("beta"), segment, center, state, tensors,
        backend, chunk_size,
    )  # fmt: skip


def as_state(m: Mechanism, k: Tensor, v: Tensor, keep: Tensor | None = None, center: Tensor | None = None) -> KVState:
    """Keys and values (B, Hkv, T, ...) that somebody else has kept, as ``attention`` would remember them."""
    dims = Dims(len(k), k.shape[1], k.shape[1], 0, k.shape[2], k.shape[3], v.shape[3])
    p = prepare(
        Setting(m, dims), k[:, :, :0], k, v, {}, scale=None, reference=False, keep=keep, segments=None, center=center,
        state=None, backend="auto", chunk_size=None,
    )  # fmt: skip
    return p.with_past(None)[0]


def _blank(x: Tensor, m: Mechanism, name: str, keep: Tensor) -> Tensor:
    """0 at padded keys, for tensors that belong to keys."""
    sizes = next(i.sizes for i in m.inputs if i.name == name)
    if sizes[:1] != ("B",) or "Tk" not in sizes:
        return x
    shape = [len(keep) if s == "B" else keep.shape[1] if s == "Tk" else 1 for s in sizes]
    return x.masked_fill(~keep.reshape(shape), 0.0)


def _clocks(
    m: Mechanism, log_decay: Tensor | None, k: Tensor, keep: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Running sums in float64: in float32 they would be wrong by 1e-3 after 16k tokens."""
    if log_decay is None:
        return None, None
    log_decay = log_decay.double()
    if m.decay == "head":
        log_decay = log_decay[None, :, None].expand(k.shape[0], -1, k.shape[2])
        log_decay = log_decay if keep is None else log_decay * keep[:, None]
    # -inf (forget everything) would make differences of sums NaN; -1e4 gives the same weights, 0.
    total = log_decay.clamp(min=-1e4).cumsum(2)
    return (None, total) if m.decay == "channel" else (total, None)


def _documents(segments: Tensor | None, state: State | None, k: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Documents as ascending numbers, 0 for the one that the state is in the middle of; and the id of the last."""
    last = None if state is None else state.segment
    if segments is None or segments.shape[1] == 0:
        return (None if last is None else torch.zeros(k.shape[0], k.shape[2], dtype=torch.long, device=k.device)), last
    if state is not None and state.tokens and last is None:
        raise MechanismError("The state was built without segment_ids; go on without them, or begin with them.")
    segments = segments.long()
    return number_documents(segments, last), segments[:, -1]


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> Dims:
    """Ranks, dtypes, devices and the sizes that must agree."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise MechanismError(f"{name} must be a torch.Tensor, got {type(x).__name__}.")
        if x.ndim != 4:
            raise MechanismError(f"{name} must have shape (batch, heads, tokens, dim), got {tuple(x.shape)}.")
    if not (q.dtype == k.dtype == v.dtype) or q.dtype not in DTYPES:
        raise MechanismError(f"q, k and v must share one floating dtype, got {q.dtype}, {k.dtype} and {v.dtype}.")
    if not (q.device == k.device == v.device):
        raise MechanismError(f"q, k and v must be on one device, got {q.device}, {k.device} and {v.device}.")
    B, H, Tq, D = q.shape
    _, Hkv, Tk, E = v.shape
    if v.shape[0] != B:
        raise MechanismError(f"v must have the batch size of q, {B}, got {v.shape[0]}.")
    if k.shape != (B, Hkv, Tk, D):
        raise MechanismError(
            f"k must have shape {(B, Hkv, Tk, D)} to go with q {tuple(q.shape)} and v {tuple(v.shape)}, got {tuple(k.shape)}."
        )
    if Hkv == 0 or H % Hkv:
        raise MechanismError(f"The {H} query heads must be a multiple of the {Hkv} key/value heads.")
    if D == 0 or E == 0:
        raise MechanismError("The head dimension must be at least 1.")
    return Dims(B, H, Hkv, Tq, Tk, D, E)


def check_inputs(m: Mechanism, dims: Dims, q: Tensor, given: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """What the slots declared: present unless optional, tensors of the declared shape and range; nothing else. Returns those given."""
    declared = {x.name: x for x in m.inputs}
    found: dict[str, Tensor] = {}
    for name, value in given.items():
        if value is None:
            continue
        if not isinstance(value, Tensor):
            raise MechanismError(f"{name} must be a torch.Tensor, got {type(value).__name__}.")
        if name not in declared:
            raise MechanismError(f"The mechanism '{m}' has no use for {name}=; leave it out.")
        check_tensor(name, value, dims.shape(declared[name]), q)
        _check_range(declared[name], value)
        found[name] = value
    for name, x in declared.items():
        if name not in found and not x.optional:
            raise MechanismError(f"The mechanism '{m}' needs {name}= of shape {dims.shape(x)} ({x.what}).")
    return found


def check_tensor(name: str, value: object, shape: tuple[int, ...], q: Tensor) -> None:
    """A tensor of this shape, on the device of the queries."""
    if not isinstance(value, Tensor):
        raise MechanismError(f"{name} must be a torch.Tensor, got {type(value).__name__}.")
    if value.device != q.device:
        raise MechanismError(f"{name} is on {value.device}, q on {q.device}: move it there.")
    if tuple(value.shape) != shape:
        raise MechanismError(f"{name} must have shape {shape}, got {tuple(value.shape)}.")


def _check_range(declared: Input, value: Tensor) -> None:
    """Gates are not checked (a little over 1 does no harm); what would make a state explode is, on the CPU, where looking costs nothing."""
    if declared.name not in ("log_decay", "beta") or tracing() or value.device.type != "cpu" or value.numel() == 0:
        return
    low, high = torch.aminmax(value.detach())
    if bool(low < declared.low) or bool(high > declared.high):
        bad = low if bool(low < declared.low) else high
        limits = (
            f"at most {declared.high:g}"
            if declared.low == -float("inf")
            else f"from {declared.low:g} to {declared.high:g}"
        )
        raise MechanismError(f"{declared.name} must be {limits}, got {bad.item():g}.")


def check_masks(dims: Dims, q: Tensor, keep: Tensor | None, segments: Tensor | None) -> None:
    """key_padding_mask must be bool (B, Tk), segment_ids whole numbers (B, T)."""
    if keep is not None:
        if isinstance(keep, Tensor) and keep.dtype != torch.bool:
            raise MechanismError(f"key_padding_mask must be bool with True = keep, got {keep.dtype}.")
        check_tensor("key_padding_mask", keep, (dims.batch, dims.keys), q)
    if segments is not None:
        if isinstance(segments, Tensor) and (
            segments.is_floating_point() or segments.dtype == torch.bool or segments.is_complex()
        ):
            raise MechanismError(f"segment_ids must be whole numbers, got {segments.dtype}.")
        if dims.queries != dims.keys:
            raise MechanismError(
                f"segment_ids need as many queries as keys, got {dims.queries} queries and {dims.keys} keys."
            )
        check_tensor("segment_ids", segments, (dims.batch, dims.keys), q)


def check_center(m: Mechanism, dims: Dims, center: Tensor | None) -> None:
    """Centring multiplies all weights of a query by one number; something must cancel it."""
    if center is None:
        return
    if not m.kernel.shiftable or m.decay == "channel" or m.update == "delta":
        raise MechanismError(
            f"center= is for exp and its Taylor series, without channel decay and delta; '{m}' would become something else."
        )
    if not m.cancels_scale:
        raise MechanismError(f"center= changes the result of '{m}': only a plain Sum() or a vector norm cancels it.")
    if not isinstance(center, Tensor) or tuple(center.shape) != (dims.kv_heads, dims.key_dim):
        got = tuple(center.shape) if isinstance(center, Tensor) else type(center).__name__
        raise MechanismError(f"center must have shape {(dims.kv_heads, dims.key_dim)}, got {got}.")


def check_options(
    m: Mechanism, causal: object, scale: object, window: object, chunk_size: object, backend: object
) -> None:
    """Numbers and flags; and a scale that keeps the weights positive where they have to be."""
    if not isinstance(causal, bool):
        raise MechanismError(f"causal must be True or False, got {causal!r}.")
    for name, value in (("chunk_size", chunk_size), ("window", window)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise MechanismError(f"{name} must be a whole number >= 1 or None, got {value!r}.")
    if backend not in BACKENDS:
        raise MechanismError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}.")
    if not causal:
        what = {
            "window=": window,
            "decay": m.decay,
            "the delta rule": m.update == "delta",
            "Near": isinstance(m.kernel, Near),
        }
        wrong = [name for name, there in what.items() if there]
        if wrong:
            raise MechanismError(f"{wrong[0]} looks back in time, so it needs causal=True.")
    if window is not None and isinstance(m.kernel, Near):
        raise MechanismError("Near has a window of its own: leave window= out.")
    if scale is None:
        return
    if not is_number(scale):
        raise MechanismError(f"scale must be a finite number or None, got {scale!r}.")
    if m.kernel.signed_at(float(scale)) and m.denominator.needs_sum and not m.allow_signed:  # type: ignore[arg-type]
        raise MechanismError(
            f"With scale={scale} the weights of {m.kernel.text()} can be negative, so their sum can be 0: "
            "take a vector norm with Unnormalised(), or say allow_signed=True."
        )


def check_state(setting: Setting, q: Tensor, state: State | None, wanted: bool, center: Tensor | None) -> None:
    """The state belongs to this mechanism, these shapes, this dtype and this device; causal lengths fit."""
    m, dims = setting.mechanism, setting.dims
    if (state is not None or wanted) and not setting.causal:
        raise MechanismError("A state streams a causal sequence: it needs causal=True.")
    if setting.causal and dims.queries != dims.keys:
        if state is None:
            raise MechanismError(
                f"Causal attention of {dims.queries} queries over {dims.keys} keys needs a state with the earlier keys; "
                "for cross-attention say causal=False."
            )
        if 0 < dims.keys < dims.queries:
            raise MechanismError(
                f"With a state, {dims.queries} queries need as many new keys or none, got {dims.keys}."
            )
    if state is None:
        return
    if not isinstance(state, State):
        raise MechanismError(f"state must come from attention(..., return_state=True), got {type(state).__name__}.")
    if state.mechanism != m:
        raise MechanismError(f"The state belongs to '{state.mechanism}', not to '{m}'.")
    _check_same_center(state, center)
    _check_memory(m, dims, q, state)


def _check_memory(m: Mechanism, dims: Dims, q: Tensor, state: State) -> None:
    key_dim = m.kernel.width(dims.key_dim)
    if isinstance(state, NearState):
        _check_memory(m, dims, q, state.near)
        return _check_memory(m, dims, q, state.far)
    if isinstance(state, KVState):
        memory, dtype, sizes = state.value, state.value.dtype, (*_ends(state.value), state.key.shape[-1])
        expected, columns = q.dtype, dims.value_dim
    else:
        assert isinstance(state, KroneckerState)
        memory, dtype, sizes = state.moments, state.moments.dtype, (*_ends(state.moments), state.head_dim)
        expected, columns = (
            torch.promote_types(q.dtype, torch.float32),
            dims.value_dim + int(m.denominator.needs_sum or isinstance(m.kernel, Near)),
        )
    if dtype != expected:
        raise MechanismError(
            f"The state holds {dtype} numbers, inputs of {q.dtype} need {expected}: stay with one dtype."
        )
    if memory.device != q.device:
        raise MechanismError(f"The state is on {memory.device}, q on {q.device}: use state.to(device).")
    if sizes != (dims.batch, dims.kv_heads, columns, key_dim):
        raise MechanismError(
            f"The state is for batch {sizes[0]}, {sizes[1]} kv heads and key dim {sizes[3]}; the inputs have "
            f"batch {dims.batch}, {dims.kv_heads} kv heads, key dim {key_dim} and value dim {dims.value_dim}."
        )


def _ends(memory: Tensor) -> tuple[int, int, int]:
    return memory.shape[0], memory.shape[1], memory.shape[-1]


def _check_same_center(state: State, center: Tensor | None) -> None:
    if center is None:
        return  # that of the state is used
    if state.center is None:
        raise MechanismError("The state was built without center=; stay with that.")
    if not tracing() and not torch.equal(state.center, center):
        raise MechanismError("The state was built with another center; leave it out, the state knows it.")
