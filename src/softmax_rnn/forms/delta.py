"""The delta rule as the forms use it: a change of values, then the same sums.

    u_s = beta_s / kappa_ss (v_s - what is read at k_s before)        kappa_ss = w(x_ss), x_ss = scale |k_s|^2

beta is relative to kappa_ss, so that beta = 1 replaces what was there at any order and any size of keys; where kappa_ss = 0 nothing can be
read, and nothing is written. For exp kappa stays in the exponent: what is kept is exp(x_ss) u_s, and reads subtract x_ss.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..backends.delta import delta_tiles
from ..backends.dense import weight
from ..context import Context
from ..problem import Problem
from ..slots.kernels import Kernel
from ..state import KVState
from .reference import own_scores, with_own_scores


def relative(beta: Tensor, k: Tensor, kernel: Kernel, scale: float) -> Tensor:
    """beta / kappa_ss of the newest keys (B, Hkv, T), in float32 at least; for exp beta itself."""
    k = k[:, :, k.shape[2] - beta.shape[2] :]
    own = own_scores(k, kernel, scale)
    if kernel.exponential:
        return beta.to(own.dtype)
    kappa = weight(own, kernel.coefficients or (), kernel.limit)
    some = kappa != 0
    return torch.where(
        some, beta.to(own.dtype) / torch.where(some, kappa, torch.ones_like(kappa)), torch.zeros_like(kappa)
    )


def write(p: Problem, kv: KVState, context: Context) -> tuple[KVState, Context]:
    """Keys with what was written at each in place of the values, and who sees them; in float32 at least."""
    if p.beta is None:
        return kv, context
    kernel, k = p.mechanism.kernel, kv.key
    context = with_own_scores(context, k, kernel, p.scale)
    if p.beta.numel() == 0 or kv.value.numel() == 0:
        return kv, context
    wide = torch.promote_types(p.q.dtype, torch.float32)
    (B, Hkv, T, E), new = kv.value.shape, p.beta.shape[2]
    lo = None
    if context.cut:
        lo = replace(context, queries=new, causal=True).bounds()[0].expand(B, -1).repeat_interleave(Hkv, 0)
    b = relative(p.beta, k, kernel, p.scale).to(wide)
    u = delta_tiles(
        k.to(wide).flatten(0, 1),
        kv.value.to(wide).flatten(0, 1),
        b.flatten(0, 1),
        _flat(context.clock),
        _flat(context.channels),
        _flat(None if context.bias is None else context.bias.to(wide)),
        lo,
        kernel.coefficients or (),
        kernel.limit,
        getattr(kernel, "softcap", None),
        p.scale,
    )
    value = torch.cat([kv.value[:, :, : T - new].to(wide), u.reshape(B, Hkv, new, E)], 2)
    return replace(kv, value=value), context


def _flat(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.flatten(0, 1)


def write_by_steps(p: Problem, kv: KVState, context: Context) -> tuple[KVState, Context]:
    """The same, one key after another."""
    if p.beta is None:
        return kv, context
    new, all_keys = p.beta.shape[2], context.keys
    whole = replace(context, queries=new, causal=True)
    written = kv.value[:, :, : all_keys - new]
    for t in range(new):
        one = whole.from_to(t, t + 1)
        value = torch.cat([written, kv.value[:, :, one.keys - 1 : one.keys].to(written.dtype)], 2)
        step = replace(p, beta=p.beta[:, :, t : t + 1])
        written = write(step, replace(kv, key=kv.key[:, :, : one.keys], value=value), one)[0].value
    return replace(kv, value=written), with_own_scores(context, kv.key, p.mechanism.kernel, p.scale)
