"""A cache of constant size for ``generate``: the Kronecker state in place of keys and values.

``DynamicCache(config=...)`` and ``StaticCache(config=...)``, which ``generate`` and the model make for themselves, look up one
cache layer class per entry of ``config.layer_types``. ``SoftmaxRnnConfig`` answers ``kronecker_state`` for finite kernels, which
is one of these classes, and ``full_attention`` (keys and values) for all others; so hybrids mix the two.

A layer goes through ``Cache.update`` like any other, so that a cache may offload it; but instead of keys it hands over a step,
a function from the state so far to the output and the next state. Going back (assisted decoding tries tokens and drops some)
means to remember the steps since the last ``crop``, with the state before each, and to repeat one of them in part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, STATIC_LAYER_TYPE_MAPPING, Cache, CacheLayerMixin

from ..errors import MechanismError
from ..ops.state import KroneckerState

KV, STATE = "full_attention", "kronecker_state"

# (state so far, how many of its tokens to read or None for all) -> output, state after them
Step = Callable[[KroneckerState | None, int | None], tuple[Tensor, KroneckerState]]


class Taken(NamedTuple):
    """A step that was taken, and the state and number of tokens before it."""

    step: Step
    before: KroneckerState | None
    tokens: int


class KroneckerLayer(CacheLayerMixin):
    """One layer's ``KroneckerState``; None before the first token."""

    is_sliding = False
    is_croppable = True  # once ``activate_past_recording`` was called
    supports_early_init = False

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.state: KroneckerState | None = None
        self.record_past = False
        self.taken: list[Taken] = []

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to prepare: the first step makes the state."""

    def update(
        self, key_states: Tensor, value_states: Tensor, step: Step | None = None, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take a step; returns its output, twice, where other layers return keys and values."""
        if step is None:
            raise MechanismError("A cache of constant size keeps no keys: use it with a SoftmaxRnnForCausalLM only.")
        if self.record_past:
            self.taken.append(Taken(step, self.state, self.get_seq_length()))
        elif self.taken:
            self.taken.clear()
        out, after = step(self.state, None)
        self.put(after, key_states.shape[-2])
        return out, out

    def put(self, state: KroneckerState, new_tokens: int) -> None:
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
            self.put(self.state.index_select(beam_idx.to(self.state.moments.device)), 0)
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
            self.device, self.state = self.state.moments.device, self.state.to("cpu")

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

    So a compiled step is one graph for every length: nothing in it is a number that changes.
    """

    is_compileable = True
    is_croppable = False

    def __init__(self, max_cache_len: int, **_: Any) -> None:
        super().__init__()
        self.max_cache_len = max_cache_len
        self.cumulative_length: Any = torch.tensor(0)  # as in transformers' StaticLayer
        self.place: KroneckerState | None = None  # whose tensors ``state`` is written into

    def put(self, state: KroneckerState, new_tokens: int) -> None:
        """Copy the state to its place; the first one, and one of another batch size, makes the place."""
        new, old = _tensors(state), {} if self.place is None else _tensors(self.place)
        if {n: t.shape for n, t in new.items()} == {n: t.shape for n, t in old.items()}:
            for name, tensor in new.items():
                old[name].copy_(tensor)
        else:
            self.place = state
            self.cumulative_length = self.cumulative_length.to(state.moments.device)
            if not torch.compiler.is_compiling():
                for fixed in (self.cumulative_length, *new.values()):
                    torch._dynamo.mark_static_address(fixed)
        self.state = self.place
        self.cumulative_length.add_(new_tokens)

    def get_seq_length(self) -> Any:
        """Tokens seen, padding included: a tensor, as for other static layers."""
        return 0 if self.state is None else self.cumulative_length

    def get_max_length(self) -> int:
        """As the other layers of the cache: the state itself has no limit."""
        return self.max_cache_len

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.cumulative_length.zero_()

    def activate_past_recording(self) -> None:
        """Not here: transformers does not let assisted decoding use a static cache, either."""

    def crop(self, tokens_to_remove: int) -> None:
        """A static cache cannot go back."""
        raise MechanismError("A static cache cannot forget tokens: use a dynamic one, which generate makes by itself.")


def _tensors(state: KroneckerState) -> dict[str, Tensor]:
    """Those that belong to the sequences; ``center`` is the same for all, and never changes."""
    values = {f.name: getattr(state, f.name) for f in fields(state) if f.name != "center"}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


DYNAMIC_LAYER_TYPE_MAPPING[STATE] = KroneckerLayer
STATIC_LAYER_TYPE_MAPPING[STATE] = StaticKroneckerLayer


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
