"""The parallel form: all queries at once, O(T) memory for every mechanism, forward and backward.

    exp                       flash attention (A = O exp(lse)): SDPA where lse is not needed, ``flash`` (CPU) or ``flex`` (CUDA) where it is
    clamped exp, polynomials  ``tiled``; clamped exp on CUDA is ``flex`` with the clamp as score_mod

No T x T tensor is ever kept.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import Kernel
from .flash import flash
from .flex import flex
from .sums import Sums, with_ones
from .tiled import tiled
from .visibility import Visibility


def sums(
    q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, see: Visibility, scale: float, with_sum: bool, with_lse: bool
) -> Sums:
    """q (B, H, Tq, D) mapped, k (B, Hkv, Tk, D) mapped, v (B, Hkv, Tk, E), zero where padded; ``scale`` on the score."""
    if see.keys == 0 or q.numel() == 0:
        return _nothing(q, k, v)
    if kernel.exponential:
        return _exp(q, k, v, see, scale, with_lse)
    if kernel.coefficients is None and q.device.type == "cuda":
        out, lse = flex(q, k, v, see, scale, kernel.limit)
        total = lse.exp()
        return Sums(out * total, total, None)
    return _tiled(q, k, v, kernel, see, scale, with_sum)


def _nothing(q: Tensor, k: Tensor, v: Tensor) -> Sums:
    # Zeros that stay in the graph, so that gradients of the inputs are zeros, too.
    zero = q.sum(-1, keepdim=True) * 0 + (k.sum() + v.sum()) * 0
    return Sums(zero.expand(*q.shape[:3], v.shape[-1]), zero, zero)


def _exp(q: Tensor, k: Tensor, v: Tensor, see: Visibility, scale: float, with_lse: bool) -> Sums:
    d, e = q.shape[-1], v.shape[-1]
    grouped = bool(q.shape[1] != k.shape[1])  # sizes are tensors while torch.jit traces
    if scale <= 0:  # torch's kernels mask by adding -inf before they scale
        q, scale = q * scale, 1.0
    causal = False
    if see.causal and see.queries > 1:  # an expression would be a symbol under torch.compile
        causal = True
    if see.plain and see.keep is None and not with_lse and d == e:  # with unequal widths SDPA would go dense
        return Sums(
            F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped), None, None
        )
    if q.device.type == "cpu":
        if d != e:  # the kernel wants equal widths; zero channels change neither the scores nor the other channels
            q, k, v = (F.pad(x, (0, max(d, e) - x.shape[-1])) for x in (q, k, v))
        out, lse = flash(q, k, v, see.keep, None if see.plain else see.bounds(), causal, scale)
        return Sums(out[..., :e], None, lse[..., None])
    out, lse = flex(q, k, v, see, scale, None)
    return Sums(out, None, lse)


def _tiled(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, see: Visibility, scale: float, with_sum: bool) -> Sums:
    B, H, Tq, D = q.shape
    Hkv, E = v.shape[1], v.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k, v = q.to(wide) * scale, k.to(wide), v.to(wide)
    v = with_ones(v, see.keep) if with_sum else v
    bounds = None
    if see.runs is not None:
        lo, hi = see.bounds()
        bounds = (lo.repeat_interleave(Hkv, 0), hi.repeat_interleave(Hkv, 0))
    out = tiled(
        q.reshape(B * Hkv, H // Hkv, Tq, D), k.flatten(0, 1), v.flatten(0, 1), bounds, see.causal,
        kernel.coefficients or (), kernel.limit,
    ).reshape(B, H, Tq, v.shape[-1])  # fmt: skip
    return Sums(out[..., :E], out[..., E:] if with_sum else None, None)
