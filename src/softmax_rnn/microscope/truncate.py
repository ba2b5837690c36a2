"""Attention with its series cut at order n, in float64, for a whole layer: what ``probe`` puts in the place of a layer's own.

Denominator, gates and norm stay the layer's; only the weight changes. Where they do not cancel a factor per row, the rows are brought back
to their own units first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..norms import NORMS
from .series import SAFE, largest_term, last_useful, partial_sums
from .tiles import Call, tiles


def truncated(call: Call, order: int, center: Tensor | None = None) -> Tensor:
    """The layer's output (B, H, T, E) with w(x) = sum_{n <= order} x^n / n!."""
    b, h, t, _ = call.q.shape
    numerator = torch.zeros(b, h, t, call.v.shape[-1], dtype=torch.float64)
    total = torch.zeros(b, h, t, 1, dtype=torch.float64)
    for head in range(h):
        for tile in tiles(call, head, center):
            sizes = tile.x.abs().amax(1, keepdim=True)
            shift = largest_term(sizes, order)
            lse = torch.where(tile.seen, tile.x, -torch.inf).logsumexp(1)
            lse = lse[lse.isfinite()]
            last = last_useful(sizes.max().item(), lse.min().item() if len(lse) else 0.0, order)
            for step in partial_sums(tile.x, tile.seen, shift, [last], last):
                weights = step.weights
            assert weights is not None
            if not call.mechanism.cancels_scale:
                weights = weights * shift.clamp(max=SAFE).exp()
            numerator[tile.batch, head, tile.rows] = weights @ tile.v
            total[tile.batch, head, tile.rows] = weights.sum(1, keepdim=True)
    return finish(call, numerator, total).to(call.v.dtype)


def finish(call: Call, numerator: Tensor, total: Tensor) -> Tensor:
    """Denominator, gates and norm of the layer's mechanism."""
    m = call.mechanism
    options = {k: None if v is None else v.double() for k, v in call.options.items()}
    gate = options.get("output_gate")
    out = m.denominator.divide(numerator, total, call.see.count(), options.get("length_exponent"))
    if gate is not None and m.output_gate == "before_norm":
        out = out * gate[..., None]
    if m.norm is not None:
        out = NORMS[m.norm](out, options.get("norm_weight"), options.get("norm_bias"))
    if gate is not None and m.output_gate == "after_norm":
        out = out * gate[..., None]
    return out
