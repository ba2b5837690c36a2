"""The specification: dense attention, as the formula reads, in any dtype, differentiated by autograd.

    A_t = sum_s w(x_ts) v_s      Z_t = sum_s w(x_ts)      over the keys s that query t sees

For exp without a clamp the pair is returned as O = A / Z and lse = log Z, which cannot overflow. Every other form is compared
with this one; it keeps the T x T weights and is meant for reading and testing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import Kernel
from .sums import Sums
from .visibility import Visibility


def weight(x: Tensor, kernel: Kernel) -> Tensor:
    """w(x), the kernel's function of the score."""
    x = x if kernel.limit is None else x.clamp(max=kernel.limit)
    if kernel.coefficients is None:
        return x.exp()
    exact = x.double()  # 1/n! and x^n leave the range of anything narrower
    total = torch.zeros_like(exact)
    for c in reversed(kernel.coefficients):
        total = total * exact + c
    return total.to(x.dtype)


def sums(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, see: Visibility) -> Sums:
    """q (B, H, Tq, D) scaled and mapped, k (B, Hkv, Tk, D) mapped, v (B, Hkv, Tk, E)."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    x = q @ k.mT
    mask = see.dense()
    if kernel.exponential:
        x = x.masked_fill(~mask, -torch.inf)
        lse = torch.logsumexp(x, -1, keepdim=True)
        lse = torch.where(see.count() > 0, lse, torch.zeros_like(lse))
        return Sums((x - lse).exp() @ v, None, lse)
    w = weight(x, kernel).masked_fill(~mask, 0.0)
    return Sums(w @ v, w.sum(-1, keepdim=True), None)
