"""Llama with any mechanism: Llama's model with another attention layer in it, and its heads: the next token, a label for a text or
for each token, and masked words with both sides in view.

>>> from softmax_rnn import SoftmaxRnnConfig, SoftmaxRnnForCausalLM
>>> config = SoftmaxRnnConfig(mechanism="norm", hidden_size=64, intermediate_size=128, num_hidden_layers=2,
...                           num_attention_heads=4)
>>> model = SoftmaxRnnForCausalLM(config)
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DynamicCache,
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
from . import masks
from .attention import SoftmaxRnnAttention
from .config import SIZES, SoftmaxRnnConfig
from .folders import write_card
from .loss import fits, head_loss


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
