"""What is made of the tiles of a layer: the statistics of each head, its output with the series cut, and constants that bring scores
close to 0.

terms     mean over all (query, key) pairs of |x|^n / n!, kept as logarithms; the dominant order is the largest one
share     sum_t <A_t^(n) / Z_t, O_t> / sum_t <O_t, O_t>: how much of the softmax output O orders 0..n carry, A^(n) their part
          of the numerator, Z the denominator of softmax itself. It ends at 1; with negative scores it swings on the way
error     |O^(n) - O| / |O| over all queries together, O^(n) = A^(n) / Z^(n): what truncated attention would put out
needed    the smallest order compared from which on the error stays within the tolerance
quantiles from a histogram of 2,048 bins between the smallest and the largest score, so exact to 1/2048 of that range
entropy   of the softmax weights, mean over queries, in nats; ``uniform`` is what equal weights would have

Centring: a constant c per kv head, subtracted from the keys, moves each query's scores by -q.c. For exp that is a factor per query,
which the denominator cancels; for a truncated series it decides how many orders are needed.

    mean   the mean key of the calibration text
    best   a learned one: c minimises the bound on what is cut off, relative to softmax's own sum,

               log sum_t r_t^p exp(-(high_t - q_t.c))        r_t = max(high_t - q_t.c, q_t.c - low_t),  p = 16

           with low_t, high_t the range of query t's scores, on the first three quarters of the text. A constant with as many numbers as
           a head has channels can fit a short text too well, so the last quarter decides how far to go from 0 to the mean, and from
           the mean to the learned point: the candidate with the smallest mean log error over orders 2 .. 48 is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import Taylor
from ..api import finish
from ..problem import Sums
from .probe import SAFE, Call, Tile, largest_term, last_useful, partial_sums, tiles

BINS = 2048
QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
WILD = 1e100  # where a signed sum of weights comes near 0, outputs are cut here, and the error stays a number

POWER = 16  # of the bound that a learned center minimises
STEPS = (0.5, 1.0)  # how far from the mean to the learned point
CENTER_ORDERS = list(range(2, 49, 2))


class HeadSums:
    """What is accumulated; its size depends on the orders alone, not on the number of tokens."""

    def __init__(self, orders: list[int], low: float, high: float) -> None:
        self.orders, self.low, self.high = orders, low, high
        self.histogram = torch.zeros(BINS, dtype=torch.float64)
        self.terms = torch.full((orders[-1] + 1,), -torch.inf, dtype=torch.float64)  # log of the sum of |x|^n / n!
        self.along, self.off = torch.zeros(2, len(orders), dtype=torch.float64).unbind()
        self.size = self.entropy = self.uniform = 0.0
        self.pairs = self.queries = 0

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
        self.queries += len(x)
        self.pairs += int(count.sum())
        self.histogram += torch.histc(x[seen], BINS, self.low, self.high if self.high > self.low else self.low + 1)
        self._add_series(x, seen, tile.v, exact, lse)

    def _add_series(self, x: Tensor, seen: Tensor, v: Tensor, exact: Tensor, lse: Tensor) -> None:
        top = self.orders[-1]
        sizes = x.abs().amax(1, keepdim=True)
        shift = largest_term(sizes, top)
        last = last_useful(sizes.max().item(), lse.min().item(), top)
        ratio = torch.exp((shift - lse).clamp(max=SAFE))  # back from the query's own units to those of softmax
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
            "entropy": short(self.entropy / self.queries),
            "uniform": short(self.uniform / self.queries),
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


def truncated(call: Call, order: int, center: Tensor | None = None) -> Tensor:
    """The layer's output (B, H, T, E) with w(x) = sum_{n <= order} x^n / n!; denominator, gates and norm stay the layer's."""
    b, h, t, _ = call.q.shape
    numerator = torch.zeros(b, h, t, call.v.shape[-1], dtype=torch.float64)
    total = torch.zeros(b, h, t, 1, dtype=torch.float64)
    for head in range(h):
        for tile in tiles(call, head, center):
            weights, shift = _weights(tile, order)
            if not call.mechanism.cancels_scale:  # then back to the query's own units
                weights = weights * shift.clamp(max=SAFE).exp()
            numerator[tile.batch, head, tile.queries] = weights @ tile.v
            total[tile.batch, head, tile.queries] = weights.sum(1, keepdim=True)
    series = replace(call.mechanism, kernel=Taylor(order), allow_signed=True)
    tensors = {name: x for name, x in call.options.items() if x is not None}
    return finish(series, Sums(numerator, total, None), call.visible.count(), call.v.dtype, tensors)


def _weights(tile: Tile, order: int) -> tuple[Tensor, Tensor]:
    """The weights of one tile (queries, keys), times exp(-shift), and the shift (queries, 1)."""
    sizes = tile.x.abs().amax(1, keepdim=True)
    shift = largest_term(sizes, order)
    lse = torch.where(tile.seen, tile.x, -torch.inf).logsumexp(1)
    lse = lse[lse.isfinite()]
    last = last_useful(sizes.max().item(), lse.min().item() if len(lse) else 0.0, order)
    for step in partial_sums(tile.x, tile.seen, shift, [last], last):
        weights = step.weights
    assert weights is not None
    return weights, shift


def mean_center(call: Call) -> Tensor:
    """(kv heads, D): the mean key, padding left out."""
    keep = call.visible.keep
    k = call.k.double()
    if keep is None:
        return k.mean((0, 2))
    return (k * keep[:, None, :, None]).sum((0, 2)) / keep.sum()


def best_center(call: Call) -> Tensor:
    """(kv heads, D): the learned one, as far as it holds on text it was not learned from."""
    mean = mean_center(call)
    chosen = torch.empty_like(mean)
    split = call.q.shape[2] * 3 // 4
    for g in range(len(mean)):
        learned = _learn(*_ranges(call, g, split), start=mean[g])
        candidates = [torch.zeros_like(learned), mean[g], *(mean[g] + s * (learned - mean[g]) for s in STEPS)]
        chosen[g] = min(candidates, key=_held_out(call, g, split))
    return chosen


def _group(call: Call, kv_head: int) -> range:
    size = call.heads // call.k.shape[1]
    return range(kv_head * size, (kv_head + 1) * size)


def _ranges(call: Call, kv_head: int, split: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (some, D) with the largest and the smallest of their scores."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for head in _group(call, kv_head):
        q = call.queries(head)
        for tile in tiles(call, head):
            some = tile.seen.any(1) & (torch.arange(tile.queries.start, tile.queries.stop) < split)
            x, seen = tile.x[some], tile.seen[some]
            high = x.masked_fill(~seen, -torch.inf).amax(1)
            low = x.masked_fill(~seen, torch.inf).amin(1)
            found.append((q[tile.batch, tile.queries][some], high, low))
    q, high, low = (torch.cat(parts) for parts in zip(*found, strict=True))
    return q, high, low


def _learn(q: Tensor, high: Tensor, low: Tensor, start: Tensor) -> Tensor:
    c = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([c], max_iter=30, line_search_fn="strong_wolfe")
    weight_decay = 1e-6

    def objective() -> Tensor:
        optimizer.zero_grad()
        moved = q @ c
        size = torch.maximum(high - moved, moved - low).clamp(min=1e-3)
        value = torch.logsumexp(POWER * size.log() - (high - moved), 0) / POWER + weight_decay * c.square().sum()
        value.backward()
        return value.detach()

    with torch.enable_grad():
        optimizer.step(objective)
    return c.detach() if c.isfinite().all() else start


def _held_out(call: Call, kv_head: int, split: int) -> Callable[[Tensor], float]:
    """The mean log10 error over the orders, on queries from ``split`` on, of all heads that share these keys."""

    def cost(center: Tensor) -> float:
        everywhere = center.expand(call.k.shape[1], -1)
        logs = 0.0
        for head in _group(call, kv_head):
            sums = HeadSums(CENTER_ORDERS, -1.0, 1.0)
            for tile in tiles(call, head, everywhere, first=split):
                sums.add(tile)
            error = (sums.off / max(sums.size, 1e-300)).sqrt().clamp(1e-4, 10.0)
            logs += error.log10().mean().item()
        return logs

    return cost


def save_centers(centers: dict[int, Tensor], path: Path) -> None:
    """As ``patch(model, mechanism, center=path)`` reads them."""
    from safetensors.torch import save_file

    save_file({f"layers.{i}.center": c.float().contiguous() for i, c in sorted(centers.items())}, path)
