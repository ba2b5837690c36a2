"""The third primitive: a sequence through a state of constant size, in chunks, with or without the delta rule.

    scan         A_t = sum_s D_ts w(x_ts) v_s                          order 1: linear.py; every order: scan.py
    delta_scan   the same over what the delta rule writes              order 1: linear_delta.py; every order: delta.py, then scan.py

Here the length is filled up to whole chunks, and large batches are cut so that the features of a chunk fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import linear, linear_delta
from .delta import delta_operator
from .scan import LARGEST, default_chunk, scan_operator

Clocks = tuple[Tensor, Tensor] | None  # of queries and keys: (N, T), for channels (N, T, D), float64


class Sequences(NamedTuple):
    """q (N, G, T, D), k (N, T, D), v (N, T, E) and the state (N, rows, E) that they go on from, which stands at time 0."""

    q: Tensor
    k: Tensor
    v: Tensor
    state: Tensor
    clock: Clocks = None
    channels: Clocks = None

    def chunk(self, asked: int | None) -> int:
        """How long a chunk is."""
        chunk = asked or default_chunk(self.state.shape[1], self.q.shape[1])
        return chunk if torch.compiler.is_exporting() else min(chunk, self.k.shape[1])

    def whole(self, chunk: int) -> tuple[list[Tensor | None], int]:
        """q, k, v, state and the four clocks, filled up to whole chunks, and with how many tokens.

        Zero values write nothing, and the clock stands still; the outputs of what was filled in are cut off.
        """
        T, clocks = self.k.shape[1], [*(self.clock or (None, None)), *(self.channels or (None, None))]
        exporting = torch.compiler.is_exporting()  # then T may be any length, and no decision may depend on it
        pad = chunk - T % chunk if exporting else -T % chunk
        q, k, v = self.q, self.k, self.v
        if exporting or pad:
            q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
            last = torch.arange(T + pad, device=k.device).clamp(max=T - 1)
            clocks = [None if x is None else x.index_select(1, last) for x in clocks]
        return [None if x is None else x.contiguous() for x in (q, k, v, self.state, *clocks)], pad

    def few(self, tensors: list[Tensor | None], chunk: int) -> Iterator[list[Any]]:
        """Some sequences at a time."""
        step = max(1, LARGEST // (self.q.shape[1] * self.state.shape[1] * chunk))
        for n in range(0, len(self.q), step):
            yield [None if x is None else x[n : n + step] for x in tensors]


def _joined(parts: list[tuple[Tensor, ...]], T: int) -> tuple[Tensor, Tensor]:
    out, state = parts[0][:2] if len(parts) == 1 else (torch.cat(x) for x in list(zip(*parts, strict=True))[:2])
    out = out[:, :, :T]
    return out.contiguous() if torch.compiler.is_exporting() else out, state


def _order_1(coefficients: Sequence[float]) -> bool:
    """What linear.py computes. In an exported program, whose length may be any, it would keep a number of states that nobody knows."""
    return tuple(coefficients) == linear.ORDER_1 and not torch.compiler.is_exporting()


def scan(x: Sequences, coefficients: Sequence[float], chunk_size: int | None = None) -> tuple[Tensor, Tensor]:
    """The output (N, G, T, E) and the state after. T = 0 is allowed."""
    if x.q.numel() == 0:
        nothing = (x.q.sum() + x.k.sum() + x.v.sum()) * 0  # in the graph: gradients are zeros, too
        return x.q.new_zeros(*x.q.shape[:3], x.v.shape[-1]) + nothing, x.state
    chunk = x.chunk(chunk_size)
    tensors, _ = x.whole(chunk)
    if _order_1(coefficients):
        return _joined([linear.scan_operator(*tensors, chunk)], x.q.shape[2])
    parts = [scan_operator(*some, list(coefficients), chunk) for some in x.few(tensors, chunk)]
    return _joined(parts, x.q.shape[2])


def delta_scan(
    x: Sequences, beta: Tensor, coefficients: Sequence[float], scale: float, chunk_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """The same under the delta rule; ``beta`` (N, T) is relative to the weight of a key with itself, ``scale`` is that of the scores."""
    if x.q.numel() == 0 or x.v.numel() == 0:
        return scan(x, coefficients, chunk_size)
    chunk = x.chunk(chunk_size)
    tensors, pad = x.whole(chunk)
    q, k, v, state, cq, ck, aq, ak = tensors
    b = F.pad(beta, (0, pad)).contiguous()  # 0 writes nothing
    if _order_1(coefficients):
        return _joined([linear_delta.delta_operator(q, k, v, b, state, cq, ck, aq, ak, scale, chunk)], x.q.shape[2])
    parts = []
    for Q, K, V, S, CQ, CK, AQ, AK, b_ in x.few([*tensors, b], chunk):
        u = delta_operator(K, V, b_, S, CK, AK, list(coefficients), scale, chunk)[0]
        parts.append(scan_operator(Q, K, u, S, CQ, CK, AQ, AK, list(coefficients), chunk))
    return _joined(parts, x.q.shape[2])
