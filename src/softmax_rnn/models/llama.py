"""Llama with any mechanism: a configuration with one more field, Llama's model with another attention layer in it, and its heads:
the next token, a label for a text or for each token, and masked words with both sides in view.

>>> from softmax_rnn import SoftmaxRnnConfig, SoftmaxRnnForCausalLM
>>> config = SoftmaxRnnConfig(mechanism="norm", hidden_size=64, intermediate_size=128, num_hidden_layers=2,
...                           num_attention_heads=4)
>>> model = SoftmaxRnnForCausalLM(config)
>>> small = SoftmaxRnnConfig(**SIZES["micro"], vocab_size=4096, mechanism="norm")
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
)
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaPreTrainedModel, LlamaRotaryEmbedding
from transformers.utils.generic import can_return_tuple

from ..errors import MechanismError, MechanismWarning, UserError
from ..nn import ShortConv, starts
from ..slots.mechanism import Mechanism
from ..slots.presets import REGISTERED
from ..slots.presets import mechanism as resolve
from . import masks
from .attention import SoftmaxRnnAttention, ungated
from .cache import layer_type
from .folders import AUTO_MAP, write_card, write_stub
from .loss import fits, head_loss


@strict
class SoftmaxRnnConfig(LlamaConfig):
    """As ``LlamaConfig``, with a mechanism.

    Args:
        mechanism: a preset's name, a ``Mechanism`` (or its ``to_dict``), or a list of these, one per layer.
        use_cache: whether a plain forward pass returns a cache. Unlike Llama's it does not unless asked (``generate``
            asks): without a cache each mechanism takes its cheapest form, and packed documents are recognised.
        is_causal: False lets every token see every other one, in all models but the causal one.
        norm_scale: how large the output of the mechanism's norm starts: the first weight of RMS and layer norm, and a fixed
            factor of the L2 norm, which has no weight.
        conv: the width of a causal depthwise convolution on queries, keys and values, which starts as the identity; 0 has none.
        rope: False leaves rotary positions out (decay and convolutions tell the order of tokens, too).
        key_dim: the width of a head's queries and keys, if it is not ``head_dim``, which is then that of its values.
        beta_max: how much of the old value the delta rule replaces at most: 1, or 2, which may turn it around.
        authors_cosine: set by ``load_authors`` only, for ``linear_cosine`` as the authors' code computes it.

    >>> SoftmaxRnnConfig(mechanism="taylor2").layer_mechanisms()[0] == resolve("taylor2")
    True
    """

    model_type = "softmax_rnn"

    mechanism: Any = "softmax"
    use_cache: bool = False
    is_causal: bool = True
    auto_map: Any = None
    norm_scale: float = 1.0
    conv: int = 0
    rope: bool = True
    key_dim: int | None = None
    beta_max: float = 1.0
    authors_cosine: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        _check_heads(self)
        self.auto_map = self.auto_map or {}
        super().__post_init__(**kwargs)
        self.layer_mechanisms()
        if isinstance(self.mechanism, list) and len(self.mechanism) > self.num_hidden_layers:
            raise _wrong_number(self)
        if isinstance(self.conv, bool) or not 0 <= self.conv <= 64:
            raise MechanismError(f"conv must be 0 or the width of a short convolution, at most 64, got {self.conv}.")
        name, width = ("head_dim", self.head_dim) if self.key_dim is None else ("key_dim", self.key_dim)
        if width is None or isinstance(width, bool) or width < 1:
            raise MechanismError(f"{name} must be a whole number of at least 1, got {width}.")
        if self.rope and width % 2:
            raise MechanismError(f"{name} must be even, because RoPE turns pairs of channels; got {width}.")
        if not 0 < self.beta_max <= 2:
            raise MechanismError(f"beta_max must be above 0 and at most 2, got {self.beta_max}.")
        if self.attention_dropout:
            raise MechanismError(
                f"attention_dropout must be 0: mechanisms have no dropout on weights, got {self.attention_dropout}."
            )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("model_type", "layer_types"):  # of another model's config: here the class and the mechanism say it
            return
        super().__setattr__(name, _plain(value) if name == "mechanism" else value)

    def layer_mechanisms(self) -> list[Mechanism]:
        """The mechanism of each layer, as values."""
        given = self.mechanism
        if not isinstance(given, list):
            given = [given] * self.num_hidden_layers
        if len(given) < self.num_hidden_layers:
            raise _wrong_number(self)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MechanismWarning)  # was given when the mechanism was first made
            # A model may stop early for a while (``assistant_early_exit``): then fewer layers than were given.
            return [
                Mechanism.from_dict(m) if isinstance(m, dict) else resolve(m) for m in given[: self.num_hidden_layers]
            ]

    @property
    def layer_types(self) -> list[str]:
        """What each layer caches: a state of constant size where there is one, else keys and values."""
        return [layer_type(ungated(m), self.conv) for m in self.layer_mechanisms()]

    def validate_layer_type(self) -> None:
        """Nothing to check: ``layer_types`` follows from the mechanism."""

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **options: Any) -> None:
        """As always, with a stub beside it by which transformers finds this package."""
        self.auto_map = dict(AUTO_MAP)
        if not Path(save_directory).is_file():  # transformers will say what is wrong with that
            write_stub(save_directory)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **options)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing to register: a saved folder always carries the stub, never a copy of this code."""


def _wrong_number(config: SoftmaxRnnConfig) -> MechanismError:
    return MechanismError(
        f"mechanism is a list of {len(config.mechanism)}, but the model has {config.num_hidden_layers} layers: "
        "give one for each layer."
    )


def _check_heads(config: LlamaConfig) -> None:
    hidden, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    if heads < 1 or config.num_hidden_layers < 1:
        raise MechanismError(
            f"A model needs at least one head and one layer, got {heads} and {config.num_hidden_layers}."
        )
    if hidden % heads:
        raise MechanismError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}.")
    if kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
        raise MechanismError(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}.")


def _plain(mechanism: Any) -> Any:
    """Names and dicts, which JSON can hold, in place of ``Mechanism`` values; names that a user registered are written out."""
    if isinstance(mechanism, list | tuple):
        return [_plain(m) for m in mechanism]
    if isinstance(mechanism, str):
        mechanism = REGISTERED.get(mechanism, mechanism)
    return mechanism.to_dict() if isinstance(mechanism, Mechanism) else mechanism


class SoftmaxRnnPreTrainedModel(LlamaPreTrainedModel):
    """What our models have in common: the mechanism computes the attention, whatever a script asks for."""

    config: SoftmaxRnnConfig
    config_class = SoftmaxRnnConfig
    _supports_flash_attn = _supports_flex_attn = False
    _can_record_outputs = {"hidden_states": LlamaDecoderLayer, "attentions": SoftmaxRnnAttention}  # noqa: RUF012

    def save_pretrained(  # type: ignore[override]
        self, save_directory: Any, is_main_process: bool = True, **options: Any
    ) -> None:
        """As always, with a model card."""
        if is_main_process and not Path(save_directory).is_file():  # transformers will say what is wrong with that
            write_card(save_directory, self.config, type(self).__name__, parameters=self.num_parameters())
        super().save_pretrained(save_directory, is_main_process=is_main_process, **options)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Nothing to register: a saved folder always carries the stub, never a copy of this code."""

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """There is one implementation, the mechanism; its name brings our masks with it."""
        if requested_attention in ("sdpa", "eager"):  # many scripts always say so
            text = f"attn_implementation={requested_attention!r} has no effect: the mechanism computes the attention."
            warnings.warn(text, MechanismWarning, stacklevel=2)
        elif requested_attention not in (None, masks.NAME):
            raise MechanismError(
                f"attn_implementation={requested_attention!r} cannot compute mechanisms: leave it out, the mechanism decides."
            )
        return masks.NAME

    @classmethod
    def is_custom_code(cls) -> bool:
        """Ours is as transformers' own: ``_init_weights`` asks of every tensor whether it was loaded.

        Of other code transformers skips modules without parameters of their own, and a layer's may be in a ``ParameterDict``.
        """
        return False

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, SoftmaxRnnAttention):
            for x in module.mechanism.inputs:
                for tensor, value in starts(module, x, self.config.norm_scale):
                    init.copy_(tensor, value)
        if isinstance(module, ShortConv):
            identity = torch.zeros_like(module.weight, device="cpu")
            identity[0] = 1.0
            init.copy_(module.weight, identity)


def _attention_class(config: SoftmaxRnnConfig) -> type[SoftmaxRnnAttention]:
    if config.authors_cosine:
        from .authors import AuthorsCosine

        return AuthorsCosine
    return SoftmaxRnnAttention


class SoftmaxRnnModel(SoftmaxRnnPreTrainedModel, LlamaModel):
    """As ``LlamaModel``, with a ``SoftmaxRnnAttention`` in each layer, and masks that are never T x T."""

    def __init__(self, config: SoftmaxRnnConfig) -> None:
        super().__init__(config)
        self.use_mechanism()
        self.post_init()

    def use_mechanism(self) -> None:
        """Put our attention into the layers of a Llama."""
        self.mechanism = self.config.mechanism
        if self.config.key_dim is not None:  # Llama's rotary positions have the width of its heads
            narrow = copy.copy(self.config)
            narrow.head_dim = self.config.key_dim
            self.rotary_emb = LlamaRotaryEmbedding(narrow)
        for index, layer in enumerate(self.layers):
            layer.self_attn = _attention_class(self.config)(self.config, index)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """As Llama's; ``attention_mask`` (batch, tokens) is about padding."""
        if self.config.mechanism != self.mechanism:
            raise MechanismError(
                "config.mechanism was changed after the model was built, and its layers are of the old one: save the model "
                "and load it with from_pretrained(folder, mechanism=...)."
            )
        kwargs.setdefault("is_causal", self.config.is_causal)
        if use_cache is None:
            use_cache = self.config.use_cache
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is not None:
            batch, length = given.shape[:2]
            attention_mask = masks.of_model(attention_mask, position_ids, past_key_values, length, batch, given.device)
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )


class SoftmaxRnnForCausalLM(SoftmaxRnnPreTrainedModel, LlamaForCausalLM):
    """As ``LlamaForCausalLM``, around a ``SoftmaxRnnModel``. Initialised as Llama is, std 0.02.

    >>> model = SoftmaxRnnForCausalLM.from_pretrained("runs/norm/checkpoint-1000")  # doctest: +SKIP
    """

    def __init__(self, config: SoftmaxRnnConfig) -> None:
        # All of Llama first, and then the attention: so a seed gives Llama's other weights with every mechanism.
        super().__init__(config)
        with torch.device("meta"):
            body = SoftmaxRnnModel(config)
        for name, child in self.model.named_children():
            setattr(body, name, child)
        body.use_mechanism()
        self.model = body
        # transformers would copy the config's, which is about forward passes.
        self.generation_config.use_cache = True
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        loss_only: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As Llama's. ``loss_only`` says that the loss is all that is wanted: the logits are left out where that is faster."""
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "past_key_values": past_key_values,
            "inputs_embeds": inputs_embeds,
            "use_cache": use_cache,
        }
        if not loss_only or labels is None or "shift_labels" in kwargs or not fits(self.lm_head):
            return super().forward(**inputs, labels=labels, logits_to_keep=logits_to_keep, **kwargs)
        items = kwargs.pop("num_items_in_batch", None)
        body = self.model(**inputs, **kwargs)
        following = nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        loss = head_loss(body.last_hidden_state, self.lm_head.weight, following, items)
        return CausalLMOutputWithPast(loss=loss, past_key_values=body.past_key_values)  # type: ignore[arg-type]

    @staticmethod
    def create_masks_for_generate(
        attention_mask: Tensor | None = None, past_key_values: Cache | None = None, **_: Any
    ) -> Tensor | None:
        """Masks are made in the forward pass; for a static cache it gets one that does not grow, so that one graph is enough."""
        if attention_mask is None or past_key_values is None:
            return attention_mask
        room = past_key_values.get_max_length()
        return attention_mask if room < 0 else masks.columns(attention_mask, 0, room)


class SoftmaxRnnForSequenceClassification(GenericForSequenceClassification, SoftmaxRnnPreTrainedModel):
    """As ``LlamaForSequenceClassification``: the last token that is not padding decides."""


class SoftmaxRnnForTokenClassification(GenericForTokenClassification, SoftmaxRnnPreTrainedModel):
    """As ``LlamaForTokenClassification``; with ``is_causal=False`` in the config each token sees both sides."""


class SoftmaxRnnForMaskedLM(SoftmaxRnnPreTrainedModel):
    """Predicts tokens from both sides: every token sees every other one, whatever the config says."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SoftmaxRnnConfig) -> None:
        config = copy.deepcopy(config)
        config.is_causal = False  # of a causal model's config, too: what is saved says what it is
        super().__init__(config)
        self.model = SoftmaxRnnModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        loss_only: bool = False,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Logits for every token; the loss is over those whose label is not -100. ``loss_only`` as in the causal model."""
        return_dict, items = kwargs.pop("return_dict", None), kwargs.pop("num_items_in_batch", None)
        kwargs |= {"is_causal": False, "use_cache": False, "return_dict": True}
        body = self.model(input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, **kwargs)
        logits: Any = None
        loss: Any = None
        if loss_only and labels is not None and fits(self.lm_head):
            loss = head_loss(body.last_hidden_state, self.lm_head.weight, labels, items)
        else:
            logits = self.lm_head(body.last_hidden_state)
            if labels is not None:
                loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, num_items_in_batch=items)
        out = MaskedLMOutput(loss=loss, logits=logits, hidden_states=body.hidden_states, attentions=body.attentions)
        return out.to_tuple() if return_dict is False else out  # type: ignore[return-value]


AutoConfig.register(SoftmaxRnnConfig.model_type, SoftmaxRnnConfig, exist_ok=True)
AutoModel.register(SoftmaxRnnConfig, SoftmaxRnnModel)
AutoModelForCausalLM.register(SoftmaxRnnConfig, SoftmaxRnnForCausalLM)
AutoModelForSequenceClassification.register(SoftmaxRnnConfig, SoftmaxRnnForSequenceClassification)
AutoModelForTokenClassification.register(SoftmaxRnnConfig, SoftmaxRnnForTokenClassification)
AutoModelForMaskedLM.register(SoftmaxRnnConfig, SoftmaxRnnForMaskedLM)


# Named sizes: the paper's two (App. D) and smaller ones that train on a laptop.


def _size(hidden: int, mlp: int, heads: int, layers: int) -> dict[str, Any]:
    return {"hidden_size": hidden, "intermediate_size": mlp, "num_attention_heads": heads, "num_hidden_layers": layers}


SIZES: dict[str, dict[str, Any]] = {
    "nano": _size(128, 256, 8, 4),  # minutes on a CPU; head size 16, so that Kronecker states stay small
    "micro": _size(256, 512, 8, 6),
    "mini": _size(512, 1024, 8, 8),
    "small": _size(1024, 2048, 16, 20),  # the paper's models
    "large": _size(3072, 6144, 16, 20),  # the paper's large model
}


def parameter_count(size: str, vocab_size: int = 32000, mechanism: Any = "softmax") -> int:
    """How many parameters a model of this size has; nothing is allocated.

    >>> f"{parameter_count('small'):,}"
    '275,293,184'
    """
    if size not in SIZES:
        raise UserError(f"Unknown size {size!r}; sizes are {', '.join(SIZES)}.")
    with torch.device("meta"):
        model = SoftmaxRnnForCausalLM(SoftmaxRnnConfig(**SIZES[size], vocab_size=vocab_size, mechanism=mechanism))
    return sum(p.numel() for p in model.parameters())
