"""One call of ``attention``, checked already (``checks.py``): its inputs are made ready for the forms.

Setting   what decides which forms can compute a call, and what they cost
prepare   mask, centre, gate, feature map, documents, clock of the decay: a ``Problem``
Sums      what a form gives back: numerator and denominator
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .backends.operators import tracing
from .context import Context, number_documents
from .errors import MechanismError
from .slots import Input
from .slots.kernels import Kernel
from .slots.mechanism import Mechanism
from .state import KVState, NearState, State


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
            self.mechanism,
            self.center,
            self.segment,
            self.tokens,
            self.k,
            self.v,
            self.keep,
            self.documents,
            self.clock,
            self.channels,
        )
        kv = now if past is None else _joined(past, now)
        queries, causal = self.q.shape[2], self.causal and self.k.shape[2] > 0
        context = Context(
            queries,
            kv.key.shape[2],
            causal,
            self.k.device,
            kv.keep,
            kv.documents,
            self.setting.window,
            0,
            kv.clock,
            kv.channels,
            reads_last=self.causal and not causal,
        )
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
        new,
        key=torch.cat([old.key, new.key], 2),
        value=torch.cat([old.value, new.value], 2),
        keep=keep,
        documents=documents,
        clock=running(old.clock, new.clock, 2),
        channels=running(old.channels, new.channels, 2),
    )


def prepare(
    setting: Setting,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: dict[str, Tensor],
    *,
    scale: float | None = None,
    reference: bool = False,
    keep: Tensor | None = None,
    segments: Tensor | None = None,
    center: Tensor | None = None,
    state: State | None = None,
    backend: str = "auto",
    chunk_size: int | None = None,
) -> Problem:
    """Everything that comes before the sums."""
    m = setting.mechanism
    scale = m.kernel.scale(q.shape[-1]) if scale is None else float(scale)
    # First of all, so that nothing under the mask can spread; its values stay 0, whatever the map makes of the keys.
    if keep is not None:
        k, v = (x.masked_fill(~keep[:, None, :, None], 0.0) for x in (k, v))
        tensors = {x.name: blank(tensors[x.name], x, keep) for x in m.inputs if x.name in tensors}
    center = state.center if center is None and state is not None else center
    wide = torch.promote_types(q.dtype, torch.float32)
    if center is not None:
        k = (k.to(wide) - center.to(wide)[:, None]).to(k.dtype)
    v, log_decay = _without_nan(v, tensors.get("log_decay"), keep)
    if "input_gate" in tensors:
        v = v * tensors["input_gate"].to(v.dtype)[..., None]
    given = q.dtype
    if not m.kernel.exponential or m.decay == "channel":  # feature maps and polynomials in full precision
        q, k = q.to(wide), k.to(wide)
    before = 0 if state is None else state.tokens
    tokens = before + (k.shape[2] if setting.causal else max(k.shape[2], q.shape[2]))
    if m.kernel.longest is not None and tokens > m.kernel.longest:
        raise MechanismError(f"'{m}' is for at most {m.kernel.longest} tokens, got {tokens}.")
    positions = torch.arange(k.shape[2], device=k.device) + before
    if not setting.causal:
        own = torch.arange(q.shape[2], device=q.device)
    elif k.shape[2]:
        own = positions[k.shape[2] - q.shape[2] :]
    else:  # queries without keys stand at the last token, as on the clock of the decay
        own = torch.full((q.shape[2],), max(before - 1, 0), device=q.device)
    # A query that is NaN is mapped as 0 and then made NaN again: if it sees no key, nothing of it may reach a gradient.
    maps = "log_temperature" in tensors or type(m.kernel).map_vectors is not Kernel.map_vectors
    bad = q.isnan().any(-1, keepdim=True) if maps and (keep is not None or state is not None) else None
    q = q if bad is None else q.masked_fill(bad, 0.0)
    q, k = m.kernel.map_vectors(q, own), m.kernel.map_vectors(k, positions)
    if "log_temperature" in tensors:
        q = q * tensors["log_temperature"].to(q.dtype).exp()[:, None, None]
    q = q if bad is None else q.masked_fill(bad, torch.nan)
    if reference:  # which computes in the dtype it is given
        q, k = q.to(given), k.to(given)
    documents, segment = _documents(segments, state, k)
    clock, channels = _clocks(m, log_decay, k, keep)
    return Problem(
        setting,
        q,
        k,
        v,
        scale,
        keep,
        documents,
        clock,
        channels,
        tensors.get("beta"),
        segment,
        center,
        state,
        tensors,
        backend,
        chunk_size,
    )


def as_state(m: Mechanism, k: Tensor, v: Tensor, keep: Tensor | None = None, center: Tensor | None = None) -> KVState:
    """Keys and values (B, Hkv, T, ...) that somebody else has kept, as ``attention`` would remember them."""
    dims = Dims(len(k), k.shape[1], k.shape[1], 0, k.shape[2], k.shape[3], v.shape[3])
    return prepare(Setting(m, dims), k[:, :, :0], k, v, {}, keep=keep, center=center).with_past(None)[0]


def blank(x: Tensor, declared: Input, keep: Tensor) -> Tensor:
    """0 at padded keys, for tensors that belong to keys."""
    sizes = declared.sizes
    if sizes[:1] != ("B",) or "Tk" not in sizes:
        return x
    shape = [len(keep) if s == "B" else keep.shape[1] if s == "Tk" else 1 for s in sizes]
    return x.masked_fill(~keep.reshape(shape), 0.0)


def _without_nan(v: Tensor, log_decay: Tensor | None, keep: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Where log_decay is NaN the values are instead: a run that has diverged sees it in its output, and clocks can be compared."""
    if log_decay is None or tracing() or log_decay.device.type != "cpu" or not bool(log_decay.isnan().any()):
        return v, log_decay
    bad = log_decay.isnan()
    at = bad[:, None, None] if bad.ndim == 1 else bad[..., None] if bad.ndim == 3 else bad.any(-1, keepdim=True)
    at = at if keep is None else at & keep[:, None, :, None]
    return v.masked_fill(at, torch.nan), log_decay.masked_fill(bad, 0.0)


def _clocks(
    m: Mechanism, log_decay: Tensor | None, k: Tensor, keep: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Running sums in float64: in float32 they would be wrong by 1e-3 after 16k tokens."""
    if log_decay is None:
        return None, None
    log_decay = log_decay.double()
    if m.decay == "head":
        log_decay = log_decay[None, :, None].expand(k.shape[0], -1, k.shape[2])
        log_decay = log_decay if keep is None else log_decay.masked_fill(~keep[:, None], 0.0)
    # -inf (forget everything) would make differences of sums NaN; -1e4 gives the same weights, 0.
    total = log_decay.clamp(min=-1e4).cumsum(2)
    return (None, total) if m.decay == "channel" else (total, None)


def _documents(segments: Tensor | None, state: State | None, k: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Documents as ascending numbers, 0 for the one that the state is in the middle of; and the id of the last."""
    last = None if state is None else state.segment
    if segments is None or segments.shape[1] == 0:
        return (None if last is None else torch.zeros(k.shape[0], k.shape[2], dtype=torch.long, device=k.device)), last
    if state is not None and state.tokens and last is None:
        raise MechanismError(
            "The state was built without segment_ids: leave them out, or give them from the first call on."
        )
    segments = segments.long()
    return number_documents(segments, last), segments[:, -1]
