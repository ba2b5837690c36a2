"""Reaching the attention of a model: see what each layer is called with, and answer in its place.

Others' models go through transformers' table of attention functions, as ``patch`` does (which also says which families it knows); ours
have the mechanism in the layer. Either way a layer's ``scope``, a function Call -> output or None, is asked first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from ..errors import MechanismError, UserError
from ..models import masks
from ..models.attention import SoftmaxRnnAttention
from ..models.patch import ORIGINAL, patch, patched_attention, unpatch
from ..ops.visibility import Visibility
from ..presets import mechanism as resolve
from .tiles import Call

NAME = "softmax_rnn_microscope"
SCOPE = "softmax_rnn_scope"  # attribute on attention modules: (layer, function)

Scope = Callable[[Call], Tensor | None]


@contextlib.contextmanager
def scoped(model: PreTrainedModel, scope: Scope) -> Iterator[None]:
    """While it lasts, every attention layer asks ``scope`` first; None as an answer means: as always."""
    if not isinstance(model, PreTrainedModel):
        raise UserError(f"inspect takes a Hugging Face model, got {type(model).__name__}.")
    if hasattr(model, ORIGINAL):
        raise UserError("This model is patched: unpatch it first, so that its own attention can be seen.")
    training = model.training
    model.eval()
    try:
        with _ours(model, scope) if model.config.model_type == "softmax_rnn" else _theirs(model, scope):
            yield
    finally:
        model.train(training)


@contextlib.contextmanager
def _theirs(model: PreTrainedModel, scope: Scope) -> Iterator[None]:
    try:
        patch(model, "softmax")
    except MechanismError as error:
        raise UserError(f"Cannot look inside this model: {error}") from None
    modules = [m for m in model.modules() if hasattr(m, "softmax_rnn_swap")]
    try:
        model.config._attn_implementation = NAME
        for index, module in enumerate(modules):
            layer = getattr(module, "layer_idx", None)
            setattr(module, SCOPE, (index if layer is None else layer, scope))
        yield
    finally:
        for module in modules:
            delattr(module, SCOPE)
        unpatch(model)


@contextlib.contextmanager
def _ours(model: PreTrainedModel, scope: Scope) -> Iterator[None]:
    modules: list[Any] = [m for m in model.modules() if isinstance(m, SoftmaxRnnAttention)]
    for module in modules:
        module.attend = _answer(module, module.attend, scope)
    try:
        yield
    finally:
        for module in modules:
            del module.attend  # the class's own shows again


def _answer(module: SoftmaxRnnAttention, own: Callable[..., Tensor], scope: Scope) -> Callable[..., Tensor]:
    def attend(
        q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, cache: Any, causal: bool, options: dict[str, Any]
    ) -> Tensor:
        m = module.computed
        see = _visibility(q, k, mask, causal)
        out = scope(Call(int(module.layer_idx), q, k, v, m, m.kernel.scale(q.shape[-1]), see, options))
        return own(q, k, v, mask, cache, causal, options) if out is None else out

    return attend


def _visibility(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Visibility:
    keep, segments = masks.read(mask)
    if segments is not None:  # documents are runs of equal numbers
        runs = torch.zeros_like(segments)
        runs[:, 1:] = (segments[:, 1:] != segments[:, :-1]).cumsum(1)
        segments = runs
    return Visibility(q.shape[2], k.shape[2], causal, q.device, keep, segments)


def scoped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function while a model is ``scoped``."""
    layer, scope = getattr(module, SCOPE)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    see = _visibility(query, key, attention_mask, causal)
    out = scope(Call(layer, query, key, value, resolve("softmax"), scale, see, {}))
    if out is not None:
        return out.transpose(1, 2), None
    return patched_attention(module, query, key, value, attention_mask, scaling, is_causal=is_causal, **kwargs)


AttentionInterface.register(NAME, scoped_attention)
AttentionMaskInterface.register(NAME, masks.mask)
