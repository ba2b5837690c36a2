"""Swap the attention of a pretrained model in place, and back.

transformers' attention layers project, rotate and cache, and then call a function by its name in
``config._attn_implementation``. ``patch`` puts our function there, with the mask function of the same name (without one,
padding would be ignored in silence). It gets q, k and v, but neither the hidden states nor the cache: so mechanisms with
gates are refused, and the model keeps its own cache of keys and values.

The swap is written into the model's config, as ``config.softmax_rnn``: so a saved folder says what it was computed with, and
``load_model`` swaps again (``restore``).
"""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from ..errors import MechanismError, MechanismWarning
from ..problem import Dims, check_center
from ..slots.mechanism import Mechanism
from ..slots.presets import mechanism as resolve
from . import masks
from .attention import SoftmaxRnnAttention, attend, compute

# Families whose attention is the formula and nothing more: no bias on the scores, no soft cap, no sinks.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gpt_neox", "bert", "roberta", "xlm-roberta", "electra")

# Arguments by which a model asks for something that mechanisms do not have.
UNSUPPORTED = ("softcap", "s_aux", "sinks", "position_bias", "head_mask", "output_attentions")

SWAP, ORIGINAL = "softmax_rnn_swap", "softmax_rnn_original"  # attributes on attention modules, and on the model
RECORD = "softmax_rnn"  # attribute of the config: {"mechanism": {...}, "centers": {layer: rows}}


@dataclass(frozen=True)
class Swap:
    """What a patched attention module computes."""

    mechanism: Mechanism
    center: Tensor | None


def patch(
    model: PreTrainedModel, mechanism: str | Mechanism, center: Mapping[int, Tensor] | str | Path | None = None
) -> PreTrainedModel:
    """Compute the attention of ``model`` by another mechanism, in place; causal or bidirectional as the model is.

    Args:
        model: a Hugging Face model: Llama, Mistral, Qwen2, Qwen3, GPT-NeoX, or BERT and its kin (MiniLM, RoBERTa, Electra).
        mechanism: a name or a ``Mechanism`` without parameters of its own.
        center: vectors to subtract from the keys, {layer: (kv heads, head dim)}, or a safetensors file that names them
            ``layers.{i}.center``. They change nothing for exp, and bring scores close to 0, where Taylor series are good.

    Returns the same model. If anything is wrong it raises ``MechanismError`` before anything is touched.

    >>> patch(model, "taylor4")  # doctest: +SKIP
    """
    m = resolve(mechanism)
    modules = _attention_modules(model)
    if m.parameters:
        raise MechanismError(
            f"'{m}' needs {' and '.join(m.parameters)}, which a pretrained model does not have: "
            "patch takes mechanisms without parameters."
        )
    centers = _read_centers(center)
    dims = _dims(model)
    unknown = sorted(set(centers) - {index for index, _ in modules})
    if unknown:
        raise MechanismError(
            f"center is given for layer {unknown[0]}, but the model has {len(modules)} attention layers."
        )
    for value in centers.values():
        check_center(m, dims, value)

    _own_config(model)
    if not hasattr(model, ORIGINAL):
        setattr(model, ORIGINAL, model.config._attn_implementation)
    model.config._attn_implementation = masks.NAME
    for index, module in modules:
        setattr(module, SWAP, Swap(m, centers.get(index)))
    setattr(model.config, RECORD, _record(m, centers))
    model.save_pretrained = types.MethodType(_save_pretrained, model)  # type: ignore[method-assign]
    return model


def unpatch(model: PreTrainedModel) -> PreTrainedModel:
    """Give a patched model its own attention back; one that is not patched stays as it is.

    >>> unpatch(model)  # doctest: +SKIP
    """
    if hasattr(model, ORIGINAL):
        model.config._attn_implementation = getattr(model, ORIGINAL)
        delattr(model, ORIGINAL)
        delattr(model.config, RECORD)
        del model.__dict__["save_pretrained"]
        for module in model.modules():
            if hasattr(module, SWAP):
                delattr(module, SWAP)
    return model


def restore(model: PreTrainedModel) -> PreTrainedModel:
    """Swap the attention of a model that was saved while it was patched; any other stays as it is.

    >>> restore(LlamaForCausalLM.from_pretrained(folder))  # doctest: +SKIP
    """
    record = getattr(model.config, RECORD, None)
    if record is None or hasattr(model, ORIGINAL):
        return model
    try:
        m = Mechanism.from_dict(record["mechanism"])
        centers = {int(layer): torch.tensor(rows) for layer, rows in record.get("centers", {}).items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise MechanismError(f"The config's {RECORD!r} does not describe a patched model: {error}.") from None
    return patch(model, m, centers)


def _record(m: Mechanism, centers: Mapping[int, Tensor]) -> dict[str, Any]:
    return {"mechanism": m.to_dict(), "centers": {str(i): c.float().tolist() for i, c in sorted(centers.items())}}


def _save_pretrained(self: PreTrainedModel, save_directory: str | Path, *args: Any, **options: Any) -> None:
    """As the class's own, and say what the folder is."""
    type(self).save_pretrained(self, save_directory, *args, **options)
    m = Mechanism.from_dict(getattr(self.config, RECORD)["mechanism"])
    warnings.warn(
        f"{save_directory} was saved while patched: softmax_rnn.models.load_model computes '{m}' again, plain transformers "
        "does not know of it and computes the model's own attention.",
        MechanismWarning,
        stacklevel=2,
    )


def _attention_modules(model: Any) -> list[tuple[int, nn.Module]]:
    """(layer, module) for every module that calls the attention function."""
    if not isinstance(model, PreTrainedModel):
        raise MechanismError(f"patch takes a Hugging Face model, got {type(model).__name__}.")
    family = model.config.model_type
    if any(isinstance(m, SoftmaxRnnAttention) for m in model.modules()):
        raise MechanismError(
            "This model has a mechanism already: build it with SoftmaxRnnConfig(mechanism=...) instead of patching it."
        )
    if family not in FAMILIES:
        raise MechanismError(
            f"The attention of {family!r} models cannot be swapped; patch knows {', '.join(FAMILIES)}."
        )
    found: list[Any] = [
        m for m in model.modules() if hasattr(m, "is_causal") and hasattr(m, "scaling") and hasattr(m, "layer_idx")
    ]
    if not found:
        raise MechanismError(f"{type(model).__name__} has no attention layer to swap.")
    return [(i if m.layer_idx is None else m.layer_idx, m) for i, m in enumerate(found)]


def _own_config(model: PreTrainedModel) -> None:
    """Models made from one config object share it, and would share the patch: this one gets its own copy."""
    shared = model.config
    own = copy.deepcopy(shared)
    for module in model.modules():
        if getattr(module, "config", None) is shared:
            setattr(module, "config", own)  # noqa: B010 (mypy takes attributes of a module for tensors)


def _dims(model: PreTrainedModel) -> Dims:
    config = model.config
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Dims(1, heads, getattr(config, "num_key_value_heads", None) or heads, 1, 1, head_dim, head_dim)


def _read_centers(center: Mapping[int, Tensor] | str | Path | None) -> dict[int, Tensor]:
    if center is None:
        return {}
    if isinstance(center, Mapping):
        return dict(center)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(center)
    except (OSError, SafetensorError) as error:
        raise MechanismError(f"Cannot read centers from {center}: {error}.") from None
    names = {name: name.split(".") for name in tensors}
    wrong = [
        n
        for n, parts in names.items()
        if len(parts) != 3 or (parts[0], parts[2]) != ("layers", "center") or not parts[1].isdigit()
    ]
    if wrong:
        raise MechanismError(
            f"{center} holds {wrong[0]!r}; centers are named layers.0.center, layers.1.center and so on."
        )
    return {int(parts[1]): tensors[name] for name, parts in names.items()}


def patched_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: q (B, H, Tq, D), k and v (B, Hkv, Tk, D) -> (B, Tq, H, D)."""
    swap: Swap | None = getattr(module, SWAP, None)
    if swap is None:
        raise MechanismError(
            "This model was not patched itself, it shares the config of one that was: give it a config of its own."
        )
    asked = [name for name in UNSUPPORTED if kwargs.get(name) is not None and kwargs[name] is not False]
    if asked:
        raise MechanismError(
            f"The model asks for {asked[0]}, which '{swap.mechanism}' does not have: unpatch the model first."
        )
    if dropout:
        raise MechanismError(
            f"Mechanisms have no dropout on weights, and this model trains with {dropout}: set it to 0, or call model.eval()."
        )
    m = swap.mechanism
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    what, documents = masks.read(attention_mask)
    key, value, keep = masks.in_use(key, value, what, query.shape[2])
    d = query.shape[-1]
    # Feature maps have a scale of their own; where a model departs from 1/sqrt(d), they depart by the same factor.
    scale = m.kernel.scale(d) * (1.0 if scaling is None else scaling * d**0.5)
    center = None if swap.center is None else swap.center.to(key.device, torch.promote_types(key.dtype, torch.float32))
    if causal:
        out = attend(query, key, value, m, keep, documents, scale=scale, center=center)
    else:
        out = compute(
            query, key, value, m, causal=False, key_padding_mask=keep, segment_ids=documents, scale=scale, center=center
        )  # fmt: skip
    return out.transpose(1, 2), None


AttentionInterface.register(masks.NAME, patched_attention)
