"""Vector norms over the head dimension, with the authors' epsilons; the paper's replacement for G_t (eq. 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-12  # that of F.normalize


# F.normalize, as an operator of its own: its backward pass reads each tensor once, autograd's would read them five times.
@torch.library.custom_op("softmax_rnn::l2", mutates_args=())
def _l2(x: Tensor) -> tuple[Tensor, Tensor]:
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / size.clamp(min=EPS), size


@torch.library.custom_op("softmax_rnn::l2_backward", mutates_args=())
def _l2_backward(grad: Tensor, y: Tensor, size: Tensor) -> Tensor:
    # What would change the length of y, which is 1. vecdot would be a matrix product, which autocast rounds.
    along = (grad * y).sum(-1, keepdim=True)
    along = torch.where(size > EPS, along, torch.zeros_like(along))  # below eps the divisor is constant
    return torch.addcmul(grad, along, y, value=-1) / size.clamp(min=EPS)


@_l2.register_fake
def _(x):  # type: ignore[no-untyped-def]
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / size, size


@_l2_backward.register_fake
def _(grad, y, size):  # type: ignore[no-untyped-def]
    return (grad - y) / size


def _setup(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # nobody uses the size
    ctx.save_for_backward(*output)


def _grad(ctx: Any, grad: Tensor | None, _: None) -> Tensor | None:
    return None if grad is None else _l2_backward(grad, *ctx.saved_tensors)


_l2.register_autograd(_grad, setup_context=_setup)


def l2(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x / max(|x|, 1e-12); takes no weights."""
    return _l2(x)[0]


def rms(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x / sqrt(mean(x^2) + eps), eps the smallest step of the dtype (``nn.RMSNorm`` with ``eps=None``)."""
    return F.rms_norm(x, x.shape[-1:], weight)


def layer(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """(x - mean) / sqrt(var + 1e-5), as ``nn.LayerNorm``."""
    return F.layer_norm(x, x.shape[-1:], weight, bias)


NORMS: dict[str, Callable[[Tensor, Tensor | None, Tensor | None], Tensor]] = {"l2": l2, "rms": rms, "layer": layer}

# What each norm can learn, so that a layer can make the parameters and the API can check them.
LEARNED: dict[str, tuple[str, ...]] = {"l2": (), "rms": ("weight",), "layer": ("weight", "bias")}
