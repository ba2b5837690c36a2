"""Start from a trained model: its weights, another mechanism, and a start as close to the old model as the mechanism allows.

    softmax-rnn train --model.init smollm2 --model.mechanism norm --data.source my.txt --model.train attention

Sizes and settings are the old model's (``model.size`` and ``model.overrides`` are not read). What both models have is copied. What only
the new mechanism has (gates, norm weights) begins as in a new model. Then each head is brought to its old size: on some rows of the
training text every layer gets the inputs that it got in the old model, and

    o_h <- a_h o_h        a_h = <old_h, new_h> / <new_h, new_h>

scales the head's part of the output projection by the factor that brings its new output closest to its old one (least squares).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import UserError, printable
from ..models import SoftmaxRnnConfig, SoftmaxRnnForCausalLM, load_model, smollm2_path
from .data import Prepared, collate
from .model import ModelConfig, build_errors

ROWS, TOKENS = 4, 256  # of the training text, to compare the two models on


def place_of(init: str) -> str | Path:
    """Where the model is: ``smollm2`` names the file in the installed package."""
    return smollm2_path() if init == "smollm2" else init


def load_source(init: str) -> PreTrainedModel:
    """The model to start from: a Llama or one of ours."""
    source = load_model(place_of(init)).eval()
    if source.dtype != torch.float32:
        nn.Module.float(source)  # transformers' own refuses for what was stored in fewer bits
    kind = source.config.model_type
    if kind != "llama" and not isinstance(source, SoftmaxRnnForCausalLM):
        raise UserError(
            f"--model.init takes Llama models and runs of ours, and {init} is a {kind}: softmax_rnn.patch swaps its attention in Python."
        )
    return source


def start_from(config: ModelConfig, source: PreTrainedModel, data: Prepared, seed: int, *, quiet: bool) -> Any:
    """A model with the source's weights and the configuration's mechanism; says how close it is."""
    if len(data.tokenizer) > source.config.vocab_size:
        raise UserError(
            f"The tokenizer has {len(data.tokenizer):,} tokens and the model of --model.init {source.config.vocab_size:,}: "
            "leave --tokenizer.source out, to take the model's own."
        )
    with torch.random.fork_rng(), build_errors():
        torch.manual_seed(seed)
        model = SoftmaxRnnForCausalLM(_settings(config, source))
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


def _settings(config: ModelConfig, source: PreTrainedModel) -> SoftmaxRnnConfig:
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
    # The end-of-text token also pads, where it is masked; see ``model.py``.
    return SoftmaxRnnConfig(**kept | {"pad_token_id": None, "mechanism": config.mechanism, "use_cache": False})


def choose(model: nn.Module, which: str, new: list[str]) -> None:
    """Freeze what is not to be trained."""
    if which == "new" and not new:
        raise UserError("--model.train new: this mechanism adds no parameters to the model; train attention, or all.")
    for name, parameter in model.named_parameters():
        chosen = {"all": True, "attention": ".self_attn." in name, "new": name in new}[which]
        parameter.requires_grad_(chosen)


@torch.no_grad()
def _loss(model: Any, batch: dict[str, Tensor]) -> float:
    return float(model(**batch, use_cache=False).loss)


@torch.no_grad()
def bring_close(model: Any, source: Any, ids: Tensor) -> None:
    """Scale each head's output projection, layer by layer, on the inputs of the old model."""
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
