"""What an attention layer was called with, cut into tiles of queries, so that nothing of size T x T is ever held.

x_ts = scale * phi(q_t) . psi(k_s - c)        min(x, limit) where the kernel has a clamp
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algebra import Mechanism
from ..ops.visibility import Visibility

CELLS = 1 << 16  # scores in a tile: half a megabyte in float64, so that a few such tiles stay in the processor's cache


@dataclass(frozen=True)
class Call:
    """One call of one layer's attention: q (B, H, T, D), k and v (B, Hkv, T, ...), and who sees whom."""

    layer: int
    q: Tensor
    k: Tensor
    v: Tensor
    mechanism: Mechanism
    scale: float
    see: Visibility
    options: dict[str, Any]  # gates, norm weights and the length exponent, where the mechanism has them

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.q.shape[1]

    def kv_head(self, head: int) -> int:
        """The head of keys and values that a query head reads."""
        return head // (self.heads // self.k.shape[1])

    def queries(self, head: int) -> Tensor:
        """Mapped and scaled, (B, T, D), float64."""
        return self.mechanism.kernel.map_vectors(self.q[:, head].double()) * self.scale

    def keys(self, kv_head: int, center: Tensor | None) -> Tensor:
        """Centred and mapped, (B, T, D), float64; ``center`` is (Hkv, D)."""
        k = self.k[:, kv_head].double()
        return self.mechanism.kernel.map_vectors(k if center is None else k - center[kv_head].double())


class Tile(NamedTuple):
    """Some queries of one head and the keys that any of them sees."""

    batch: int
    rows: slice
    x: Tensor  # (rows, keys) scores, 0 where not seen
    seen: Tensor  # (rows, keys)
    v: Tensor  # (keys, E)


def tiles(call: Call, head: int, center: Tensor | None = None, first: int = 0) -> Iterator[Tile]:
    """The tiles of one head, from query ``first`` on; queries that are padding or see nothing are left out of ``seen``."""
    lo, hi = call.see.bounds()
    q, k = call.queries(head), call.keys(call.kv_head(head), center)
    v = call.v[:, call.kv_head(head)].double()
    limit = call.mechanism.kernel.limit
    step = max(1, CELLS // k.shape[1])
    for b in range(len(q)):
        low, high = lo[min(b, len(lo) - 1)], hi[min(b, len(hi) - 1)]
        for start in range(first, q.shape[1], step):
            rows = slice(start, min(start + step, q.shape[1]))
            keys = int(high[rows].max())
            index = torch.arange(keys)
            seen = (index >= low[rows, None]) & (index < high[rows, None])
            if call.see.keep is not None:
                seen &= call.see.keep[b, :keys] & call.see.keep[b, rows, None]
            x = q[b, rows] @ k[b, :keys].T
            x = x if limit is None else x.clamp_(max=limit)
            yield Tile(b, rows, x.masked_fill_(~seen, 0.0), seen, v[b, :keys])
