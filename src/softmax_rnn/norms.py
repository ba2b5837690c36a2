"""Vector norms over the head dimension, with the authors' epsilons; the paper's replacement for G_t (eq. 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

EPS = 1e-12  # that of F.normalize


class _L2(torch.autograd.Function):
    """``F.normalize`` over the last axis, with a backward pass that reads each tensor once."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / size.clamp(min=EPS), size

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        y, size = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, y).unsqueeze(-1)  # what changes the length of y, which is 1
        along = torch.where(size > EPS, along, torch.zeros_like(along))  # below eps the divisor is constant
        return torch.addcmul(grad, along, y, value=-1) / size.clamp(min=EPS)


def l2(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x / max(|x|, 1e-12); takes no weights."""
    return _L2.apply(x)[0]


def rms(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x / sqrt(mean(x^2) + eps), eps the smallest step of the dtype (``nn.RMSNorm`` with ``eps=None``)."""
    return F.rms_norm(x, x.shape[-1:], weight)


def layer(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """(x - mean) / sqrt(var + 1e-5), as ``nn.LayerNorm``."""
    return F.layer_norm(x, x.shape[-1:], weight, bias)


NORMS: dict[str, Callable[[Tensor, Tensor | None, Tensor | None], Tensor]] = {"l2": l2, "rms": rms, "layer": layer}

# What each norm can learn, so that a layer can make the parameters and the API can check them.
LEARNED: dict[str, tuple[str, ...]] = {"l2": (), "rms": ("weight",), "layer": ("weight", "bias")}
