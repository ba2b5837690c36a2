"""Who sees whom, and with what factor: causal order, padding, packed documents, windows and decay, for all forms.

A query sees an interval [lo, hi) of the keys, less the padded ones:

    causal            lo = 0              hi = t + 1 (t counted from the end of the keys, so that a cache comes first)
    bidirectional     lo = 0              hi = number of keys
    packed documents  both cut to the document of the query
    window            lo >= t + 1 - window          (``skip``: hi <= t + 1 - skip, the keys that a window leaves out)

and what it sees has the factor D_ts = exp(c_t - c_s), with the clock c the running sum of log_decay. A form that goes through the
sequence in chunks asks ``clock`` alone: there, another document is a step of -1000 on the clock, whose exponential is 0, so
that documents are the 0/1 case of decay. For a chunk that begins after time b and ends at time e:

    within  exp(c_t - c_s), s <= t        read  exp(c_t - c_b)        write  exp(c_e - c_s)        carry  exp(c_e - c_b)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

NEW_DOCUMENT = 1000.0  # exp(-1000) is 0 in every dtype


@dataclass(frozen=True)
class Context:
    """One answer for all forms. Token-wise tensors belong to the keys; the queries are the last of them if ``causal``.

    Args:
        keep: (B, keys) bool, False = padding.
        documents: (B, keys) the number of the document, ascending.
        clock: (B, Hkv, keys) float64, the running sum of log_decay; None without decay.
        channels: (B, Hkv, keys, D) float64, the same for every channel.
        bias: (B, Hkv, keys) what is subtracted from the logits of each key, for exp; None for nothing.
        reads_last: not causal: every query stands after the last key, and sees that key's document.
    """

    queries: int
    keys: int
    causal: bool
    device: torch.device
    keep: Tensor | None = None
    documents: Tensor | None = None
    window: int | None = None
    skip: int = 0
    clock: Tensor | None = None
    channels: Tensor | None = None
    reads_last: bool = False
    bias: Tensor | None = None

    @property
    def offset(self) -> int:
        """How many keys precede the first query (causal)."""
        return self.keys - self.queries if self.causal else 0

    @property
    def plain(self) -> bool:
        """True if a single causal flag, or none, says who sees whom (padding aside)."""
        return not self.cut and (not self.causal or self.offset == 0 or self.queries == 1)

    @property
    def cut(self) -> bool:
        """Do documents or a window say who sees whom, beyond the order in time?"""
        return self.documents is not None or self.window is not None or self.skip > 0

    @property
    def decays(self) -> bool:
        """Does anything fade?"""
        return self.clock is not None or self.channels is not None

    def bounds(self) -> tuple[Tensor, Tensor]:
        """First and last-plus-one visible key of each query, (B or 1, queries) each."""
        position = torch.arange(self.queries, device=self.device)[None]
        now = position + self.offset + 1 if self.causal else torch.full_like(position, self.keys)
        lo, hi = torch.zeros_like(position), now
        if self.keys == 0:
            return lo, lo
        if self.documents is not None:
            documents = self.documents.contiguous()
            last = documents[:, -1:].expand(-1, self.queries)
            own = (last if self.reads_last else documents[:, self.keys - self.queries :]).contiguous()
            lo = torch.searchsorted(documents, own)
            hi = torch.minimum(torch.searchsorted(documents, own, right=True), hi)
        if self.window is not None:
            lo = torch.maximum(lo, now - self.window)
        if self.skip:
            hi = torch.minimum(hi, now - self.skip)
        return lo, torch.maximum(hi, lo)

    def mask(self) -> Tensor:
        """Who sees whom, as a bool tensor (B or 1, 1, queries, keys)."""
        lo, hi = self.bounds()
        key = torch.arange(self.keys, device=self.device)
        mask = (key >= lo[..., None]) & (key < hi[..., None])
        if self.keep is not None:
            mask = mask & self.keep[:, None]
        return mask[:, None]

    def query_times(self, clock: Tensor) -> Tensor:
        """The clock (B, Hkv, keys, ...) as the queries see it: that of the last tokens, or for queries without keys the end."""
        if self.causal:
            return clock[:, :, self.keys - self.queries :]
        return clock[:, :, -1:].expand(-1, -1, self.queries, *clock.shape[3:])

    def count(self) -> Tensor:
        """How many keys each query sees, (B or 1, 1, queries, 1)."""
        lo, hi = self.bounds()
        if self.keep is not None:
            before = F.pad(self.keep.long().cumsum(-1), (1, 0))
            lo, hi = (before.gather(-1, b.expand(len(before), -1)) for b in (lo, hi))
        return (hi - lo)[:, None, :, None]

    def from_to(self, first: int, last: int) -> Context:
        """The same for the queries first .. last - 1 alone, with the keys up to them (causal, one query after another)."""
        end = self.offset + last

        def cut(x: Tensor | None, axis: int) -> Tensor | None:
            return None if x is None else x.narrow(axis, 0, end)

        return replace(
            self,
            queries=last - first,
            keys=end,
            keep=cut(self.keep, 1),
            documents=cut(self.documents, 1),
            clock=cut(self.clock, 2),
            channels=cut(self.channels, 2),
            bias=cut(self.bias, 2),
        )


def number_documents(segments: Tensor, before: Tensor | None) -> Tensor:
    """Documents as ascending numbers from ids (B, T) that change where one begins; 0 continues ``before`` (B,), the last id seen."""
    first = segments[:, :1] if before is None else before[:, None]
    return (segments != torch.cat([first, segments[:, :-1]], 1)).long().cumsum(1)


def chunk_clock(clock: Tensor | None, documents: Tensor | None, kv_heads: int) -> Tensor | None:
    """The clock of a form that goes through the sequence, documents included: (B * Hkv, T) float64, or None if nothing fades."""
    if documents is not None:
        steps = documents.to(torch.float64)[:, None] * -NEW_DOCUMENT
        clock = steps.expand(-1, kv_heads, -1) if clock is None else clock + steps
    return None if clock is None else clock.flatten(0, 1)


def decayed_count(clock: Tensor, keep: Tensor | None, context: Context, block: int = 128) -> Tensor:
    """sum of D over the visible keys: (B, Hkv, queries, 1), in blocks of queries against all keys they see."""
    lo, hi = context.bounds()
    key = torch.arange(context.keys, device=context.device)
    now = context.query_times(clock)
    out = []
    for i in range(0, context.queries, block):
        rows = slice(i, i + block)
        mask = (key >= lo[:, rows, None]) & (key < hi[:, rows, None])
        mask = (mask if keep is None else mask & keep[:, None])[:, None]
        difference = (now[:, :, rows, None] - clock[:, :, None]).masked_fill(~mask, -torch.inf)
        out.append(difference.exp().sum(-1))
    if not out:
        return clock.new_zeros(*clock.shape[:2], 0, 1)
    return torch.cat(out, 2)[..., None]
