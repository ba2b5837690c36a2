"""The layer: Llama's attention, except that ``softmax_rnn.attention`` computes it.

    q, k, v = projections, RoPE                                      as Llama
    v      := sigmoid(W_in h + b_in) * v                             input gate, per kv head        (App. E)
    output  = attention(q, k, v, mechanism, output gate, norm, length exponent)

Parameters beyond Llama's exist only where the mechanism asks for them, under the names of the authors' code:

    in_gate_proj, out_gate_proj    weights std 0.02, biases 0, so that every gate starts at 1/2
    out_norm                       weight ``norm_scale`` (1), bias 0; the L2 norm, without a weight, is multiplied by it
    norm_const                     the length exponent c in t ** sigmoid(c), 0.5
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, StaticLayer
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb

from ..api import attention
from ..errors import MechanismError, MechanismWarning
from ..problem import as_state
from ..slots.kernels import Near
from ..slots.mechanism import Mechanism
from ..state import KroneckerState, check_state_size
from . import masks
from .cache import KroneckerLayer, Step

LENGTH_EXPONENT = 0.5


def compute(*args: Any, **options: Any) -> Tensor:
    """``attention`` where no state is asked for."""
    out = attention(*args, **options)
    assert isinstance(out, Tensor)
    return out


def attend(
    q: Tensor, k: Tensor, v: Tensor, m: Mechanism, keep: Tensor | None, segments: Tensor | None = None, **options: Any
) -> Tensor:
    """Causal attention of the newest tokens, q (B, H, Tq, D), over all so far, k and v (B, Hkv, Tk, ...), Tk >= Tq."""
    if q.shape[2] == k.shape[2]:
        return compute(q, k, v, m, key_padding_mask=keep, segment_ids=segments, **options)
    if q.shape[2] == 1 and not isinstance(m.kernel, Near) and options.get("window") is None:
        return compute(q, k, v, m, key_padding_mask=keep, causal=False, **options)
    # Several queries after a cache (a prompt in chunks): the earlier keys become the state that attention continues.
    old = k.shape[2] - q.shape[2]
    state = as_state(m, k[:, :, :old], v[:, :, :old], None if keep is None else keep[:, :old], options.get("center"))
    new = None if keep is None else keep[:, old:]
    return compute(q, k[:, :, old:], v[:, :, old:], m, key_padding_mask=new, state=state, **options)


LONGEST = 1024  # tokens for which weights are given


def weights(
    q: Tensor, k: Tensor, m: Mechanism, keep: Tensor | None, documents: Tensor | None, causal: bool, **options: Any
) -> Tensor:
    """w_ts / Z_t, before gates and norm, (B, H, Tq, Tk): what the mechanism makes of values that are 1 at one key each."""
    T = k.shape[2]
    if max(T, q.shape[2]) > LONGEST:
        raise MechanismError(
            f"output_attentions=True makes T x T weights, which is for rows of at most {LONGEST:,} tokens, got {T:,}: "
            "leave it out, or take a shorter row."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MechanismWarning)
        plain = replace(m, output_gate=None, norm=None, allow_signed=True)
    if "length_exponent" not in plain.parameters:
        options.pop("length_exponent", None)
    one = torch.eye(T, dtype=q.dtype, device=q.device).expand(*k.shape[:2], T, T)
    if not causal:
        return compute(
            q, k, one, plain, causal=False, form="reference", key_padding_mask=keep, segment_ids=documents, **options
        )
    return attend(q, k, one, plain, keep, documents, form="reference", **options)


def ungated(m: Mechanism) -> Mechanism:
    """What the layer asks ``attention`` for: it gates the values itself, before they go into a cache."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MechanismWarning)  # given once already, when the mechanism was made
        return replace(m, input_gate=False)


class SoftmaxRnnAttention(LlamaAttention):
    """As ``LlamaAttention``, except for the mechanism and its parameters."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.mechanism: Mechanism = config.layer_mechanisms()[layer_idx]
        self.computed = ungated(self.mechanism)
        hidden, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        m = self.mechanism
        learned = [x.name for x in m.norm_value.inputs] if m.norm_value else []
        self.in_gate_proj = nn.Linear(hidden, kv_heads) if m.input_gate else None
        self.out_gate_proj = nn.Linear(hidden, heads) if m.output_gate else None
        self.out_norm: nn.LayerNorm | nn.RMSNorm | None = None
        if learned:
            self.out_norm = (nn.LayerNorm if "norm_bias" in learned else nn.RMSNorm)(self.head_dim)
        self.norm_factor = config.norm_scale if m.norm == "l2" else 1.0
        self.norm_const: nn.Parameter | None = None
        if "length_exponent" in m.parameters:
            self.norm_const = nn.Parameter(torch.full((1, heads, 1, 1), LENGTH_EXPONENT))

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As in the base class; ``attention_mask`` is as ``masks`` describes it."""
        assert position_embeddings is not None
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (proj(hidden_states).view(shape).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        if self.in_gate_proj is not None:
            v = v * self.in_gate_proj(hidden_states).sigmoid().mT[..., None]
        q, k, v = self.adjust(q, k, v, past_key_values)
        causal = kwargs.get("is_causal") is not False
        out = self.attend(q, k, v, attention_mask, past_key_values, causal, hidden_states)
        if self.norm_factor != 1.0:
            out = out * self.norm_factor
        out = self.o_proj(out.transpose(1, 2).reshape(*hidden_states.shape[:-1], -1))
        if not kwargs.get("output_attentions"):
            return out, None
        return out, self.weights(q, k, attention_mask, past_key_values, causal)

    def adjust(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor, Tensor]:
        """A place for subclasses to change the vectors; here they stay as they are."""
        return q, k, v

    def options(self, hidden_states: Tensor) -> dict[str, Tensor | None]:
        """What the mechanism wants beyond q, k and v."""
        norm = self.out_norm
        return {
            "output_gate": None if self.out_gate_proj is None else self.out_gate_proj(hidden_states).sigmoid().mT,
            "norm_weight": None if norm is None else norm.weight,
            "norm_bias": getattr(norm, "bias", None),
            "length_exponent": None if self.norm_const is None else self.norm_const.flatten(),
        }

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_mask: Tensor | None,
        cache: Cache | None,
        causal: bool,
        hidden_states: Tensor,
    ) -> Tensor:
        """Without a cache, both ways or causal, or after what is in a cache."""
        mask = masks.read(attention_mask)
        if cache is not None and not causal:
            raise MechanismError("A cache is for causal attention: with is_causal=False say use_cache=False, too.")
        if cache is not None:
            return self.stream(q, k, v, hidden_states, mask, cache)
        options = {"key_padding_mask": mask.keep, "segment_ids": mask.documents, **self.options(hidden_states)}
        return compute(q, k, v, self.computed, causal=causal, **options)

    def stream(self, q: Tensor, k: Tensor, v: Tensor, hidden_states: Tensor, mask: masks.Mask, cache: Cache) -> Tensor:
        """After the tokens in a cache: of keys and values, or of a state of constant size."""
        layer = cache.layers[self.layer_idx] if self.layer_idx < len(cache.layers) else None
        if isinstance(layer, KroneckerLayer):
            step = self.step(q, k, v, hidden_states, mask, layer)
            return cache.update(k, v, self.layer_idx, step)[0]
        k, v = cache.update(k, v, self.layer_idx)
        k, v, keep = self.in_cache(k, v, mask, cache, q.shape[2])
        return attend(q, k, v, self.computed, keep, **self.options(hidden_states))

    def in_cache(
        self, k: Tensor, v: Tensor, mask: masks.Mask, cache: Cache, queries: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Of all that a cache gives back, the keys and values that are there, and which of them count."""
        layer, room, what = cache.layers[self.layer_idx], k.shape[2], mask.what
        if what is not None or isinstance(layer, StaticLayer):
            keep = None if what is None else masks.columns(what == masks.KEY, 0, room)
            keys = layer.get_seq_length() if isinstance(layer, StaticLayer) else room
            what = masks.read(masks.places(keep, keys, room, k.shape[0], k.device)).what
        return masks.in_use(k, v, what, queries)

    def weights(self, q: Tensor, k: Tensor, attention_mask: Tensor | None, cache: Cache | None, causal: bool) -> Tensor:
        """For ``output_attentions``, (B, H, Tq, Tk); the cache has these tokens already."""
        mask = masks.read(attention_mask)
        keep, documents = mask.keep, mask.documents
        if cache is not None:
            layer: Any = cache.layers[self.layer_idx]
            if isinstance(layer, KroneckerLayer) or layer.keys is None or layer.values is None:
                raise MechanismError(
                    "A cache of states has no keys to give weights to: for output_attentions=True say use_cache=False, or "
                    "past_key_values=DynamicCache()."
                )
            k, _, keep = self.in_cache(layer.keys, layer.values, mask, cache, q.shape[2])
        exponent = None if self.norm_const is None else self.norm_const.flatten()
        return weights(q, k, self.computed, keep, documents, causal, length_exponent=exponent)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, hidden_states: Tensor, mask: masks.Mask, layer: KroneckerLayer
    ) -> Step:
        """What a cache layer does with its state when these tokens, or the first of them, come."""
        if not layer.parts:
            self.check_state_size(q.shape[0])
        keep = mask.keep
        if keep is not None:
            keep = masks.columns(keep, layer.get_seq_length(), q.shape[2])

        def run(state: KroneckerState | None, tokens: int | None) -> tuple[Tensor, KroneckerState]:
            now = slice(tokens)
            out, after = attention(
                q[:, :, now], k[:, :, now], v[:, :, now], self.computed, state=state, return_state=True,
                key_padding_mask=None if keep is None else keep[:, now], **self.options(hidden_states[:, now]),
            )  # fmt: skip
            return out, cast(KroneckerState, after)

        return run

    def check_state_size(self, batch: int) -> None:
        """Refuse states that would not fit, of all layers like this one together, before the first is made."""
        copies = sum(m.kernel == self.mechanism.kernel for m in self.config.layer_mechanisms())
        columns = self.head_dim + int(self.mechanism.denominator.needs_sum)
        check_state_size(
            self.mechanism.kernel, self.head_dim, columns, batch * self.k_proj.out_features // self.head_dim * copies,
            otherwise="past_key_values=DynamicCache() keeps keys and values instead",
        )  # fmt: skip
