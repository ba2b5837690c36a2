"""What a form computes, and the pointwise steps that turn it into the output. Shared by all forms.

    O_t = post_gate_t * Norm( pre_gate_t * A_t / Z_t )

For exp the numerator is carried as softmax output times exp(lse). Under a vector norm that positive factor, and any
denominator, cancels; it is then left out, so the norm's epsilon is relative to the softmax output (docs/adr/0003).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..algebra import Mechanism
from ..norms import NORMS


class Sums(NamedTuple):
    """Numerator (B, H, T, E) and sum of weights (B, H, T, 1), or softmax output and its log-sum-exp (B, H, T, 1)."""

    numerator: Tensor
    weight_sum: Tensor | None
    lse: Tensor | None


def with_ones(v: Tensor, keep: Tensor | None) -> Tensor:
    """Values with one more column, 1 for real keys and 0 for padding: its weighted sum is the sum of weights."""
    ones = torch.ones_like(v[..., :1])
    return torch.cat([v, ones if keep is None else ones * keep[:, None, :, None]], -1)


def needs_lse(mechanism: Mechanism) -> bool:
    """Does an exp mechanism need more than the softmax output?"""
    return mechanism.norm is None and not mechanism.denominator.cancels_scale


def finish(
    mechanism: Mechanism,
    sums: Sums,
    count: Tensor,
    dtype: torch.dtype,
    *,
    output_gate: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    length_exponent: Tensor | None,
    may_be_empty: bool,
) -> Tensor:
    """Denominator, gates and norm; rows that see no key become 0."""
    x = sums.numerator
    wide = torch.promote_types(x.dtype, torch.float32)
    gate = None if output_gate is None else output_gate.to(wide)[..., None]
    if not mechanism.kernel.exponential:
        x = mechanism.denominator.divide(x, sums.weight_sum, count, length_exponent)
    elif sums.lse is not None and needs_lse(mechanism):
        factor = mechanism.denominator.factor(sums.lse, count, length_exponent)
        x = x if factor is None else x.to(wide) * factor
    if gate is not None and mechanism.output_gate == "before_norm":
        x = x.to(wide) * gate
    if mechanism.norm is not None:
        weight, bias = (None if p is None else p.to(wide) for p in (norm_weight, norm_bias))
        x = NORMS[mechanism.norm](x.to(wide), weight, bias)
    if gate is not None and mechanism.output_gate == "after_norm":
        x = x * gate
    if may_be_empty:
        x = torch.where(count > 0, x, torch.zeros_like(x))
    return x.to(dtype)
