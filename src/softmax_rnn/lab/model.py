"""The model of a run: a named size, any of Llama's settings on top, and the mechanism."""

# No `from __future__ import annotations`: jsonargparse would import everything under TYPE_CHECKING to read the strings.

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import MechanismError, MechanismWarning, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from ..algebra import Mechanism
    from ..models import SoftmaxRnnConfig, SoftmaxRnnForCausalLM


@dataclass(frozen=True)
class ModelConfig:
    """Which model.

    Args:
        mechanism: a name (softmax-rnn list shows them) or a mechanism written out as a dict.
        size: a name from softmax-rnn list --sizes.
        overrides: any of Llama's configuration on top of the size, for example {num_hidden_layers: 3}.
    """

    mechanism: str | dict[str, Any] = "softmax"
    size: str = "nano"
    overrides: dict[str, Any] = field(default_factory=dict)

    def value(self) -> "Mechanism":
        """The mechanism as a value; an unknown one raises ``MechanismError``."""
        from ..algebra import Mechanism
        from ..presets import mechanism as resolve

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MechanismWarning)  # a gate that cancels may be just what the run is about
            return resolve(self.mechanism) if isinstance(self.mechanism, str) else Mechanism.from_dict(self.mechanism)

    @property
    def label(self) -> str:
        """A short name for folders and tables."""
        return self.mechanism if isinstance(self.mechanism, str) else "custom"


def is_gated(mechanism: "Mechanism") -> bool:
    """True if the mechanism has an input or an output gate: those the paper trains with clipped gradients."""
    return mechanism.input_gate or mechanism.output_gate is not None


def model_config(config: ModelConfig, tokenizer: "PreTrainedTokenizerFast", length: int) -> "SoftmaxRnnConfig":
    """The Hugging Face configuration; unknown sizes and settings are refused."""
    from ..models import SIZES, SoftmaxRnnConfig

    if config.size not in SIZES:
        raise UserError(f"Unknown model size {config.size!r}; known are {', '.join(SIZES)}.")
    known = set(SoftmaxRnnConfig().to_dict()) | {"head_dim", "num_key_value_heads"}
    unknown = sorted(set(config.overrides) - known)
    if unknown:
        raise UserError(f"model.overrides has {unknown[0]!r}, which is not a setting of Llama's configuration.")
    settings = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": max(length, 2048),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        # The end-of-text token also pads, where it is masked. Told of it, Llama would hold its embedding at zero, and a zero
        # vector has no direction: cosine attention gets gradients of 1e12 from it.
        "pad_token_id": None,
        **SIZES[config.size],
        **config.overrides,
    }
    settings["vocab_size"] = (
        max(settings["vocab_size"], len(tokenizer)) if "vocab_size" in config.overrides else len(tokenizer)
    )
    try:
        return SoftmaxRnnConfig(mechanism=config.mechanism, use_cache=False, **settings)
    except (MechanismError, ValueError, TypeError) as error:
        raise UserError(f"The model cannot be built: {str(error).splitlines()[0]}") from None


def build_model(
    config: ModelConfig, tokenizer: "PreTrainedTokenizerFast", length: int, seed: int
) -> "SoftmaxRnnForCausalLM":
    """A new model, its weights decided by the seed alone."""
    import torch

    from ..models import SoftmaxRnnForCausalLM

    settings = model_config(config, tokenizer, length)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SoftmaxRnnForCausalLM(settings)
