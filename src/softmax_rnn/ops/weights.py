"""The weight w(x) and its slope w'(x) for a tile of scores, with as few passes over it as possible.

w = sum_n c_n x^n, or exp (no coefficients), of min(x, limit)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def _power(x: Tensor, n: int) -> Tensor:
    """x^n by squaring; a new tensor."""
    result, square = None, x
    while n:
        if n & 1:
            result = square.clone() if result is None else result.mul_(square)
        n >>= 1
        square = square * square if n else square
    return torch.ones_like(x) if result is None else result


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """sum_n c_n x^n by Horner's rule, one pass over the tile per order; a new tensor."""
    low = next((n for n, c in enumerate(coefficients) if c != 0), 0)
    head = coefficients[low:]
    if len(head) == 1:
        return _power(x, low).mul_(head[0])
    out = torch.mul(x, head[-1]).add_(head[-2])
    for c in reversed(head[:-2]):
        torch.addcmul(x.new_tensor(c), x, out, out=out)
    return out if low == 0 else out.mul_(_power(x, low))


def weights(x: Tensor, coefficients: Sequence[float], limit: float | None = None) -> Tensor:
    """w(x); overwrites x."""
    x = x if limit is None else x.clamp_(max=limit)
    return _polynomial(x, coefficients) if coefficients else x.exp_()


def weights_and_slopes(x: Tensor, coefficients: Sequence[float], limit: float | None = None) -> tuple[Tensor, Tensor]:
    """w(x) and w'(x)."""
    clamped = x if limit is None else x.clamp(max=limit)
    if not coefficients:
        w = clamped.exp() if limit is None else clamped.exp_()
        slope = w
    else:
        derived = [n * c for n, c in enumerate(coefficients)][1:]
        slope = _polynomial(clamped, derived) if derived else torch.zeros_like(clamped)
        if derived == list(coefficients[:-1]):  # a Taylor series: w = w' + its last term
            w = _power(clamped, len(derived)).mul_(coefficients[-1]).add_(slope)
        else:
            w = _polynomial(clamped, coefficients)
    if limit is not None:
        slope = torch.ops.aten.hardtanh_backward(slope, x, -torch.inf, limit)
    return w, slope
