"""Pointwise steps with a backward pass of their own, which reads each tensor once; autograd's would do so several times."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("softmax_rnn::elu_plus_one", mutates_args=())
def _elu_plus_one(x: Tensor) -> Tensor:
    # exp(x) itself for x < 0: the textbook form, expm1(x) + 1, cancels to 0 in low precision.
    return x.clamp(max=0).exp_().add_(x.clamp(min=0))


@torch.library.custom_op("softmax_rnn::elu_plus_one_backward", mutates_args=())
def _elu_plus_one_backward(grad: Tensor, y: Tensor) -> Tensor:
    return y.clamp(max=1).mul_(grad)  # the slope is exp(x) = y where y < 1, and 1 above


@torch.library.custom_op("softmax_rnn::divide", mutates_args=())
def _divide(x: Tensor, by: Tensor) -> Tensor:
    return x / by


@torch.library.custom_op("softmax_rnn::divide_backward", mutates_args=())
def _divide_backward(grad: Tensor, y: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    dx = grad / by
    return dx, (dx * y).sum(-1, keepdim=True).neg_()  # vecdot would be a matrix product, which autocast rounds


@_elu_plus_one.register_fake
def _(x):  # type: ignore[no-untyped-def]
    return torch.empty_like(x)


@_elu_plus_one_backward.register_fake
def _(grad, y):  # type: ignore[no-untyped-def]
    return torch.empty_like(y)


@_divide.register_fake
def _(x, by):  # type: ignore[no-untyped-def]
    return x / by


@_divide_backward.register_fake
def _(grad, y, by):  # type: ignore[no-untyped-def]
    return grad / by, torch.empty_like(by)


def _keep_output(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _keep_output_and_divisor(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[1])


_elu_plus_one.register_autograd(
    lambda ctx, grad: _elu_plus_one_backward(grad, *ctx.saved_tensors), setup_context=_keep_output
)
_divide.register_autograd(
    lambda ctx, grad: _divide_backward(grad, *ctx.saved_tensors), setup_context=_keep_output_and_divisor
)


def elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1, the feature map of Katharopoulos et al. (2020), accurate for very negative x."""
    return _elu_plus_one(x)


def divide(x: Tensor, by: Tensor) -> Tensor:
    """x (..., E) divided by one number for each vector, (..., 1)."""
    return _divide(x, by)
