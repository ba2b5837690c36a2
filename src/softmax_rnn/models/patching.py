"""Swap the attention of a pretrained model in place, and back.

transformers' attention layers project, rotate and cache, and then call a function by its name in
``config._attn_implementation``. ``patch`` puts our function there, with the mask function of the same name (without one,
padding would be ignored in silence). It gets q, k and v, but neither the hidden states nor the cache: so mechanisms with
gates are refused, and the model keeps its own cache of keys and values.

The swap is written into the model's config, as ``config.softmax_rnn``: so a saved folder says what it was computed with, and
``load_model`` swaps again (``restore``).
"""

from __future__ import annotations

import contextlib
import copy
import types
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from ..checks import check_center
from ..errors import MechanismError, MechanismWarning
from ..problem import Dims
from ..slots.denominators import Sum
from ..slots.kernels import Exp, Near
from ..slots.mechanism import Mechanism
from ..slots.presets import mechanism as resolve
from . import masks
from .attention import SoftmaxRnnAttention, attend, compute, weights
from .recognising import attention_modules, try_once

# Arguments by which a model asks for something that no mechanism has.
UNSUPPORTED = {"position_bias": "it adds a bias to the scores", "head_mask": "it masks whole heads"}

SWAP, ORIGINAL = "softmax_rnn_swap", "softmax_rnn_original"  # attributes on attention modules, and on the model
RECORD = "softmax_rnn"  # attribute of the config: {"mechanism": {...}, "centers": {layer: rows}}


@dataclass(frozen=True)
class Swap:
    """What a patched attention module computes."""

    mechanism: Mechanism
    center: Tensor | None
    calls: Counter[int] | None = None  # counted while a model is tried


def patch(
    model: PreTrainedModel, mechanism: str | Mechanism, center: Mapping[int, Tensor] | str | Path | None = None
) -> PreTrainedModel:
    """Compute the attention of ``model`` by another mechanism, in place; causal or bidirectional as the model is.

    Args:
        model: a Hugging Face model whose layers call transformers' attention functions, as nearly all do. The first of its kind
            is tried on a small input (see ``recognising``).
        mechanism: a name or a ``Mechanism`` without parameters of its own.
        center: vectors to subtract from the keys, {layer: (kv heads, head dim)}, or a safetensors file that names them
            ``layers.{i}.center``. They change nothing for exp, and bring scores close to 0, where Taylor series are good.

    Returns the same model. If anything is wrong it raises ``MechanismError`` before anything is touched.

    >>> patch(model, "taylor4")  # doctest: +SKIP
    """
    m = resolve(mechanism)
    _check_model(model)
    modules = attention_modules(model)
    if m.parameters:
        raise MechanismError(
            f"'{m}' needs {' and '.join(m.parameters)}, which a pretrained model does not have: "
            "patch takes mechanisms without parameters."
        )
    if isinstance(m.kernel, Near) and any(getattr(module, "is_causal", True) is False for _, module in modules):
        raise MechanismError(
            f"'{m}' looks back in time, and this model reads both ways: take a mechanism without a window."
        )
    windowed = [index for index, module in modules if _sliding(module) is not None]
    if isinstance(m.kernel, Near) and windowed:
        raise MechanismError(
            f"'{m}' has a window of its own, and layer {windowed[0]} of this model has a sliding window: take a mechanism without one."
        )
    centers = _read_centers(center)
    unknown = sorted(set(centers) - {index for index, _ in modules})
    if unknown:
        raise MechanismError(
            f"center is given for layer {unknown[0]}, but the model has {len(modules)} attention layers."
        )
    for value in centers.values():
        check_center(m, _dims(model), value)
    if not hasattr(model, ORIGINAL):
        parts = [module for _, module in modules]
        try_once(model, parts, _softmax(model, parts))
        _own_config(model)
        setattr(model, ORIGINAL, _implementations(model))
    _use([(config, masks.NAME) for config, _ in _implementations(model)])
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
        _use(getattr(model, ORIGINAL))
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


def _check_model(model: Any) -> None:
    if not isinstance(model, PreTrainedModel):
        raise MechanismError(f"patch takes a Hugging Face model, got {type(model).__name__}.")
    if any(isinstance(m, SoftmaxRnnAttention) for m in model.modules()):
        raise MechanismError(
            "This model has a mechanism already: build it with SoftmaxRnnConfig(mechanism=...) instead of patching it."
        )


def _sliding(module: nn.Module) -> int | None:
    """The sliding window of a layer: its own, or that of the whole model."""
    config = getattr(module, "config", None)
    found: int | None = getattr(module, "sliding_window", getattr(config, "sliding_window", None))
    return found


@contextlib.contextmanager
def _softmax(model: PreTrainedModel, modules: list[nn.Module]) -> Iterator[tuple[Counter[int], Counter[int]]]:
    """The model with softmax from our kernels, for as long as it lasts; counts calls of ours and of modules, which layers may share."""
    calls: Counter[int] = Counter()
    entered: Counter[int] = Counter()
    hooks = [m.register_forward_pre_hook(lambda module, _: entered.update([id(module)])) for m in modules]
    before = _implementations(model)
    try:
        _use([(config, masks.NAME) for config, _ in before])
        for module in modules:
            setattr(module, SWAP, Swap(resolve("softmax"), None, calls))
        yield calls, entered
    finally:
        _use(before)
        for hook in hooks:
            hook.remove()
        for module in modules:
            delattr(module, SWAP)


def _implementations(model: PreTrainedModel) -> list[tuple[Any, str | None]]:
    """(config, implementation) of the model and its parts; a part may have its own."""
    configs = {
        id(c): c for c in (model.config, *(getattr(m, "config", None) for m in model.modules())) if c is not None
    }
    return [(c, c._attn_implementation) for c in configs.values() if hasattr(c, "_attn_implementation")]


def _use(implementations: list[tuple[Any, str | None]]) -> None:
    for config, name in implementations:
        config._attn_implementation_internal = name


def _own_config(model: PreTrainedModel) -> None:
    """Models made from one config object share it, and would share the patch: this one gets its own copies."""
    copies: dict[int, Any] = {}
    for config, _ in _implementations(model):  # those of its parts may be within the model's, or not
        copy.deepcopy(config, copies)
    for module in model.modules():
        own = copies.get(id(getattr(module, "config", None)))
        if own is not None:
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
) -> tuple[Tensor, Tensor | None]:
    """transformers' attention function: q (B, H, Tq, D), k and v (B, Hkv, Tk, D) -> (B, Tq, H, D)."""
    swap: Swap | None = getattr(module, SWAP, None)
    if swap is None:
        raise MechanismError(
            "This model was not patched itself, it shares the config of one that was: give it a config of its own."
        )
    if swap.calls is not None:
        swap.calls[id(module)] += 1
    asked = [name for name in UNSUPPORTED if kwargs.get(name) is not None]
    if asked:
        raise MechanismError(f"The model asks for {asked[0]} ({UNSUPPORTED[asked[0]]}), which no mechanism has.")
    if dropout:
        raise MechanismError(
            f"Mechanisms have no dropout on weights, and this model was made with {dropout}: load it with attention_dropout=0.0 "
            "(GPT-2: attn_pdrop=0.0, BERT: attention_probs_dropout_prob=0.0), or call model.eval()."
        )
    m, options = _as_asked(swap.mechanism, kwargs.get("softcap"), kwargs.get("s_aux"))
    causal = reads_causally(module, is_causal)
    mask = masks.read(attention_mask)
    key, value, keep = masks.in_use(key, value, mask.what, query.shape[2])
    if mask.windowed:
        options["window"] = _window(kwargs.get("sliding_window"), causal)
    d = query.shape[-1]
    # Feature maps have a scale of their own; where a model departs from 1/sqrt(d), they depart by the same factor.
    options["scale"] = m.kernel.scale(d) * (1.0 if scaling is None else scaling * d**0.5)
    if swap.center is not None:
        options["center"] = swap.center.to(key.device, torch.promote_types(key.dtype, torch.float32))
    if causal:
        out = attend(query, key, value, m, keep, mask.documents, **options)
    else:
        out = compute(query, key, value, m, causal=False, key_padding_mask=keep, segment_ids=mask.documents, **options)
    if not kwargs.get("output_attentions"):
        return out.transpose(1, 2), None
    return out.transpose(1, 2), weights(query, key, m, keep, mask.documents, causal, **options)


def reads_causally(module: nn.Module, asked: bool | None) -> bool:
    """What a call asks for, or else what the module is."""
    return bool(getattr(module, "is_causal", True) if asked is None else asked)


def _as_asked(m: Mechanism, softcap: float | None, sink: Tensor | None) -> tuple[Mechanism, dict[str, Any]]:
    """The mechanism with what a model adds to softmax: a cap on scores (Gemma 2), a sink in the sum (GPT-OSS)."""
    options: dict[str, Any] = {}
    if softcap is not None:
        if not isinstance(m.kernel, Exp) or m.kernel.clamp is not None:
            raise MechanismError(f"The model caps its scores at {softcap:g}, which {m.kernel.text()} does not know.")
        m = replace(m, kernel=replace(m.kernel, softcap=float(softcap)))
    if sink is not None:
        if m.norm is not None or not isinstance(m.denominator, Sum):
            raise MechanismError(f"The model has a sink in its sum of weights, and '{m}' has no such sum.")
        m, options["sink"] = replace(m, denominator=replace(m.denominator, sink=True)), sink
    return m, options


def _window(width: Any, causal: bool) -> int:
    if width is None or not causal:
        raise MechanismError(
            "This sequence is longer than the model's window, which its layers do not tell or which looks both ways: "
            "stay within it, or set config.sliding_window = None if the model may look further."
        )
    return int(width)


AttentionInterface.register(masks.NAME, patched_attention)
