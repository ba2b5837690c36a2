"""Llama with any mechanism: a configuration with one more field, and Llama's model with another attention layer in it.

>>> from softmax_rnn import SoftmaxRnnConfig, SoftmaxRnnForCausalLM
>>> config = SoftmaxRnnConfig(mechanism="norm", hidden_size=64, intermediate_size=128, num_hidden_layers=2,
...                           num_attention_heads=4)
>>> model = SoftmaxRnnForCausalLM(config)
"""

from __future__ import annotations

import warnings
from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers import initialization as init

from ..algebra import Mechanism
from ..errors import MechanismError, MechanismWarning
from ..presets import mechanism as resolve
from . import masks
from .attention import LENGTH_EXPONENT, SoftmaxRnnAttention
from .cache import KV, STATE


@strict
class SoftmaxRnnConfig(LlamaConfig):
    """As ``LlamaConfig``, with a mechanism.

    Args:
        mechanism: a preset's name, a ``Mechanism`` (or its ``to_dict``), or a list of these, one per layer.
        use_cache: whether a plain forward pass returns a cache. Unlike Llama's it does not unless asked (``generate``
            asks): without a cache each mechanism takes its cheapest form, and packed documents are recognised.
        norm_scale: how large the output of the mechanism's norm starts: the first weight of RMS and layer norm, and a fixed
            factor of the L2 norm, which has no weight.
        authors_cosine: set by ``load_authors`` only, for ``linear_cosine`` as the authors' code computes it.

    >>> SoftmaxRnnConfig(mechanism="taylor2").layer_mechanisms()[0] == resolve("taylor2")
    True
    """

    model_type = "softmax_rnn"

    mechanism: Any = "softmax"
    use_cache: bool = False
    norm_scale: float = 1.0
    authors_cosine: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        _check_heads(self)
        super().__post_init__(**kwargs)
        self.layer_mechanisms()
        if self.head_dim is None or self.head_dim % 2:
            raise MechanismError(f"head_dim must be even, because RoPE turns pairs of channels; got {self.head_dim}.")
        if self.attention_dropout:
            raise MechanismError(
                f"attention_dropout must be 0: mechanisms have no dropout on weights, got {self.attention_dropout}."
            )

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _plain(value) if name == "mechanism" else value)

    def layer_mechanisms(self) -> list[Mechanism]:
        """The mechanism of each layer, as values."""
        given = self.mechanism
        if not isinstance(given, list):
            given = [given] * self.num_hidden_layers
        if len(given) != self.num_hidden_layers:
            raise MechanismError(
                f"mechanism is a list of {len(given)}, but the model has {self.num_hidden_layers} layers: "
                "give one for each layer."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MechanismWarning)  # was given when the mechanism was first made
            return [Mechanism.from_dict(m) if isinstance(m, dict) else resolve(m) for m in given]

    @property
    def layer_types(self) -> list[str]:
        """What each layer caches: a state of constant size where there is one, else keys and values."""
        return [STATE if m.kernel.finite else KV for m in self.layer_mechanisms()]

    def validate_layer_type(self) -> None:
        """Nothing to check: ``layer_types`` follows from the mechanism."""


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
    """Names and dicts, which JSON can hold, in place of ``Mechanism`` values."""
    if isinstance(mechanism, list | tuple):
        return [_plain(m) for m in mechanism]
    return mechanism.to_dict() if isinstance(mechanism, Mechanism) else mechanism


class SoftmaxRnnForCausalLM(LlamaForCausalLM):
    """As ``LlamaForCausalLM``, with a ``SoftmaxRnnAttention`` in each layer. Initialised as Llama is, std 0.02.

    >>> model = SoftmaxRnnForCausalLM.from_pretrained("runs/norm/checkpoint-1000")  # doctest: +SKIP
    """

    config: SoftmaxRnnConfig
    config_class = SoftmaxRnnConfig
    _supports_flash_attn = _supports_sdpa = _supports_flex_attn = False

    def __init__(self, config: SoftmaxRnnConfig) -> None:
        super().__init__(config)
        for index, layer in enumerate(self.model.layers):
            layer.self_attn = _attention_class(config)(config, index)
        # transformers would copy the config's, which is about forward passes.
        self.generation_config.use_cache = True
        self.post_init()
        for layer in self.model.layers:  # after post_init, which sets the weights of all norms to 1
            if layer.self_attn.out_norm is not None:
                init.constant_(layer.self_attn.out_norm.weight, config.norm_scale)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """There is one implementation, the mechanism; its name brings our masks with it."""
        if requested_attention not in (None, masks.NAME):
            raise MechanismError(
                f"attn_implementation={requested_attention!r} cannot compute mechanisms: leave it out, the mechanism decides."
            )
        return masks.NAME

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
        """Masks are made in the forward pass, static caches included."""
        return attention_mask

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, SoftmaxRnnAttention) and module.norm_const is not None:
            init.constant_(module.norm_const, LENGTH_EXPONENT)


def _attention_class(config: SoftmaxRnnConfig) -> type[SoftmaxRnnAttention]:
    if config.authors_cosine:
        from .authors import AuthorsCosine

        return AuthorsCosine
    return SoftmaxRnnAttention


AutoConfig.register(SoftmaxRnnConfig.model_type, SoftmaxRnnConfig)
AutoModelForCausalLM.register(SoftmaxRnnConfig, SoftmaxRnnForCausalLM)
