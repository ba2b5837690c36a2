"""Centring: a constant c per kv head, subtracted from the keys, moves each query's scores by -q.c.

For exp that is a factor per query, which the denominator cancels; for a truncated series it decides how many orders are needed.

    mean   the mean key of the calibration text
    best   a learned one: c minimises the bound on what is cut off, relative to softmax's own sum,

               log sum_t r_t^p exp(-(high_t - q_t.c))        r_t = max(high_t - q_t.c, q_t.c - low_t),  p = 16

           with low_t, high_t the range of query t's scores, on the first three quarters of the text. A constant with as many numbers as
           a head has channels can fit a short text too well, so the last quarter decides how far to go from 0 to the mean, and from
           the mean to the learned point: the candidate with the smallest mean log error over orders 2 .. 48 is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from .heads import HeadSums
from .tiles import Call, tiles

POWER = 16
STEPS = (0.5, 1.0)  # how far from the mean to the learned point
ORDERS = list(range(2, 49, 2))


def mean_center(call: Call) -> Tensor:
    """(kv heads, D): the mean key, padding left out."""
    keep = call.see.keep
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
        learned = _learn(*_rows(call, g, split), start=mean[g])
        candidates = [torch.zeros_like(learned), mean[g], *(mean[g] + s * (learned - mean[g]) for s in STEPS)]
        chosen[g] = min(candidates, key=_held_out(call, g, split))
    return chosen


def _group(call: Call, kv_head: int) -> range:
    size = call.heads // call.k.shape[1]
    return range(kv_head * size, (kv_head + 1) * size)


def _rows(call: Call, kv_head: int, split: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (rows, D) with the largest and the smallest of their scores."""
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for head in _group(call, kv_head):
        q = call.queries(head)
        for tile in tiles(call, head):
            some = tile.seen.any(1) & (torch.arange(tile.rows.start, tile.rows.stop) < split)
            x, seen = tile.x[some], tile.seen[some]
            high = x.masked_fill(~seen, -torch.inf).amax(1)
            low = x.masked_fill(~seen, torch.inf).amin(1)
            found.append((q[tile.batch, tile.rows][some], high, low))
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
            sums = HeadSums(ORDERS, -1.0, 1.0)
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
