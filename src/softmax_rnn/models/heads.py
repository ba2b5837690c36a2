"""Other heads on the same body: a label for a text, a label for each token, and masked words with both sides in view.

>>> from softmax_rnn import SoftmaxRnnConfig
>>> config = SoftmaxRnnConfig(mechanism="norm", hidden_size=64, intermediate_size=128, num_hidden_layers=2,
...                           num_attention_heads=4, num_labels=3)
>>> model = SoftmaxRnnForSequenceClassification(config)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification
from transformers.modeling_outputs import MaskedLMOutput

from .llama import SoftmaxRnnConfig, SoftmaxRnnModel, SoftmaxRnnPreTrainedModel


class SoftmaxRnnForSequenceClassification(GenericForSequenceClassification, SoftmaxRnnPreTrainedModel):
    """As ``LlamaForSequenceClassification``: the last token that is not padding decides."""


class SoftmaxRnnForTokenClassification(GenericForTokenClassification, SoftmaxRnnPreTrainedModel):
    """As ``LlamaForTokenClassification``; with ``is_causal=False`` in the config each token sees both sides."""


class SoftmaxRnnForMaskedLM(SoftmaxRnnPreTrainedModel):
    """Predicts tokens from both sides: every token sees every other one, whatever the config says."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: SoftmaxRnnConfig) -> None:
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
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Logits for every token; the loss is over those whose label is not -100."""
        return_dict, items = kwargs.pop("return_dict", None), kwargs.pop("num_items_in_batch", None)
        kwargs |= {"is_causal": False, "use_cache": False, "return_dict": True}
        body = self.model(input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, **kwargs)
        logits = self.lm_head(body.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, num_items_in_batch=items)
        out = MaskedLMOutput(loss=loss, logits=logits, hidden_states=body.hidden_states, attentions=body.attentions)
        return out.to_tuple() if return_dict is False else out  # type: ignore[return-value]


AutoModelForSequenceClassification.register(SoftmaxRnnConfig, SoftmaxRnnForSequenceClassification)
AutoModelForTokenClassification.register(SoftmaxRnnConfig, SoftmaxRnnForTokenClassification)
AutoModelForMaskedLM.register(SoftmaxRnnConfig, SoftmaxRnnForMaskedLM)
