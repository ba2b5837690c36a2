"""Which modules of a model ask transformers for their attention function, and whether ours can stand in for it.

A module is recognised by its code: its ``forward`` names ``ALL_ATTENTION_FUNCTIONS``. That says nothing about what it does before
and after, so a model of a new kind is tried once: a small forward pass with ``softmax`` in the place of its own attention must
give the same numbers, and no module may call the function more than once. What does not pass is refused, with the reason.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import MechanismError, first_line

TOKENS = 6  # of the small forward pass
_TRIED: set[tuple[type, str, frozenset[type]]] = set()
_CALLS: dict[type, bool] = {}


def attention_modules(model: PreTrainedModel) -> list[tuple[int, nn.Module]]:
    """(layer, module) for every module that calls the attention function."""
    found: list[Any] = [m for m in model.modules() if _calls_it(type(m))]
    if not found:
        raise MechanismError(
            f"The attention of {model.config.model_type!r} models cannot be swapped: none of the modules of {type(model).__name__} "
            "calls transformers' attention functions."
        )
    layers = [getattr(m, "layer_idx", None) for m in found]
    named = None not in layers and len(set(layers)) == len(layers)
    return [(int(m.layer_idx) if named else i, m) for i, m in enumerate(found)]


def _calls_it(kind: type) -> bool:
    if kind not in _CALLS:
        try:
            _CALLS[kind] = "ALL_ATTENTION_FUNCTIONS" in inspect.getsource(kind.forward)  # type: ignore[attr-defined]
        except (OSError, TypeError, AttributeError):
            _CALLS[kind] = False
    return _CALLS[kind]


def try_once(
    model: PreTrainedModel,
    modules: list[nn.Module],
    ours: contextlib.AbstractContextManager[tuple[Counter[int], Counter[int]]],
) -> None:
    """The small forward passes, own and ours; ``ours`` swaps softmax in, and counts its calls, and the module's, by the module's id.

    Once for each class, configuration and kinds of layers; raises ``MechanismError`` with the reason.
    """
    key = (type(model), model.config.to_json_string(), frozenset(type(m) for m in modules))
    if key in _TRIED:
        return
    family = model.config.model_type
    if any(p.is_meta for p in model.parameters()):
        raise MechanismError(f"This {family!r} model has no weights yet: load them before patching it.")
    inputs = _small_inputs(model)
    with _evaluating(model):
        try:
            own = [_tensors(model(**i)) for i in inputs]
        except Exception as error:
            raise MechanismError(
                f"{type(model).__name__} cannot be tried on a small input ({first_line(error)}), so its attention is not swapped."
            ) from None
        with ours as (calls, entered):
            try:
                new = [_tensors(model(**i)) for i in inputs]
            except MechanismError as error:
                raise MechanismError(
                    f"The attention of {family!r} models cannot be swapped: {first_line(error)}"
                ) from None
    _compare(family, own, new, [i.get("attention_mask") for i in inputs])
    if any(many > entered[module] for module, many in calls.items()):
        raise MechanismError(
            f"The attention of {family!r} models cannot be swapped: a layer of theirs calls the attention function several times "
            "and combines the results."
        )
    silent = {type(m) for m in modules} - {type(m) for m in modules if calls[id(m)]}
    if silent:
        raise MechanismError(
            f"The attention of {family!r} models cannot be swapped: {silent.pop().__name__} did not compute anything when the model "
            "was tried on a small input, so nothing is known of it."
        )
    _TRIED.add(key)


def _compare(family: str, own: list[Any], new: list[Any], masks: list[Tensor | None]) -> None:
    for a, b, mask in zip(own, new, masks, strict=True):
        for x, y in zip(a, b, strict=True):
            if mask is not None:
                if x.shape[:2] != mask.shape:
                    continue  # pooled, or of the other modality
                x, y = x[mask.bool()], y[mask.bool()]
            tolerance = (1e-3 if x.dtype in (torch.float32, torch.float64) else 5e-2) * float(x.abs().max())
            off = float((x - y).abs().max())
            if not off <= tolerance:
                raise MechanismError(
                    f"The attention of {family!r} models cannot be swapped: with softmax in its place the output is off by {off:.2g}, "
                    "so it does something to the scores that a mechanism does not know."
                )


def _small_inputs(model: PreTrainedModel) -> list[dict[str, Tensor]]:
    """What the model reads, once plain and, for text, once padded."""
    config, device, dtype = model.config, model.device, model.dtype
    text = config.get_text_config()
    inputs: dict[str, Tensor] = {}
    accepted = inspect.signature(model.forward).parameters
    ids = (torch.arange(2 * TOKENS, device=device) + 3).view(2, TOKENS) % max(1, getattr(text, "vocab_size", None) or 1)
    if "input_ids" in accepted:
        inputs["input_ids"] = ids
    if "pixel_values" in accepted and _vision(config) is not None:
        size, channels = _vision(config).image_size, getattr(_vision(config), "num_channels", 3)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        inputs["pixel_values"] = torch.linspace(-1, 1, 2 * channels * height * width).view(2, channels, height, width)
    if "input_features" in accepted and "input_ids" not in accepted:  # speech; the length is fixed
        bins, frames = config.num_mel_bins, 2 * config.max_source_positions
        inputs["input_features"] = torch.linspace(-1, 1, 2 * bins * frames).sin().view(2, bins, frames)
    if getattr(config, "add_cross_attention", False) and "encoder_hidden_states" in accepted:
        inputs["encoder_hidden_states"] = torch.linspace(-1, 1, 2 * 4 * config.hidden_size).view(2, 4, -1)
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids
    inputs = {k: x.to(device) if x.dtype == torch.long else x.to(device, dtype) for k, x in inputs.items()}
    if "attention_mask" not in accepted or "input_ids" not in inputs:
        return [inputs]
    mask = torch.ones_like(ids)
    mask[1, TOKENS - 2 :] = 0
    return [inputs, {**inputs, "attention_mask": mask}]


def _vision(config: Any) -> Any:
    """The configuration that knows the size of images, if there is one."""
    return next((c for c in (config, getattr(config, "vision_config", None)) if hasattr(c, "image_size")), None)


def _tensors(out: Any) -> list[Tensor]:
    return [x.float() for x in out.values() if isinstance(x, Tensor) and x.is_floating_point()]


@contextlib.contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout, gradients, or a trace in the random numbers."""
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
