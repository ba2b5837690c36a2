"""The layer: Llama's attention, except that ``softmax_rnn.attention`` computes it.

    q, k, v = projections, RoPE                                      as Llama
    v      := sigmoid(W_in h + b_in) * v                             input gate, per kv head        (App. E)
    output  = attention(q, k, v, mechanism, whatever its slots declare)

Parameters beyond Llama's exist only where the mechanism asks for them, under the names of the authors' code:

    in_gate_proj, out_gate_proj    weights std 0.02, biases 0, so that every gate starts at 1/2
    out_norm                       weight ``norm_scale`` (1), bias 0; the L2 norm, without a weight, is multiplied by it
    norm_const                     the length exponent c in t ** sigmoid(c), 0.5
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, StaticLayer
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb

from ..api import attention
from ..errors import MechanismError, MechanismWarning
from ..nn import LayerState, ShortConv, add_inputs, layer_state, make_inputs
from ..problem import as_state
from ..slots.mechanism import Mechanism
from ..state import check_state_size
from . import masks
from .cache import KroneckerLayer, needs_more


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
    if q.shape[2] == 1 and not needs_more(m) and options.get("window") is None:
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
    kept = {*plain.parameters, "scale", "window", "center"}
    options = {name: x for name, x in options.items() if name in kept}
    one = torch.eye(T, dtype=q.dtype, device=q.device).expand(*k.shape[:2], T, T)
    if not causal:
        return compute(
            q, k, one, plain, causal=False, form="reference", key_padding_mask=keep, segment_ids=documents, **options
        )
    return attend(q, k, one, plain, keep, documents, form="reference", **options)


class Tokens(NamedTuple):
    """The tokens that a layer is given: their input, (cos, sin) of their positions, and the cache they come after."""

    hidden: Tensor
    positions: tuple[Tensor, Tensor] | None
    cache: Cache | None

    def first(self, tokens: int | None) -> Tokens:
        """Some of them, or all."""
        positions = None if self.positions is None else (self.positions[0][:, :tokens], self.positions[1][:, :tokens])
        return Tokens(self.hidden[:, :tokens], positions, self.cache)


def ungated(m: Mechanism) -> Mechanism:
    """What the layer asks ``attention`` for: it gates the values itself, before they go into a cache."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MechanismWarning)  # given once already, when the mechanism was made
        return replace(m, input_gate=False)


class SoftmaxRnnAttention(LlamaAttention):
    """As ``LlamaAttention``, except for the mechanism and its parameters, a short convolution, and RoPE only where it is wanted."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.mechanism: Mechanism = config.layer_mechanisms()[layer_idx]
        self.computed = ungated(self.mechanism)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.key_dim = config.key_dim or self.head_dim
        if self.key_dim != self.head_dim:
            for name, heads in (("q_proj", self.heads), ("k_proj", self.kv_heads)):
                setattr(self, name, nn.Linear(config.hidden_size, heads * self.key_dim, bias=config.attention_bias))
        add_inputs(self, self.mechanism, config.hidden_size, self.heads, self.kv_heads, self.head_dim, self.key_dim)
        self.beta_max = config.beta_max
        self.norm_factor = config.norm_scale if self.mechanism.norm == "l2" else 1.0
        channels = (self.heads + self.kv_heads) * self.key_dim + self.kv_heads * self.head_dim
        self.conv = ShortConv(channels, config.conv) if config.conv else None
        self.rope = config.rope

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """One layer's attention; ``attention_mask`` is as ``masks`` describes it."""
        mask = masks.read(attention_mask)
        causal = kwargs.get("is_causal") is not False
        if past_key_values is not None and not causal:
            raise MechanismError("A cache is for causal attention: with is_causal=False say use_cache=False, too.")
        x = Tokens(hidden_states, position_embeddings, past_key_values)
        if past_key_values is None:
            q, k, v, _ = self.vectors(x, None, mask.keep, mask.documents)
            options = {"key_padding_mask": mask.keep, "segment_ids": mask.documents, **self.options(hidden_states)}
            out = self.attend(q, k, v, causal=causal, **options)
        else:
            out, q, k = self.stream(x, mask, past_key_values)
        if self.norm_factor != 1.0:
            out = out * self.norm_factor
        out = self.o_proj(out.transpose(1, 2).reshape(*hidden_states.shape[:-1], -1))
        if not kwargs.get("output_attentions"):
            return out, None
        return out, self.weights(q, k, mask, past_key_values, causal, hidden_states)

    def vectors(
        self, x: Tokens, tail: Tensor | None, keep: Tensor | None, documents: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q, k and v of some tokens as ``attention`` takes them, and the last inputs of the convolution."""
        h = x.hidden
        projected = [proj(h) for proj in (self.q_proj, self.k_proj, self.v_proj)]
        if self.conv is not None:
            mixed, tail = self.conv(torch.cat(projected, -1), tail, keep, documents)
            projected = list(mixed.split([p.shape[-1] for p in projected], -1))
        widths = (self.key_dim, self.key_dim, self.head_dim)
        q, k, v = (p.unflatten(-1, (-1, d)).transpose(1, 2) for p, d in zip(projected, widths, strict=True))
        if self.rope:
            assert x.positions is not None
            q, k = apply_rotary_pos_emb(q, k, *x.positions)
        if self.mechanism.input_gate:
            v = v * make_inputs(self, self.mechanism, h, self.heads, self.kv_heads)["input_gate"][..., None]
        return *self.adjust(q, k, v, x.cache), tail

    def adjust(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor, Tensor]:
        """A place for subclasses to change the vectors; here they stay as they are."""
        return q, k, v

    def options(self, hidden_states: Tensor) -> dict[str, Tensor | None]:
        """What the mechanism wants beyond q, k and v."""
        made: dict[str, Tensor | None] = {**make_inputs(self, self.computed, hidden_states, self.heads, self.kv_heads)}
        if self.beta_max != 1.0 and (beta := made.get("beta")) is not None:
            made["beta"] = self.beta_max * beta
        return made

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """The one call, without a cache."""
        return compute(q, k, v, self.computed, **options)

    def stream(self, x: Tokens, mask: masks.Mask, cache: Cache) -> tuple[Tensor, Tensor, Tensor]:
        """After the tokens in a cache, of keys and values or of a state: the output, and the queries and keys of these tokens."""
        layer = cache.layers[self.layer_idx] if self.layer_idx < len(cache.layers) else None
        if isinstance(layer, KroneckerLayer):
            return self.step_through(x, mask, cache, layer)
        if self.conv is not None or needs_more(self.computed):
            raise MechanismError(
                f"'{self.mechanism}' remembers more than keys and values: leave the cache to generate, or say "
                "DynamicCache(config=model.config)."
            )
        q, k, v, _ = self.vectors(x, None, None, None)
        keys, values = cache.update(k, v, self.layer_idx)
        keys, values, keep = self.in_cache(keys, values, mask, cache, q.shape[2])
        return attend(q, keys, values, self.computed, keep, **self.options(x.hidden)), q, k

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

    def weights(
        self, q: Tensor, k: Tensor, mask: masks.Mask, cache: Cache | None, causal: bool, hidden: Tensor
    ) -> Tensor:
        """For ``output_attentions``, (B, H, Tq, Tk); the cache has these tokens already."""
        keep, documents = mask.keep, mask.documents
        if cache is not None:
            layer: Any = cache.layers[self.layer_idx]
            if isinstance(layer, KroneckerLayer) or layer.keys is None or layer.values is None:
                raise MechanismError(
                    "A cache of states has no keys to give weights to: for output_attentions=True say use_cache=False, or "
                    "past_key_values=DynamicCache()."
                )
            k, _, keep = self.in_cache(layer.keys, layer.values, mask, cache, q.shape[2])
        return weights(q, k, self.computed, keep, documents, causal, **self.options(hidden))

    def step_through(
        self, x: Tokens, mask: masks.Mask, cache: Cache, layer: KroneckerLayer
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Hand the cache layer what to do with its state when these tokens, or the first of them, come."""
        if not layer.parts and self.computed.kernel.finite:
            self.check_state_size(x.hidden.shape[0])
        keep = mask.keep
        if keep is not None:
            keep = masks.columns(keep, layer.get_seq_length(), x.hidden.shape[1])
        made: list[Tensor] = []

        def run(state: LayerState | None, tokens: int | None) -> tuple[Tensor, LayerState]:
            now = x.first(tokens)
            kept = None if keep is None else keep[:, : now.hidden.shape[1]]
            q, k, v, tail = self.vectors(now, None if state is None else state.tail, kept, None)
            made[:] = [q, k]
            out, after = attention(
                q,
                k,
                v,
                self.computed,
                state=None if state is None else state.attention,
                return_state=True,
                key_padding_mask=kept,
                **self.options(now.hidden),
            )
            return out, layer_state(after, tail)

        out = cache.update(x.hidden[:, None], x.hidden[:, None], self.layer_idx, run)[0]
        return out, made[0], made[1]

    def check_state_size(self, batch: int) -> None:
        """Refuse states that would not fit, of all layers like this one together, before the first is made."""
        copies = sum(m.kernel == self.mechanism.kernel for m in self.config.layer_mechanisms())
        columns = self.head_dim + int(self.mechanism.denominator.needs_sum)
        check_state_size(
            self.mechanism.kernel,
            self.key_dim,
            columns,
            batch * self.k_proj.out_features // self.key_dim * copies,
            otherwise="past_key_values=DynamicCache() keeps keys and values instead",
        )
