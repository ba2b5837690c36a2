"""A cache of constant size for ``generate``: the Kronecker state in place of keys and values.

``DynamicCache(config=...)`` and ``StaticCache(config=...)``, which ``generate`` and the model make for themselves, look up how to
make a cache layer by each entry of ``config.layer_types``. ``SoftmaxRnnConfig`` answers ``full_attention`` (keys and values) for
kernels without a finite state, and for all others a name that stands for one of these classes with the layer's mechanism; so
hybrids mix the two.

A layer goes through ``Cache.update`` like any other, so that a cache may offload it; but instead of keys it hands over a step,
a function from the state so far to the output and the next state. Going back (assisted decoding tries tokens and drops some)
means to remember the steps since the last ``crop``, with the state before each, and to repeat one of them in part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, STATIC_LAYER_TYPE_MAPPING, Cache, CacheLayerMixin

from ..api import attention
from ..errors import MechanismError
from ..nn import LayerState, layer_state
from ..slots.kernels import Near
from ..slots.mechanism import Mechanism
from ..state import KroneckerState, KVState, NearState, State

KV = "full_attention"
MECHANISMS: dict[
    str, Mechanism
] = {}  # by layer type: layers hold plain data only, which transformers' exporters take apart


def needs_more(m: Mechanism) -> bool:
    """Must the mechanism remember more than keys and values, which is what every cache of transformers holds?"""
    return isinstance(m.kernel, Near) or m.kernel.positional or m.decay is not None or m.update != "add"


def layer_type(mechanism: Mechanism, conv: int = 0) -> str:
    """What a layer that computes ``mechanism`` keeps of the past, as an entry of ``config.layer_types``."""
    if not (mechanism.kernel.finite or needs_more(mechanism) or conv):
        return KV
    name = f"state of {mechanism!r}"
    if name not in MECHANISMS:
        MECHANISMS[name] = mechanism
        dynamic, static = (
            cast(dict[str, Any], DYNAMIC_LAYER_TYPE_MAPPING),
            cast(dict[str, Any], STATIC_LAYER_TYPE_MAPPING),
        )
        dynamic[name], static[name] = partial(KroneckerLayer, name), partial(StaticKroneckerLayer, name)
    return name


KINDS: dict[str, type[State]] = {kind.__name__: kind for kind in (KVState, KroneckerState, NearState, LayerState)}
NAMES = {name: [f.name for f in fields(kind) if f.name != "mechanism"] for name, kind in KINDS.items()}

# (state so far, how many of its tokens to read or None for all) -> output, state after them
Step = Callable[[LayerState | None, int | None], tuple[Tensor, LayerState]]


class Taken(NamedTuple):
    """A step that was taken, and the state and number of tokens before it."""

    step: Step
    before: LayerState | None
    tokens: int


NO_KEYS = "A cache of constant size keeps no keys: use it with a SoftmaxRnnForCausalLM only."


class KroneckerLayer(CacheLayerMixin):
    """One layer's ``LayerState``, part by part."""

    is_sliding = False
    is_croppable = True  # once ``activate_past_recording`` was called
    supports_early_init = False

    def __init__(self, kind: str, **_: Any) -> None:
        super().__init__()
        self.kind = kind
        self.parts: dict[str, Any] = {}
        self.record_past = False
        self.taken: list[Taken] = []

    @property
    def state(self) -> LayerState | None:
        """What is remembered; None before the first token."""
        return from_parts(MECHANISMS[self.kind], self.parts) if self.parts else None

    @state.setter
    def state(self, state: LayerState | None) -> None:
        self.parts = {} if state is None else to_parts(state)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to prepare: the first step makes the state."""

    def update(
        self, key_states: Tensor, value_states: Tensor, step: Step | None = None, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take a step; returns its output, twice, where other layers return keys and values."""
        if step is None:
            raise MechanismError(NO_KEYS)
        if self.record_past:
            self.taken.append(Taken(step, self.state, self.get_seq_length()))
        elif self.taken:
            self.taken.clear()
        out, state = step(self.state, None)
        self.put(state)
        return out, out

    def put(self, state: LayerState) -> None:
        """Remember this state from now on."""
        self.state = state

    def get_seq_length(self) -> int:
        """Tokens seen, padding included."""
        return 0 if self.state is None else self.state.tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """As a growing cache: the mask speaks of all tokens, the layer takes the part of the new ones."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    def reset(self) -> None:
        """Forget everything."""
        self.state = None
        self.taken.clear()

    def activate_past_recording(self) -> None:
        """From now on ``crop`` can go back as far as the tokens that come next."""
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last ``-tokens_to_remove`` tokens, and that they could have been forgotten."""
        if tokens_to_remove > 0:
            raise MechanismError(f"crop takes minus the number of tokens to forget, got {tokens_to_remove}.")
        wanted = self.get_seq_length() + tokens_to_remove
        if tokens_to_remove:
            last = next((t for t in reversed(self.taken) if t.tokens <= wanted), None)
            if last is None:
                raise MechanismError(
                    f"A state of constant size cannot forget {-tokens_to_remove} tokens it has not recorded: call "
                    "cache.activate_past_recording() before they are read, or use past_key_values=DynamicCache(), which keeps keys."
                )
            self.state = last.before
            if wanted > last.tokens:
                _, self.state = last.step(last.before, wanted - last.tokens)
        self.taken.clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search: each row continues the row it was chosen from."""
        if self.state is not None:
            self.put(self.state.index_select(beam_idx.to(self.state.device)))
            self.taken.clear()

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows."""
        if self.state is not None:
            self.reorder_cache(torch.arange(self.state.batch, device=indices.device)[indices])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row several times."""
        if self.state is not None:
            self.reorder_cache(torch.arange(self.state.batch).repeat_interleave(repeats))

    def offload(self) -> None:
        """Move to the CPU."""
        if self.state is not None:
            self.device, self.state = self.state.device, self.state.to("cpu")

    def prefetch(self) -> None:
        """Move back."""
        if self.state is not None and hasattr(self, "device"):
            self.state = self.state.to(self.device)

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return 0 if self.state is None else self.state.nbytes


class StaticKroneckerLayer(KroneckerLayer):
    """As ``KroneckerLayer``, except that the state stays at one place in memory and its length is a tensor.

    So a compiled step is one graph for every length: nothing in it is a number that changes. Keys and values, where a mechanism needs
    them, stand at the end of as many places as the cache has room for; the empty places are padding in front of them.
    """

    is_croppable = False
    supports_early_init = True

    def __init__(self, kind: str, max_cache_len: int, **_: Any) -> None:
        super().__init__(kind)
        self.is_compileable = True
        self.max_cache_len = max_cache_len
        self.cumulative_length: Any = torch.tensor(0)  # as in transformers' StaticLayer
        self.fresh = True  # nothing has been read yet, or since ``reset``

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The state of no tokens, for (B, Hkv, 0, D): an exported program needs a place for it beforehand."""
        m = MECHANISMS[self.kind]
        B, H, _, _ = key_states.shape
        sizes = {"B": B, "H": H, "Hkv": H, "Tq": 0, "Tk": 0, "D": key_states.shape[-1], "E": value_states.shape[-1]}
        options = {x.name: key_states.new_zeros([sizes[s] for s in x.sizes]) for x in m.inputs if not x.optional}
        state = attention(key_states, key_states, value_states, m, return_state=True, **options)[1]
        self.settle(with_room(layer_state(state, None), self.max_cache_len))
        self.fresh = False

    def settle(self, state: LayerState) -> None:
        """From now on states are written where this one is."""
        self.state = state
        self.is_initialized = True
        tensors = list(_tensors(state).values())
        self.keys, self.values = tensors[0], tensors[1]  # where exporters look for what a layer changes
        self.cumulative_length = self.cumulative_length.to(tensors[0].device)
        if not torch.compiler.is_compiling():
            for tensor in (self.cumulative_length, *tensors):
                torch._dynamo.mark_static_address(tensor)

    def update(
        self, key_states: Tensor, value_states: Tensor, step: Step | None = None, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take a step, and write the state to its place; the first one, or one of another batch size, makes the place."""
        if step is None:
            raise MechanismError(NO_KEYS)
        self.check_room(key_states.shape[-2])
        out, state = step(None if self.fresh else self.state, None)
        self.put(state)
        self.cumulative_length.add_(key_states.shape[-2])
        return out, out

    def check_room(self, tokens: int) -> None:
        """Where keys are kept, refuse more tokens than there are places for; compiled steps cannot look, and ``generate`` has."""
        keeps_keys = "attention.key" in self.parts
        if keeps_keys and not self.fresh and not torch.compiler.is_compiling():
            wanted = int(self.cumulative_length) + tokens
            if wanted > self.max_cache_len:
                raise MechanismError(
                    f"The static cache has room for {self.max_cache_len} tokens, and {wanted} have come."
                )

    def put(self, state: LayerState) -> None:
        """Remember this state from now on, in the same place."""
        state = with_room(state, self.max_cache_len)
        new = _tensors(state)
        if self.parts and all(new[name].shape == self.parts[name].shape for name in new):
            for name, tensor in new.items():
                self.parts[name].copy_(tensor)
        else:
            self.settle(state)
        self.fresh = False

    def get_seq_length(self) -> Any:
        """Tokens seen, padding included: a tensor, as for other static layers."""
        return 0 if self.fresh else self.cumulative_length

    def get_max_length(self) -> int:
        """As the other layers of the cache: the state itself has no limit."""
        return self.max_cache_len

    def reset(self) -> None:
        """Forget everything, but not the place."""
        self.fresh = True
        self.cumulative_length.zero_()

    def activate_past_recording(self) -> None:
        """Not here: transformers does not let assisted decoding use a static cache, either."""

    def crop(self, tokens_to_remove: int) -> None:
        """A static cache cannot go back."""
        raise MechanismError("A static cache cannot forget tokens: use a dynamic one, which generate makes by itself.")


def with_room(state: Any, room: int) -> Any:
    """The same state with its keys and values at the end of ``room`` places (a ring of ``Near`` has as many as its window)."""
    if isinstance(state, LayerState):
        return replace(state, attention=with_room(state.attention, room))
    if isinstance(state, NearState):
        assert isinstance(state.mechanism.kernel, Near)
        return replace(state, near=with_room(state.near, state.mechanism.kernel.window))
    return state.padded(room) if isinstance(state, KVState) else state


def to_parts(state: State, prefix: str = "") -> dict[str, Any]:
    """A state as plain data, states within states by dotted names."""
    kind = type(state).__name__
    out: dict[str, Any] = {f"{prefix}type": kind}
    for name in NAMES[kind]:
        value = getattr(state, name)
        out |= to_parts(value, f"{prefix}{name}.") if isinstance(value, State) else {prefix + name: value}
    return out


def from_parts(m: Mechanism, parts: dict[str, Any], prefix: str = "") -> Any:
    """The inverse of ``to_parts``."""
    kind, values = parts[f"{prefix}type"], {}
    for name in NAMES[kind]:
        inside = f"{prefix}{name}."
        values[name] = from_parts(m, parts, inside) if f"{inside}type" in parts else parts[prefix + name]
    return KINDS[kind](m, **values)


def _tensors(state: State) -> dict[str, Tensor]:
    """Those that belong to the sequences; ``center`` is the same for all, and never changes."""
    return {n: x for n, x in to_parts(state).items() if isinstance(x, Tensor) and not n.endswith("center")}


def cache_bytes(cache: Cache) -> int:
    """Memory held by a cache, whatever its layers are.

    >>> out = model.generate(ids, return_dict_in_generate=True)  # doctest: +SKIP
    >>> cache_bytes(out.past_key_values)  # doctest: +SKIP
    """
    return sum(_layer_bytes(layer) for layer in cache.layers)


def _layer_bytes(layer: Any) -> int:
    if isinstance(layer, KroneckerLayer):
        return layer.nbytes
    return sum(t.numel() * t.element_size() for t in (layer.keys, layer.values) if t is not None)
