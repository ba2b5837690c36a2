"""Partial sums of the exponential's series over a tile of scores, in float64, at any size of score.

    t_n = x^n / n!        w_n = t_0 + ... + t_n        for n = 0 .. N, where a key is seen; 0 where not

Two things go wrong if this is done as it reads, and real models meet both:

1. t_n overflows. So each query is divided by its largest term exp(shift), and where even that ratio leaves the range of
   float64, the terms are made from logarithms.
2. For x < 0 the terms alternate, and w_n is lost in their rounding (x = -60: terms of 1e24, a sum of 1e-26). Up to n = |x| the
   last term leads and nothing is lost; from there on the sum is taken from the other end,

       w_n = exp(x) - t_{n+1} M        M = 1F1(1; n+2; x) = 1 / (1 + c_1 y / (1 - c_2 y / (1 + c_3 y / ...)))        y = -x

   with the coefficients of Gauss's continued fraction, which converges at once for n >= y.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

DEEP = -16.0  # below this score, plain float64 sums are off by more than 1e-10
DEPTH = 14  # of the continued fraction: relative error below 1e-9 for y >= 16, n >= y
SAFE = 600.0  # exp(-SAFE) is far from the end of float64
NEGLIGIBLE = 45.0  # exp(-45) = 3e-20 of a query's sum of weights


class Step(NamedTuple):
    """Order n of a tile: its terms and, at the orders asked for, the sum so far; both (queries, keys), times exp(-shift)."""

    order: int
    term: Tensor
    weights: Tensor | None


def ladder(top: int) -> list[int]:
    """The orders at which outputs are compared: every one up to 12, then in steps of about a tenth to a sixth.

    >>> ladder(24)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 24]
    """
    steps = [*range(13), *range(14, 33, 2), *range(36, 65, 4), *range(72, 129, 8)]
    return sorted({n for n in steps if n <= top} | {top})


def largest_term(size: Tensor, top: int) -> Tensor:
    """log of the largest |x|^n / n! for n <= top, at |x| = size; at least 0, which is n = 0."""
    n = size.floor().clamp(0, top)
    return torch.xlogy(n, size) - torch.lgamma(n + 1)


def last_useful(size: float, smallest_sum: float, top: int) -> int:
    """The order after which all terms together are negligible against exp(smallest_sum), or ``top``."""
    for n in range(min(top, math.ceil(2 * size)), top):
        if (n + 1) * math.log(max(size, 1e-300)) - math.lgamma(n + 2) < smallest_sum - NEGLIGIBLE:
            return n
    return top


def partial_sums(x: Tensor, seen: Tensor, shift: Tensor, orders: Sequence[int], last: int) -> Iterator[Step]:
    """Orders 0 .. last of a tile x (queries, keys), ``seen`` bool, shift (queries, 1). The tensors are overwritten by the next step.

    >>> x = torch.tensor([[-60.0, 1.0]], dtype=torch.float64)
    >>> steps = partial_sums(x, x == x, largest_term(x.abs().amax(1, keepdim=True), 128), [128], 128)
    >>> len([step.order for step in steps])
    129
    """
    wanted = set(orders)
    logs = x.abs().log() if shift.numel() and shift.max().item() > SAFE else None
    term = seen * torch.exp(-shift)
    total = term.clone()
    zero = x.new_zeros(())
    deep = torch.nonzero(((x < DEEP) & seen).flatten()).squeeze(1)
    depth = x.flatten()[deep].neg()
    floor = torch.exp((x - shift).flatten()[deep])
    for n in range(last + 1):
        if n and logs is None:
            torch.addcmul(zero, term, x, value=1 / n, out=term)
        elif n:
            assert logs is not None
            term = torch.exp(n * logs - math.lgamma(n + 1) - shift) * seen * (x.sign() if n % 2 else 1.0)
        if n:
            total.add_(term)
        if n in wanted and len(deep):
            _from_the_other_end(n, total, term, deep, depth, floor)
        yield Step(n, term, total if n in wanted else None)


def _from_the_other_end(n: int, total: Tensor, term: Tensor, deep: Tensor, depth: Tensor, floor: Tensor) -> None:
    """Put exp(x) - t_{n+1} M where x is far below 0 and n past its size; t_{n+1} = -t_n y / (n + 1)."""
    past = depth <= n
    index, y = deep[past], depth[past]
    following = term.flatten()[index] * y / -(n + 1)
    total.view(-1)[index] = floor[past] - following * tail_ratio(n, y)


def tail_ratio(n: int, y: Tensor) -> Tensor:
    """M = sum_{k > n} t_k / t_{n+1} at x = -y, for n >= y."""
    b = n + 1
    out = torch.ones_like(y)
    for i in range(DEPTH, 0, -1):
        j = (i + 1) // 2
        top = b + j - 1 if i % 2 else -j
        out = 1 + (top / ((b + i - 1) * (b + i))) * y / out
    return 1 / out
