"""The configuration: Llama's with a mechanism, which says for itself what is wrong with it; and named sizes.

>>> small = SoftmaxRnnConfig(**SIZES["micro"], vocab_size=4096, mechanism="norm")
>>> small.hidden_size, small.layer_types[0]
(256, 'full_attention')
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig

from ..errors import MechanismError, MechanismWarning
from ..slots.mechanism import Mechanism
from ..slots.presets import REGISTERED
from ..slots.presets import mechanism as resolve
from .attention import ungated
from .cache import layer_type
from .folders import AUTO_MAP, write_stub


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
