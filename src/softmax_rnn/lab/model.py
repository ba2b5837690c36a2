"""The model of a run: a named size, any of Llama's settings on top, and the mechanism."""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..errors import MechanismWarning, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from ..models import SoftmaxRnnConfig, SoftmaxRnnForCausalLM, SoftmaxRnnForMaskedLM
    from ..slots.mechanism import Mechanism


@dataclass(frozen=True)
class ModelConfig:
    """Which model.

    Args:
        mechanism: a name (softmax-rnn list shows them), a table that writes a mechanism out, or a list of these, one for each layer.
        size: a name from softmax-rnn list --sizes.
        overrides: any of Llama's configuration on top of the size, for example {num_hidden_layers: 3}.
        init: start from this model's weights: a folder, a run, a GGUF file, smollm2 (the installed package), or a hub name;
            size and overrides are then not read.
        train: what to train, all, attention (its layers), or new (what only the new mechanism has).
    """

    mechanism: dict[str, Any] | list[Any] | str = "softmax"
    size: str = "nano"
    overrides: dict[str, Any] = field(default_factory=dict)
    init: str | None = None
    train: Literal["all", "attention", "new"] = "all"

    def __post_init__(self) -> None:
        if self.train != "all" and self.init is None:
            raise UserError(f"model.train {self.train} needs a trained model to start from: give --model.init.")

    def values(self) -> list["Mechanism"]:
        """The mechanism, or the mechanisms of the layers, as values; an unknown one raises ``MechanismError``."""
        listed = self.mechanism if isinstance(self.mechanism, list) else [self.mechanism]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MechanismWarning)  # a gate that cancels may be just what the run is about
            return [_value(m) for m in listed]

    def value(self) -> "Mechanism":
        """The mechanism of a model that has one for all layers."""
        found = self.values()
        if len(found) != 1:
            raise UserError(f"The layers have {len(found)} mechanisms, and one was expected.")
        return found[0]

    @property
    def label(self) -> str:
        """A short name for folders and tables."""
        return label(self.mechanism)


def label(mechanism: Any) -> str:
    """A short name for a mechanism as a configuration has it: a name, a table, or a list of these, one for each layer."""
    return mechanism if isinstance(mechanism, str) else "hybrid" if isinstance(mechanism, list) else "custom"


def _value(given: Any) -> "Mechanism":
    from ..slots.mechanism import Mechanism
    from ..slots.presets import mechanism as resolve

    if isinstance(given, str):
        return resolve(given)
    if isinstance(given, dict):
        return Mechanism.from_dict(given)
    raise UserError(f"model.mechanism must be a name or a table, or a list of these, got {given!r}.")


def is_gated(mechanism: "Mechanism") -> bool:
    """True if the mechanism has an input or an output gate: those the paper trains with clipped gradients."""
    return mechanism.input_gate or mechanism.output_gate is not None


# What a shape may be: beyond it a model cannot be built on any machine, and trying would not end.
LIMITS = {
    "hidden_size": 2**20,
    "intermediate_size": 2**20,
    "num_hidden_layers": 10_000,
    "num_attention_heads": 2**16,
    "num_key_value_heads": 2**16,
    "head_dim": 2**16,
    "key_dim": 2**16,
    "vocab_size": 2**24,
    "max_position_embeddings": 2**30,
}


def check_model(config: ModelConfig, vocab: int, length: int) -> int:
    """Refuse a model that cannot be built, before any text is read; returns how many parameters it has."""
    import torch

    from ..models import SoftmaxRnnForCausalLM

    settings = _settings(config, {"vocab_size": vocab}, length)
    with torch.device("meta"), build_errors():
        model = SoftmaxRnnForCausalLM(_configured(config, settings))
    return sum(p.numel() for p in model.parameters())


def model_config(config: ModelConfig, tokenizer: "PreTrainedTokenizerFast", length: int) -> "SoftmaxRnnConfig":
    """The Hugging Face configuration; unknown sizes and settings are refused."""
    about = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    settings = _settings(config, about, length)
    settings["vocab_size"] = max(settings["vocab_size"], len(tokenizer))
    with build_errors():
        return _configured(config, settings)


def _configured(config: ModelConfig, settings: dict[str, Any]) -> "SoftmaxRnnConfig":
    from ..models import SoftmaxRnnConfig

    return SoftmaxRnnConfig(mechanism=config.mechanism, use_cache=False, **settings)


def _settings(config: ModelConfig, about: dict[str, Any], length: int) -> dict[str, Any]:
    """The size, with the user's settings over it."""
    from ..models import SIZES, SoftmaxRnnConfig

    if config.size not in SIZES:
        raise UserError(f"Unknown model size {config.size!r}; known are {', '.join(SIZES)}.")
    known = set(SoftmaxRnnConfig().to_dict()) | {"head_dim", "num_key_value_heads"}
    unknown = sorted(set(config.overrides) - known)
    if unknown:
        raise UserError(f"model.overrides has {unknown[0]!r}, which is not a setting of Llama's configuration.")
    for name, most in LIMITS.items():
        value = config.overrides.get(name, 1)
        if not (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most):
            raise UserError(f"model.overrides: {name} must be a whole number from 1 to {most:,}, got {value!r}.")
    return {
        "max_position_embeddings": max(length, 2048),
        # The end-of-text token also pads, where it is masked. Told of it, Llama would hold its embedding at zero, and a zero
        # vector has no direction: cosine attention gets gradients of 1e12 from it.
        "pad_token_id": None,
        **about,
        **SIZES[config.size],
        **config.overrides,
    }


@contextlib.contextmanager
def build_errors() -> Iterator[None]:
    """A setting can be wrong in as many ways as Llama has places that use it: all are one sentence."""
    try:
        yield
    except Exception as error:
        said = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        reason = said[-1] if said[0].endswith(":") else said[0]
        raise UserError(f"The model cannot be built: {reason}") from None


def build_model(
    config: ModelConfig, tokenizer: "PreTrainedTokenizerFast", length: int, seed: int, both_sides: bool = False
) -> "SoftmaxRnnForCausalLM | SoftmaxRnnForMaskedLM":
    """A new model, its weights decided by the seed alone; ``both_sides`` is for one that sees what comes after, too."""
    import torch

    from ..models import SoftmaxRnnForCausalLM, SoftmaxRnnForMaskedLM

    settings = model_config(config, tokenizer, length)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with build_errors():
            return SoftmaxRnnForMaskedLM(settings) if both_sides else SoftmaxRnnForCausalLM(settings)
