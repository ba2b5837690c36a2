"""The parallel form: all queries at once, O(T) memory for every mechanism, forward and backward.

    exp                       ``softmax_lse``: A = O exp(lse)
    clamped exp, polynomials  ``weighted_sum``
    Near                      the one for the window, the other for the keys beyond it

Under the delta rule what is written comes first (``delta.py``), then the same sums over it.

No T x T tensor is ever kept.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..backends import SoftmaxCall, WeightedCall, softmax_lse, weighted_sum
from ..context import Context
from ..problem import Problem, Setting, Sums
from ..slots.kernels import Kernel, Near
from ..slots.mechanism import Mechanism
from ..state import KVState, State
from .base import Cost, Form, count_keys
from .delta import write
from .reference import near_and_far


class Parallel(Form):
    """Everything, in quadratic time."""

    name = "parallel"

    def cost(self, s: Setting) -> Cost:
        """All visible pairs, tile by tile; causal attention does half of them, a window its own."""
        d, kernel = s.dims, s.mechanism.kernel
        seen = d.keys // (2 if s.causal and d.queries > 1 else 1)
        seen = seen if s.window is None else min(seen, s.window)
        pairs = d.batch * d.heads * d.queries * seen
        if s.mechanism.update == "delta":  # keys read, too
            pairs += d.batch * d.kv_heads * d.keys * seen
        passes = 3 if kernel.coefficients is None else max(1, len(kernel.coefficients))
        state = (
            d.batch
            * d.kv_heads
            * (d.keys if s.window is None else min(s.window, d.keys))
            * (d.key_dim + d.value_dim)
            * 4
        )
        return Cost(
            self.name, 2 * pairs * (kernel.width(d.key_dim) + d.value_dim), pairs * passes, 0, state, 128 * d.keys * 8
        )

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
        softcap = getattr(kernel, "softcap", None)
        out, lse = softmax_lse(SoftmaxCall(q, k, v, context, p.scale, softcap, with_lse), p.backend)
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
