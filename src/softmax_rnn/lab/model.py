"""The model of a run: a named size, any of Llama's settings on top, and the mechanism; or a trained model with another mechanism.

    softmax-rnn train --model.init smollm2 --model.mechanism norm --data.source my.txt --model.train attention

``start_from`` begins as close to the old model as the mechanism allows. Sizes and settings are the old model's (``model.size`` and
``model.overrides`` are not read). What both models have is copied. What only the new mechanism has (gates, norm weights) begins as in
a new model. Then each head is brought to its old size: on some rows of the training text every layer gets the inputs that it got in
the old model, and

    o_h <- a_h o_h        a_h = <old_h, new_h> / <new_h, new_h>

scales the head's part of the output projection by the factor that brings its new output closest to its old one (least squares).
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..cli import place_of
from ..errors import MechanismWarning, UserError, printable

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from ..models import SoftmaxRnnConfig, SoftmaxRnnForCausalLM, SoftmaxRnnForMaskedLM
    from ..slots.mechanism import Mechanism
    from .data import Prepared

ROWS, TOKENS = 4, 256  # of the training text, to compare an old model and a new one on


@dataclass(frozen=True)
class ModelConfig:
    """Which model.

    Args:
        mechanism: a name (softmax-rnn list shows them), a table that writes a mechanism out, or a list of these, one for each layer.
        size: a name from softmax-rnn list --sizes.
        overrides: settings of Llama's configuration that replace those of the size, for example {num_hidden_layers: 3}.
        init: start from this model's weights: a folder, a run, a GGUF file, smollm2 (the installed package), or a hub name;
            size and overrides are ignored then.
        train: which weights to train: all, attention (the attention layers) or new (what only the new mechanism has).
    """

    mechanism: dict[str, Any] | list[Any] | str = "softmax"
    size: str = "nano"
    overrides: dict[str, Any] = field(default_factory=dict)
    init: str | None = None
    train: Literal["all", "attention", "new"] = "all"

    def __post_init__(self) -> None:
        if self.train != "all" and self.init is None:
            raise UserError(f"model.train {self.train} needs a trained model to start from: give --model.init.")

    def values(self) -> list[Mechanism]:
        """The mechanism, or the mechanisms of the layers, as values; an unknown one raises ``MechanismError``."""
        listed = self.mechanism if isinstance(self.mechanism, list) else [self.mechanism]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MechanismWarning)  # a gate that cancels may be just what the run is about
            return [_value(m) for m in listed]

    def value(self) -> Mechanism:
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


def _value(given: Any) -> Mechanism:
    from ..slots.mechanism import Mechanism
    from ..slots.presets import mechanism as resolve

    if isinstance(given, str):
        return resolve(given)
    if isinstance(given, dict):
        return Mechanism.from_dict(given)
    raise UserError(f"model.mechanism must be a name or a table, or a list of these, got {given!r}.")


def is_gated(mechanism: Mechanism) -> bool:
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


def model_config(config: ModelConfig, tokenizer: PreTrainedTokenizerFast, length: int) -> SoftmaxRnnConfig:
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


def _configured(config: ModelConfig, settings: dict[str, Any]) -> SoftmaxRnnConfig:
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
    config: ModelConfig, tokenizer: PreTrainedTokenizerFast, length: int, seed: int, both_sides: bool = False
) -> SoftmaxRnnForCausalLM | SoftmaxRnnForMaskedLM:
    """A new model, its weights decided by the seed alone; ``both_sides`` is for one that sees what comes after, too."""
    import torch

    from ..models import SoftmaxRnnForCausalLM, SoftmaxRnnForMaskedLM

    settings = model_config(config, tokenizer, length)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with build_errors():
            return SoftmaxRnnForMaskedLM(settings) if both_sides else SoftmaxRnnForCausalLM(settings)


# From a trained model.


def load_source(init: str) -> PreTrainedModel:
    """The model to start from: a Llama or one of ours."""
    import torch

    from ..models import SoftmaxRnnForCausalLM, load_model

    source = load_model(place_of(init)).eval()
    if source.dtype != torch.float32:
        torch.nn.Module.float(source)  # transformers' own refuses for what was stored in fewer bits
    kind = source.config.model_type
    if kind != "llama" and not isinstance(source, SoftmaxRnnForCausalLM):
        raise UserError(
            f"--model.init takes Llama models and runs of ours, and {init} is a {kind}: softmax_rnn.patch swaps its attention in Python."
        )
    return source


def start_from(config: ModelConfig, source: PreTrainedModel, data: Prepared, seed: int, *, quiet: bool) -> Any:
    """A model with the source's weights and the configuration's mechanism; says how close it is."""
    import torch

    from ..models import SoftmaxRnnForCausalLM
    from .data import collate

    if len(data.tokenizer) > source.config.vocab_size:
        raise UserError(
            f"The tokenizer has {len(data.tokenizer):,} tokens and the model of --model.init {source.config.vocab_size:,}: "
            "leave --tokenizer.source out, to take the model's own."
        )
    with torch.random.fork_rng(), build_errors():
        torch.manual_seed(seed)
        model = SoftmaxRnnForCausalLM(_settings_of(source, config))
    missing, dropped = model.load_state_dict(source.state_dict(), strict=False)
    new = [name for name in missing if name not in ("lm_head.weight", "model.embed_tokens.weight")]
    rows = [data.train[i][..., :TOKENS] for i in range(min(ROWS, len(data.train)))]
    batch = collate(rows, pad=data.tokenizer.pad_token_id)
    model.eval()
    before, naive = _loss(source, batch), _loss(model, batch)
    bring_close(model, source, batch["input_ids"])
    after = _loss(model, batch)
    if after > naive:  # one factor per head is not the best for all layers together
        model.load_state_dict(source.state_dict(), strict=False)
        after = naive
    choose(model, config.train, new)
    if not quiet:
        extra = f"{len(new)} tensors are new, {len(dropped)} have no use" if new or dropped else "all tensors are used"
        print(
            printable(
                f"Starting from {config.init} ({extra}): on {len(rows)} rows of the training text its loss is {before:.3f} with its own "
                f"mechanism and {after:.3f} with {config.label}."
            ),
            file=sys.stderr,
        )
    return model


def _settings_of(source: PreTrainedModel, config: ModelConfig) -> SoftmaxRnnConfig:
    from ..models import SoftmaxRnnConfig

    ours = set(SoftmaxRnnConfig().to_dict()) | {"head_dim", "num_key_value_heads"}
    leave_out = {
        "model_type",
        "architectures",
        "mechanism",
        "auto_map",
        "layer_types",
        "use_cache",
        "dtype",
        "torch_dtype",
    }
    theirs = source.config.to_dict()
    kept = {k: v for k, v in theirs.items() if k in ours and k not in leave_out and not k.startswith("_")}
    # The end-of-text token also pads, where it is masked; see ``_settings``.
    return SoftmaxRnnConfig(**kept | {"pad_token_id": None, "mechanism": config.mechanism, "use_cache": False})


def _loss(model: Any, batch: dict[str, Tensor]) -> float:
    import torch

    with torch.no_grad():
        return float(model(**batch, use_cache=False).loss)


def choose(model: nn.Module, which: str, new: list[str]) -> None:
    """Freeze what is not to be trained."""
    if which == "new" and not new:
        raise UserError("--model.train new: this mechanism adds no parameters to the model; train attention, or all.")
    for name, parameter in model.named_parameters():
        chosen = {"all": True, "attention": ".self_attn." in name, "new": name in new}[which]
        parameter.requires_grad_(chosen)


def bring_close(model: Any, source: Any, ids: Tensor) -> None:
    """Scale each head's output projection, layer by layer, on the inputs of the old model."""
    import torch

    with torch.no_grad():
        inputs, outputs = _record(source, ids)
        for layer, kwargs, old in zip(model.model.layers, inputs, outputs, strict=True):
            new = _heads(layer.self_attn, kwargs | {"attention_mask": None})
            factor = (old * new).sum((0, 1, 3)) / (new * new).sum((0, 1, 3))
            factor = torch.where(torch.isfinite(factor) & (factor > 0), factor, torch.ones_like(factor))
            layer.self_attn.o_proj.weight *= factor.repeat_interleave(new.shape[-1])


def _record(source: Any, ids: Tensor) -> tuple[list[dict[str, Any]], list[Tensor]]:
    """What each attention layer is called with, and what its heads put out."""
    inputs: list[dict[str, Any]] = []

    def called(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = ("hidden_states", "position_embeddings")
        given = dict(zip(names, args, strict=False)) | kwargs
        inputs.append({name: given[name] for name in names})

    hooks = [layer.self_attn.register_forward_pre_hook(called, with_kwargs=True) for layer in source.model.layers]
    outputs: list[Tensor] = []
    hooks += [
        layer.self_attn.o_proj.register_forward_pre_hook(_keep(layer.self_attn, outputs))
        for layer in source.model.layers
    ]
    source(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return inputs, outputs


def _heads(attention: Any, kwargs: dict[str, Any]) -> Tensor:
    """(B, T, H, D) of one attention layer."""
    outputs: list[Tensor] = []
    hook = attention.o_proj.register_forward_pre_hook(_keep(attention, outputs))
    attention(**kwargs)
    hook.remove()
    return outputs[0]


def _keep(attention: Any, into: list[Tensor]) -> Any:
    def seen(module: nn.Module, args: tuple[Tensor]) -> None:
        into.append(args[0].unflatten(-1, (-1, attention.head_dim)))

    return seen
