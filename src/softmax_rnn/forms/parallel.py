"""The parallel form: all queries at once, O(T) memory for every mechanism, forward and backward.

    exp                       ``softmax_lse``: A = O exp(lse)
    clamped exp, polynomials  ``weighted_sum``
    Near                      the one for the window, the other for the keys beyond it

No T x T tensor is ever kept.

The delta rule is a change of values, then the same sums:

    u_s = beta_s / kappa_ss (v_s - what is read at k_s before)        kappa_ss = w(x_ss), x_ss = scale |k_s|^2

beta is relative to kappa_ss, so that beta = 1 replaces what was there at any order and any size of keys (``relative`` in reference.py).
For exp kappa stays in the exponent: what is kept is exp(x_ss) u_s, and reads subtract x_ss.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..backends import SoftmaxCall, WeightedCall, native, softmax_lse, weighted_sum
from ..backends.delta import delta_tiles
from ..backends.tiles import SMALL
from ..context import Context
from ..problem import Problem, Setting, Sums
from ..slots.kernels import Kernel, Near
from ..slots.mechanism import Mechanism
from ..state import KVState, State
from .reference import Cost, Form, count_keys, near_and_far, relative, with_own_scores


class Parallel(Form):
    """Everything, in quadratic time."""

    name = "parallel"

    def cost(self, s: Setting) -> Cost:
        """All visible pairs, tile by tile; causal attention does half of them and half of a tile more, a window its own."""
        d, kernel = s.dims, s.mechanism.kernel
        beyond = min(SMALL[0], d.queries) if kernel.finite else 0
        seen = min(d.keys, (d.keys + beyond) // 2) if s.causal and d.queries > 1 else d.keys
        seen = seen if s.window is None else min(seen, s.window)
        pairs = d.batch * d.heads * d.queries * seen
        if s.mechanism.update == "delta":  # keys read, too
            pairs += d.batch * d.kv_heads * d.keys * seen
        passes = 3 if kernel.coefficients is None else max(1, len(kernel.coefficients))
        in_c = kernel.finite and native.why_not() is None
        passes = 1 if in_c else passes  # of all orders together
        state = (
            d.batch
            * d.kv_heads
            * (d.keys if s.window is None else min(s.window, d.keys))
            * (d.key_dim + d.value_dim)
            * 4
        )
        products = 2 * pairs * (kernel.width(d.key_dim) + d.value_dim)
        return Cost(self.name, products, pairs * passes, 0, state, 128 * d.keys * 8, native.RATE if in_c else 1.0)

    def run(self, p: Problem) -> tuple[Sums, Tensor, State]:
        """Over all keys so far."""
        assert p.state is None or isinstance(p.state, KVState)
        kv, context = write(p, *p.with_past(p.state))
        return sums_with_keys(p, kv, context), count_keys(p, context), kept(p, kv, context)


def kept(p: Problem, kv: KVState, context: Context) -> KVState:
    """What of the keys and values a later call can still see."""
    kv = kv if kv.value.dtype == p.v.dtype else replace(kv, value=kv.value.to(p.v.dtype))
    return kv if context.window is None else kv.newest(context.window)


def sums_with_keys(p: Problem, kv: KVState, context: Context) -> Sums:
    """The sums over keys and values."""
    return attend(
        p.seeing(context.count()) if p.may_be_empty else p.q, kv.key, kv.value, context, p.mechanism.kernel, p
    )


def attend(q: Tensor, k: Tensor, v: Tensor, context: Context, kernel: Kernel, p: Problem) -> Sums:
    """q (B, H, Tq, D) mapped, k (B, Hkv, Tk, D) mapped, v (B, Hkv, Tk, E), zero where padded."""
    if context.keys == 0 or q.numel() == 0:
        return _nothing(q, k, v)
    if isinstance(kernel, Near):
        window = replace(context, window=kernel.window)
        near = attend(q, k, v, window, kernel.near, p)
        far = attend(q, k, v, replace(context, skip=kernel.window), kernel.far, p)
        return near_and_far(near, far, window.count() > 0 if p.may_be_empty else None)
    near_by = isinstance(p.mechanism.kernel, Near)
    if kernel.exponential:
        with_lse = near_by or needs_lse(p.mechanism)
        out, lse = softmax_lse(SoftmaxCall(q, k, v, context, p.scale, kernel.softcap, with_lse), p.backend)
        return Sums(out, None, lse)
    with_total = near_by or p.mechanism.denominator.needs_sum
    call = WeightedCall(q, k, v, context, p.scale, kernel.coefficients or (), kernel.limit, with_total)
    out, total = weighted_sum(call, p.backend)
    return Sums(out, total, None)


def needs_lse(m: Mechanism) -> bool:
    """Does an exp mechanism need more than the softmax output?"""
    return m.norm is None and not m.denominator.cancels_scale


def _nothing(q: Tensor, k: Tensor, v: Tensor) -> Sums:
    # Zeros that stay in the graph, so that gradients of the inputs are zeros, too.
    zero = q.sum(-1, keepdim=True) * 0 + (k.sum() + v.sum()) * 0
    return Sums(zero.expand(*q.shape[:3], v.shape[-1]), zero, zero)


# The delta rule.


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
    b = relative(p.beta, k, kernel, p.scale)
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
        kernel.softcap,
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
