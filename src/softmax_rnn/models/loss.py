"""The last layer and the cross-entropy in one: the loss of hidden states, without the logits of all tokens at once.

    sum = Σ_t ( log Σ_v exp(h_t·w_v) − h_t·w_{y_t} )          dsum/d(h_t·w_v) = softmax(h_t·w)_v − [v = y_t]          loss = sum / items

The gradient of a token's logits needs that token alone. So a block of tokens goes all the way at once, from its logits to its part of the
gradients, while the block is in the processor's cache; tokens without a label (-100) are left out. On a CPU this takes two thirds to
three quarters of the time of the plain way for vocabularies of some thousand, and never holds more than a block of logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..backends.operators import operator

BLOCK = 256  # tokens; fewer make the products slow, more leave the cache


def fits(head: nn.Module) -> bool:
    """True if ``head_loss`` computes what this head and the plain loss would, and faster.

    Not for half precision, whose plain loss rounds the logits first.
    """
    return (
        type(head) is nn.Linear
        and head.bias is None
        and head.weight.device.type == "cpu"
        and head.weight.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")
    )


def head_loss(hidden: Tensor, weight: Tensor, labels: Tensor, items: Any = None) -> Tensor:
    """The cross-entropy of ``hidden`` (..., channels) under a head's ``weight`` (vocabulary, channels), summed and divided by ``items``,
    or by the number of labels.

    >>> head_loss(torch.zeros(1, 2, 4), torch.ones(8, 4), torch.tensor([[3, -100]]))   # ln 8
    tensor(2.0794)
    """
    wanted = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    total, _, _ = _sum(hidden.reshape(-1, hidden.shape[-1]), weight, labels.reshape(-1), wanted)
    count = labels.ne(-100).sum() if items is None else items
    return (total / count).to(hidden.dtype)  # a tensor of its own: trainers change losses in place


def _plain(hidden: Tensor, weight: Tensor, labels: Tensor, wanted: bool) -> tuple[Tensor, Tensor, Tensor]:
    each = nn.functional.cross_entropy(hidden @ weight.t(), labels, reduction="none")
    return each.sum(dtype=torch.float64), hidden.new_empty(0), hidden.new_empty(0)


def _forward(hidden: Tensor, weight: Tensor, labels: Tensor, wanted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The sum over the labels and, if ``wanted``, its gradients, block by block; the backward pass only scales them."""
    asked = labels.ne(-100)
    given, right = hidden[asked], labels[asked]
    grad_given, grad_weight = (torch.empty_like(given), torch.zeros_like(weight)) if wanted else (None, None)
    room = hidden.new_empty(min(BLOCK, len(given)), len(weight))
    total = torch.zeros((), dtype=torch.float64)
    for h, y, grad in _blocks(given, right, grad_given):
        x, y = room[: len(h)], y.unsqueeze(1)
        torch.mm(h, weight.t(), out=x)
        x -= x.amax(1, keepdim=True)
        chosen = x.gather(1, y)
        sums = x.exp_().sum(1, keepdim=True)
        total += (sums.log() - chosen).sum(dtype=torch.float64)
        if grad is not None and grad_weight is not None:
            x /= sums
            x.scatter_add_(1, y, x.new_full((), -1.0).expand_as(y))
            torch.mm(x, weight, out=grad)
            grad_weight.addmm_(x.t(), h)
    if grad_given is None or grad_weight is None:
        return total, hidden.new_empty(0), hidden.new_empty(0)
    grad_hidden = torch.zeros_like(hidden)
    grad_hidden[asked] = grad_given
    return total, grad_hidden, grad_weight


def _backward(grad: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    grad_hidden, grad_weight = arguments[-2:]
    return grad_hidden * grad, grad_weight * grad


def _fake(hidden: Tensor, weight: Tensor, labels: Tensor, wanted: bool) -> tuple[Tensor, Tensor, Tensor]:
    total = hidden.new_empty((), dtype=torch.float64)
    if not wanted:
        return total, hidden.new_empty(0), hidden.new_empty(0)
    return total, torch.empty_like(hidden), torch.empty_like(weight)


_sum = operator("head_loss", _forward, _backward, plain=_plain, fake=_fake, constants=2)


def _blocks(hidden: Tensor, labels: Tensor, grad: Tensor | None) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    for start in range(0, len(hidden), BLOCK):
        block = slice(start, start + BLOCK)
        yield hidden[block], labels[block], None if grad is None else grad[block]
