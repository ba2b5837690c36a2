"""The weight w(x) and its slope w'(x) for a tile of scores, with as few passes over it as possible.

    w = sum_n c_n x^n, or exp (no coefficients), of min(x, limit)

1/n! leaves the range of float32 at n = 35, and x^n much earlier. So polynomials are nested with the ratios of neighbouring coefficients,
c_0 (1 + r_1 x (1 + r_2 x (...))), which for the exponential are 1/n, and a single power is (c^(1/n) x)^n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def _term(x: Tensor, n: int, c: float) -> Tensor:
    """c x^n by squaring; a new tensor. Nothing on the way is larger than the result, or than 1."""
    if n == 0:
        return torch.full_like(x, c)
    square = x * abs(c) ** (1 / n)
    result = None
    while n:
        if n & 1:
            result = square.clone() if result is None else result.mul_(square)
        n >>= 1
        square = square * square if n else square
    assert result is not None
    return result if c > 0 else result.neg_()


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """sum_n c_n x^n, one pass over the tile per order; a new tensor."""
    present = [n for n, c in enumerate(coefficients) if c != 0]
    if not present:
        return torch.zeros_like(x)
    low, high = present[0], present[-1]
    if low == high:
        return _term(x, low, coefficients[low])
    if len(present) < high - low + 1:  # gaps have no ratios
        return torch.stack([_term(x, n, coefficients[n]) for n in present]).sum(0)
    one = x.new_ones(())
    out = torch.mul(x, coefficients[high] / coefficients[high - 1]).add_(1.0)
    for n in range(high - 1, low, -1):
        torch.addcmul(one, x, out, value=coefficients[n] / coefficients[n - 1], out=out)
    if low == 0:
        return out if coefficients[0] == 1.0 else out.mul_(coefficients[0])
    return out.mul_(_term(x, low, coefficients[low]))


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
        slope = _polynomial(clamped, derived)
        if derived and all(map(math.isclose, derived, coefficients)):  # a Taylor series: w = w' + its last term
            w = _term(clamped, len(derived), coefficients[-1]).add_(slope)
        else:
            w = _polynomial(clamped, coefficients)
    if limit is not None:  # the slope at the limit itself is that of below, as for torch.clamp
        above = torch.nextafter(x.new_tensor(limit), x.new_tensor(torch.inf)).item()
        slope = torch.ops.aten.hardtanh_backward(slope, x, -torch.inf, above)
    return w, slope
