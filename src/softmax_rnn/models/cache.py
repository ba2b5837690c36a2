"""A cache of constant size for ``generate``: the Kronecker state in place of keys and values.

``DynamicCache(config=...)``, which ``generate`` and the model make for themselves, looks up one cache layer class per entry
of ``config.layer_types``. ``SoftmaxRnnConfig`` answers ``kronecker_state`` for finite kernels, which is this class, and
``full_attention`` (keys and values) for all others; so hybrids mix the two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import STATIC_LAYER_TYPE_MAPPING, Cache, CacheLayerMixin

from ..errors import MechanismError
from ..ops.state import KroneckerState

KV, STATE = "full_attention", "kronecker_state"


class KroneckerLayer(CacheLayerMixin):
    """One layer's ``KroneckerState``; None before the first token."""

    _layer_type = STATE
    is_sliding = False
    supports_early_init = False

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.state: KroneckerState | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to prepare: the first call of ``attention`` makes the state."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keys are not kept; the layer reads and replaces ``state`` instead."""
        raise MechanismError("A cache of constant size keeps no keys: use it with a SoftmaxRnnForCausalLM only.")

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

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search: each row continues the row it was chosen from."""
        if self.state is not None:
            self.state = self.state.index_select(beam_idx.to(self.state.moments.device))

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


# It is of constant size anyway, so a static cache uses the same class.
STATIC_LAYER_TYPE_MAPPING[STATE] = KroneckerLayer


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
