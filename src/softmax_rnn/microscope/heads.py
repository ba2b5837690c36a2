"""The statistics of one head, accumulated tile by tile.

terms     mean over all (query, key) pairs of |x|^n / n!, kept as logarithms; the dominant order is the largest one
share     sum_t <A_t^(n) / Z_t, O_t> / sum_t <O_t, O_t>: how much of the softmax output O orders 0..n carry, A^(n) their part
          of the numerator, Z the denominator of softmax itself. It ends at 1; with negative scores it swings on the way
error     |O^(n) - O| / |O| over all queries together, O^(n) = A^(n) / Z^(n): what truncated attention would put out
needed    the smallest order compared from which on the error stays within the tolerance
quantiles from a histogram of 2,048 bins between the smallest and the largest score, so exact to 1/2048 of that range
entropy   of the softmax weights, mean over queries, in nats; ``uniform`` is what equal weights would have
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .series import SAFE, largest_term, last_useful, partial_sums
from .tiles import Call, Tile, tiles

BINS = 2048
QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
WILD = 1e100  # where a signed sum of weights comes near 0, outputs are cut here, and the error stays a number


class HeadSums:
    """What is accumulated; its size depends on the orders alone, not on the number of tokens."""

    def __init__(self, orders: list[int], low: float, high: float) -> None:
        self.orders, self.low, self.high = orders, low, high
        self.histogram = torch.zeros(BINS, dtype=torch.float64)
        self.terms = torch.full((orders[-1] + 1,), -torch.inf, dtype=torch.float64)  # log of the sum of |x|^n / n!
        self.along, self.off = torch.zeros(2, len(orders), dtype=torch.float64).unbind()
        self.size = self.entropy = self.uniform = 0.0
        self.pairs = self.rows = 0

    def add(self, tile: Tile) -> None:
        """One tile, all orders."""
        some = tile.seen.any(1)
        x, seen = tile.x[some], tile.seen[some]
        if not len(x):
            return
        scores = x.masked_fill(~seen, -torch.inf)
        lse = scores.logsumexp(1, keepdim=True)
        p = (scores - lse).exp()
        exact = p @ tile.v
        count = seen.sum(1)
        self.entropy += (lse.squeeze(1) - (p * x).sum(1)).sum().item()
        self.uniform += count.log().sum().item()
        self.size += exact.square().sum().item()
        self.rows += len(x)
        self.pairs += int(count.sum())
        self.histogram += torch.histc(x[seen], BINS, self.low, self.high if self.high > self.low else self.low + 1)
        self._add_series(x, seen, tile.v, exact, lse)

    def _add_series(self, x: Tensor, seen: Tensor, v: Tensor, exact: Tensor, lse: Tensor) -> None:
        top = self.orders[-1]
        sizes = x.abs().amax(1, keepdim=True)
        shift = largest_term(sizes, top)
        last = last_useful(sizes.max().item(), lse.min().item(), top)
        ratio = torch.exp((shift - lse).clamp(max=SAFE))  # back from the row's own units to those of softmax
        place = {n: i for i, n in enumerate(self.orders)}
        along = off = 0.0
        for step in partial_sums(x, seen, shift, [*self.orders, last], last):
            size = torch.linalg.vector_norm(step.term, 1, dim=1, keepdim=True).log() + shift
            self.terms[step.order] = torch.logaddexp(self.terms[step.order], size.logsumexp(0).squeeze())
            if step.weights is None:
                continue
            numerator = step.weights @ v
            output = numerator / step.weights.sum(1, keepdim=True)
            along = (numerator * ratio * exact).sum().item()
            off = (output - exact).nan_to_num(WILD, WILD, -WILD).clamp(-WILD, WILD).square().sum().item()
            if step.order in place:
                self.along[place[step.order]] += along
                self.off[place[step.order]] += off
        for i, n in enumerate(self.orders):  # after the last useful order nothing changes any more
            if n > last:
                self.along[i] += along
                self.off[i] += off

    def result(self, tolerance: float) -> dict[str, Any]:
        """Plain numbers, rounded to what is worth keeping."""
        log10 = ((self.terms - math.log(self.pairs)) / math.log(10)).tolist()
        error = (self.off / self.size).sqrt().tolist() if self.size else [0.0] * len(self.orders)
        share = (self.along / self.size).tolist() if self.size else [1.0] * len(self.orders)
        width = (self.high - self.low) / BINS
        rank = self.histogram.cumsum(0) / self.histogram.sum()
        places = torch.searchsorted(rank, torch.tensor(QUANTILES, dtype=rank.dtype))
        return {
            "low": short(self.low),
            "high": short(self.high),
            "quantiles": [short(self.low + (i + 0.5) * width) for i in places.tolist()],
            "dominant_order": max(range(len(log10)), key=log10.__getitem__),
            "needed_order": needed_order(self.orders, error, tolerance),
            "entropy": short(self.entropy / self.rows),
            "uniform": short(self.uniform / self.rows),
            "log10_terms": [round(t, 2) for t in log10 if math.isfinite(t)],  # ends where terms are negligible
            "share": [short(s) for s in share],
            "error": [short(e) for e in error],
        }


def short(value: float) -> float:
    """Four digits: more would be noise of the text, and a larger file."""
    return float(f"{value:.4g}")


def needed_order(orders: list[int], error: list[float], tolerance: float) -> int | None:
    """The smallest order from which on every error is within the tolerance; None if the last one is not.

    >>> needed_order([0, 1, 2, 3], [1.0, 0.005, 0.5, 0.001], 0.01)
    3
    """
    found = None
    for n, e in zip(reversed(orders), reversed(error), strict=True):
        if not e <= tolerance:
            break
        found = n
    return found


def head_statistics(
    call: Call, head: int, orders: list[int], tolerance: float, center: Tensor | None = None
) -> dict[str, Any] | None:
    """All of the above for one head; None if every token is padding."""
    low, high = math.inf, -math.inf
    for tile in tiles(call, head, center):  # the range first: a histogram needs it
        some = tile.x[tile.seen]
        if len(some):
            low, high = min(low, some.min().item()), max(high, some.max().item())
    if low > high:
        return None
    sums = HeadSums(orders, low, high)
    for tile in tiles(call, head, center):
        sums.add(tile)
    return sums.result(tolerance)
