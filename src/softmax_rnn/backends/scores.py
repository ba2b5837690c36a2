"""From vectors to weights, for a tile of scores: scores under channel decay, and the weight of a score with its slope.

**Scores** x_ts = sum_i q_ti k_si exp(a_ti - a_si), where a is the clock of each channel.

Written as one product, (q exp(a_t)) . (k exp(-a_s)) overflows after a few dozen tokens. So the keys are met in two ways:

    keys before a block of queries    both sides relative to the end of those keys, where each exponent is at most 0
    keys inside the block             relative to the beginning of the block, if no channel falls by more than e^-60 inside it;
                                      otherwise in blocks of 16, whose own 16 x 16 pairs are written out

The gradient of the clocks comes with the others: x depends on them only through q exp(a) and k exp(-a), so da_t = q_t dq_t and
da_s = -k_s dk_s. The pair s = t, which does not fade, is in both and cancels up to rounding: where its weight is 1e3 times those of
all other keys, what is left in float32 has few digits.

**Weights** w(x) and slopes w'(x), with as few passes over the tile as possible.

    w = sum_n c_n x^n, or exp (no coefficients), of min(x, limit)

1/n! leaves the range of float32 at n = 35, and x^n much earlier. So polynomials are nested with the ratios of neighbouring coefficients,
c_0 (1 + r_1 x (1 + r_2 x (...))), which for the exponential are 1/n, and a single power is (c^(1/n) x)^n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

SUB = 16
RANGE = 60.0  # e^60 times e^-60 is still exact in float32


def _past(q: Tensor, k: Tensor, aq: Tensor, ak: Tensor, end: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys relative to the clock ``end`` (M, 1, d) between them, and the factors used."""
    fq, fk = (aq - end).to(q.dtype).exp_(), (end - ak).to(k.dtype).exp_()
    return q * fq[:, None], k * fk, fq, fk


def _narrow(aq: Tensor, ak: Tensor) -> bool:
    """Is the fall inside the block small enough for one product?"""
    return aq.numel() == 0 or bool(
        (ak[:, :1] - torch.minimum(aq.amin(1, keepdim=True), ak.amin(1, keepdim=True))).max() < RANGE
    )


def _pairs(aq: Tensor, ak: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(a_t - a_s) for the pairs s <= t of a small block, 0 elsewhere: (M, C, C, d)."""
    C = aq.shape[1]
    later = torch.ones(C, C, dtype=torch.bool, device=aq.device).triu(1)[..., None]
    return (aq[:, :, None] - ak[:, None]).masked_fill(later, -torch.inf).to(dtype).exp_()


def inside(q: Tensor, k: Tensor, aq: Tensor, ak: Tensor) -> Tensor:
    """Scores of a block with itself: q (M, G, C, d), k (M, C, d), clocks (M, C, d) -> (M, G, C, C); 0 where s > t."""
    M, G, C, _ = q.shape
    if _narrow(aq, ak):
        left, right, *_ = _past(q, k, aq, ak, ak[:, :1])
        return torch.matmul(left, right.mT[:, None]).tril_()  # above, e^60 would be, whose powers no mask makes 0
    if C <= SUB:
        pairs = _pairs(aq, ak, q.dtype).mul_(k[:, None])  # (M, C, C, d)
        return torch.matmul(q.transpose(1, 2), pairs.mT).transpose(1, 2)  # (M, C, G, C) -> (M, G, C, C)
    x = q.new_zeros(M, G, C, C)
    for r in range(0, C, SUB):
        rows = slice(r, min(C, r + SUB))
        x[:, :, rows, rows] = inside(q[:, :, rows], k[:, rows], aq[:, rows], ak[:, rows])
        if r:
            left, right, *_ = _past(q[:, :, rows], k[:, :r], aq[:, rows], ak[:, :r], ak[:, r - 1 : r])
            x[:, :, rows, :r] = torch.matmul(left, right.mT[:, None])
    return x


def inside_backward(dx: Tensor, q: Tensor, k: Tensor, aq: Tensor, ak: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of q and k; dx must be 0 where s > t."""
    C = q.shape[2]
    if _narrow(aq, ak):
        left, right, fq, fk = _past(q, k, aq, ak, ak[:, :1])
        return torch.matmul(dx, right[:, None]).mul_(fq[:, None]), torch.matmul(dx.mT, left).sum(1).mul_(fk)
    if C <= SUB:
        e = _pairs(aq, ak, q.dtype)
        dq = torch.matmul(dx.transpose(1, 2), e * k[:, None]).transpose(1, 2)  # (M, C, G, d)
        dk = (torch.matmul(dx.permute(0, 2, 3, 1), q.transpose(1, 2)) * e).sum(1)  # (M, t, s, d)
        return dq, dk
    dq, dk = torch.zeros_like(q), torch.zeros_like(k)
    for r in range(0, C, SUB):
        rows = slice(r, min(C, r + SUB))
        a, b = inside_backward(dx[:, :, rows, rows], q[:, :, rows], k[:, rows], aq[:, rows], ak[:, rows])
        dq[:, :, rows] += a
        dk[:, rows] += b
        if r:
            a, b = before_backward(dx[:, :, rows, :r], q[:, :, rows], k[:, :r], aq[:, rows], ak[:, :r])
            dq[:, :, rows] += a
            dk[:, :r] += b
    return dq, dk


def before(q: Tensor, k: Tensor, aq: Tensor, ak: Tensor) -> Tensor:
    """Scores of a block of queries with the keys before it: q (M, G, C, d), k (M, L, d) -> (M, G, C, L)."""
    left, right, *_ = _past(q, k, aq, ak, ak[:, -1:])
    return torch.matmul(left, right.mT[:, None])


def before_backward(dx: Tensor, q: Tensor, k: Tensor, aq: Tensor, ak: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of q and k."""
    left, right, fq, fk = _past(q, k, aq, ak, ak[:, -1:])
    return torch.matmul(dx, right[:, None]).mul_(fq[:, None]), torch.matmul(dx.mT, left).sum(1).mul_(fk)


def _term(x: Tensor, n: int, c: float) -> Tensor:
    """c x^n by squaring; a new tensor. Nothing on the way is larger than the result, or than 1."""
    if n == 0:
        return torch.full_like(x, c)
    square = x * abs(c) ** (1 / n)
    result = None
    while n:
        if n & 1:
            result = square if result is None else result.mul_(square)
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
    out = torch.add(one, x, alpha=coefficients[high] / coefficients[high - 1])
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
    """w(x) and w'(x), which for exp may be the same tensor; may overwrite x."""
    if limit is not None and x.device.type == "cpu" and x.numel() and bool(x.amax() <= limit):
        limit = None  # most often nothing is above it, and to ask is one pass instead of three
    clamped = x if limit is None else x.clamp(max=limit)
    if not coefficients:
        w = clamped.exp_()
        slope = w
    else:
        derived = [n * c for n, c in enumerate(coefficients)][1:]
        slope = _polynomial(clamped, derived)
        if derived and all(map(math.isclose, derived, coefficients)):  # a Taylor series: w = w' + its last term
            n, last = len(derived), coefficients[-1]
            w = (
                torch.addcmul(slope, x, x, value=last)
                if n == 2 and limit is None
                else _term(clamped, n, last).add_(slope)
            )
        else:
            w = _polynomial(clamped, coefficients)
    if limit is not None:  # the slope at the limit itself is that of below, as for torch.clamp
        above = torch.nextafter(x.new_tensor(limit), x.new_tensor(torch.inf)).item()
        slope = torch.ops.aten.hardtanh_backward(slope, x, -torch.inf, above)
    return w, slope
