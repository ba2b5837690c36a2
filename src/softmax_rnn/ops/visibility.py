"""Which keys a query sees: always an interval [lo, hi) of the keys, less the padded ones.

    causal            lo = 0              hi = t + 1 (t counted from the end of the keys, so that a cache comes first)
    bidirectional     lo = 0              hi = number of keys
    packed documents  both cut to the document of the query

Documents are runs of equal ``segment_ids``, so they are contiguous by definition.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Visibility:
    """``keep`` (B, keys) bool: False = padding; ``runs`` (B, keys) int: number of the document, ascending."""

    queries: int
    keys: int
    causal: bool
    device: torch.device
    keep: Tensor | None = None
    runs: Tensor | None = None
    reads_last: bool = False  # not causal: every query stands after the last key, and sees that key's document

    @property
    def offset(self) -> int:
        """How many keys precede the first query (causal)."""
        return self.keys - self.queries if self.causal else 0

    @property
    def plain(self) -> bool:
        """True if a single causal flag, or none, says it all (padding aside)."""
        return self.runs is None and (not self.causal or self.offset == 0 or self.queries == 1)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """First and last-plus-one visible key of each query, (B or 1, queries) each."""
        position = torch.arange(self.queries, device=self.device)[None]
        lo = torch.zeros_like(position)
        hi = position + self.offset + 1 if self.causal else torch.full_like(position, self.keys)
        if self.keys == 0:
            return lo, lo
        if self.runs is not None:
            own = (
                self.runs[:, -1:].expand(-1, self.queries)
                if self.reads_last
                else self.runs[:, self.keys - self.queries :]
            )
            own = own.contiguous()
            runs = self.runs.contiguous()
            lo = torch.searchsorted(runs, own)
            hi = torch.minimum(torch.searchsorted(runs, own, right=True), hi)
        return lo, hi

    def dense(self) -> Tensor:
        """The mask as a bool tensor (B or 1, 1, queries, keys)."""
        lo, hi = self.bounds()
        key = torch.arange(self.keys, device=self.device)
        mask = (key >= lo[..., None]) & (key < hi[..., None])
        if self.keep is not None:
            mask = mask & self.keep[:, None]
        return mask[:, None]

    def count(self) -> Tensor:
        """How many keys each query sees, (B or 1, 1, queries, 1)."""
        lo, hi = self.bounds()
        if self.keep is not None:
            before = F.pad(self.keep.long().cumsum(-1), (1, 0))
            lo, hi = (before.gather(-1, b.expand(len(before), -1)) for b in (lo, hi))
        return (hi - lo)[:, None, :, None]
