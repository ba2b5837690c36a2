"""What a form is, and the reference form: dense attention, as the formula reads, in any dtype.

A form says what it refuses, what it costs, and runs; nothing else knows. The reference is the specification that every other form is
held to:

    A_t = sum_s D_ts w(x_ts) u_s      Z_t = sum_s D_ts w(x_ts)      over the keys s that query t sees

For exp without a clamp the pair is O = A / Z and lse = log Z. Under the delta rule u_s = beta'_s (v_s - what is read at k_s
before), one token after another. It keeps the T x T weights and is meant for reading and testing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..backends import grouped, with_bias
from ..backends.dense import softmax_dense, weight, weighted_dense
from ..context import Context, decayed_count
from ..problem import Problem, Setting, Sums
from ..slots.kernels import Kernel, Near
from ..state import STATE_LIMIT, KroneckerState, KVState, NearState, State, state_rows

ELEMENTWISE = 8  # how many operations of a matrix product one elementwise operation is worth (measured on a CPU)
STEP = 2**22  # what one small step of the recurrent form costs, in the same unit


@dataclass(frozen=True)
class Cost:
    """Forward cost of one form for a whole batch: operations in matrix products, elementwise operations, small steps, and bytes."""

    form: str
    matmul: int
    elementwise: int
    steps: int
    state_bytes: int
    working_bytes: int
    rate: float = 1.0  # how many times as fast as torch's batched products

    @property
    def estimate(self) -> float:
        """Operations, weighted; what ``auto`` minimises."""
        return (self.matmul + ELEMENTWISE * self.elementwise + STEP * self.steps) / self.rate


class Form(ABC):
    """One of the equivalent ways to compute a mechanism; a subclass without ``cost`` or ``run`` cannot be made."""

    name: ClassVar[str]

    def refuses(self, s: Setting) -> str | None:
        """Why it cannot compute this, in a sentence; None if it can."""
        if s.state is not None and s.state is not self.state_of(s):
            return f"A {s.state.__name__} cannot be continued in the {self.name} form: use form='auto'."
        return None

    def state_of(self, s: Setting) -> type[State]:
        """The kind of state it keeps."""
        return KVState

    @abstractmethod
    def cost(self, s: Setting) -> Cost:
        """What it takes."""

    @abstractmethod
    def run(self, p: Problem) -> tuple[Sums, Tensor, State]:
        """The sums, how many keys each query saw, and the state after."""


def constant_state(s: Setting) -> type[State] | None:
    """The kind of state of constant size that a mechanism has, or None."""
    kernel = s.mechanism.kernel
    if s.window is not None:
        return None
    return NearState if isinstance(kernel, Near) else KroneckerState if kernel.finite else None


def no_constant_state(s: Setting) -> str | None:
    """Why there is none, in a sentence."""
    kernel = s.mechanism.kernel
    if s.window is not None:
        return "What leaves a window cannot be taken out of a recurrent state: use form='parallel', which keeps the window's keys."
    if isinstance(kernel, Near) or kernel.finite:
        return None
    if kernel.limit is not None:
        return f"With a clamp on scores ({kernel.text()}) there is no recurrent state: use form='parallel'."
    return f"{kernel.text()} has no finite recurrent state, so no chunked form: use form='parallel'."


def fits(s: Setting) -> bool:
    """Is the recurrent state one that would be allowed?"""
    return 4 * moment_bytes(s) <= STATE_LIMIT


def moment_bytes(s: Setting) -> int:
    """The size of the Kronecker state of a whole batch."""
    kernel, d = s.mechanism.kernel, s.dims
    far = kernel.far if isinstance(kernel, Near) else kernel
    columns = d.value_dim + int(s.mechanism.denominator.needs_sum or isinstance(kernel, Near))
    return d.batch * d.kv_heads * state_rows(far, kernel.width(d.key_dim)) * columns * 4


def count_keys(p: Problem, context: Context) -> Tensor:
    """How many keys each query sees, (B or 1, H or 1, Tq, 1); under decay their decayed number, where a denominator asks for it."""
    if context.clock is None or not p.mechanism.denominator.needs_count:
        return context.count()
    if context.keys == 0:
        return torch.zeros(1, 1, context.queries, 1, device=context.device)
    found = decayed_count(context.clock, context.keep, context)
    return found.repeat_interleave(p.q.shape[1] // p.k.shape[1], 1)


class Reference(Form):
    """Dense."""

    name = "reference"

    def cost(self, s: Setting) -> Cost:
        """All pairs, all in memory."""
        d = s.dims
        pairs = d.batch * d.heads * d.queries * d.keys
        passes = 3 if s.mechanism.kernel.coefficients is None else max(1, len(s.mechanism.kernel.coefficients))
        return Cost(self.name, 2 * pairs * (d.key_dim + d.value_dim), pairs * passes, 0, 0, pairs * 4 * 2)

    def run(self, p: Problem) -> tuple[Sums, Tensor, State]:
        """Over all keys so far."""
        past = p.state
        assert past is None or isinstance(past, KVState)
        kv, context = p.with_past(past)
        k, v = kv.key.to(p.q.dtype), kv.value
        if p.beta is not None:
            v = delta_dense(k, v, p.beta, context, p.mechanism.kernel, p.scale)
            kv, context = replace(kv, value=v), with_own_scores(context, k, p.mechanism.kernel, p.scale)
        sums = dense_sums(p.seeing(context.count()), k, v, context, p.mechanism.kernel, p.scale)
        return sums, count_keys(p, context), kv if context.window is None else kv.newest(context.window)


def dense_sums(q: Tensor, k: Tensor, v: Tensor, context: Context, kernel: Kernel, scale: float) -> Sums:
    """q (B, H, Tq, D) mapped, k (B, Hkv, Tk, D) mapped, v (B, Hkv, Tk, E)."""
    B, H, Tq, _ = q.shape
    if context.keys == 0:
        zero = (q.sum(-1, keepdim=True) + k.sum() + v.sum()) * 0
        return Sums(zero.expand(B, H, Tq, v.shape[-1]), zero, zero)
    if isinstance(kernel, Near):
        window = replace(context, window=kernel.window)
        near = dense_sums(q, k, v, window, kernel.near, scale)
        far = dense_sums(q, k, v, replace(context, skip=kernel.window), kernel.far, scale)
        return near_and_far(near, far, window.count() > 0)
    arguments: Any = grouped(q, k, v, context, scale, q.dtype)
    if kernel.exponential:
        out, lse = softmax_dense(*with_bias(arguments, context), kernel.softcap)  # type: ignore[call-arg]
        return Sums(out.reshape(B, H, Tq, v.shape[-1]), None, lse.reshape(B, H, Tq, 1))
    out, total = weighted_dense(*arguments, kernel.coefficients or (), kernel.limit, True)  # type: ignore[call-arg]
    return Sums(out.reshape(B, H, Tq, v.shape[-1]), total.reshape(B, H, Tq, 1), None)


def near_and_far(near: Sums, far: Sums, some: Tensor | None) -> Sums:
    """Weights add up: exp(lse) O + A over exp(lse) + Z, as an output and a log-sum-exp again. ``some``: is any key near by?"""
    assert near.lse is not None
    assert far.total is not None
    wide = torch.promote_types(near.lse.dtype, far.total.dtype)
    lse, total = near.lse.to(wide), far.total.to(wide)
    top = lse.detach().clamp(min=0.0)  # nothing on the way overflows
    a, b = (lse - top).exp(), (-top).exp()
    a = a if some is None else a * some
    z = a + total * b
    z = z if some is None else torch.where(z > 0, z, torch.ones_like(z))
    return Sums((near.numerator.to(wide) * a + far.numerator.to(wide) * b) / z, None, top + z.log())


def delta_dense(k: Tensor, v: Tensor, beta: Tensor, context: Context, kernel: Kernel, scale: float) -> Tensor:
    """What the delta rule writes: u_s = beta_s / kappa_ss (v_s - sum_{r<s} D_sr kappa_sr u_r), kappa_sr = w(scale k_s . k_r).

    k, v (B, Hkv, T, ...); the last tokens of v, as many as beta has, are new, those before hold u already. For exp the result is
    kappa_ss u_s, and reads divide by kappa_ss in the exponent, which cannot overflow.
    """
    T, new = k.shape[2], beta.shape[2]
    if T == 0:
        return v + k.sum() * 0 + beta.sum() * 0
    mask = replace(context, queries=T, causal=True, clock=None, channels=None, reads_last=False).mask()
    mask = mask & torch.ones(T, T, dtype=torch.bool, device=k.device).tril(-1)
    wide = torch.promote_types(k.dtype, torch.float32)
    if context.channels is None:
        x = (k.to(wide) * scale) @ k.to(wide).mT
    else:
        a = context.channels
        fall = (a[:, :, :, None] - a[:, :, None]).masked_fill(~mask[..., None], -torch.inf).exp().to(wide)
        x = torch.einsum("bhtd,bhsd,bhtsd->bhts", k.to(wide) * scale, k.to(wide), fall)
    log_decay = (
        torch.zeros_like(x)
        if context.clock is None
        else (context.clock[..., None] - context.clock[:, :, None]).to(wide)
    )
    log_decay = log_decay.masked_fill(~mask, -torch.inf)
    b = relative(beta, k, kernel, scale)
    if kernel.exponential:
        x = x if kernel.softcap is None else kernel.softcap * torch.tanh(x / kernel.softcap)
        strength = (x - own_scores(k, kernel, scale)[:, :, None] + log_decay).masked_fill(~mask, -torch.inf).exp()
    else:
        strength = weight(x, kernel.coefficients or (), kernel.limit).masked_fill(~mask, 0.0) * log_decay.exp()
    written = list(v.to(wide).unbind(2))
    for i in range(new):
        s = T - new + i
        old = torch.stack(written[:s], 2) if s else v.to(wide)[:, :, :0]
        read = (strength[:, :, s, :s, None] * old).sum(2)
        written[s] = b[:, :, i, None] * (written[s] - read)
    return torch.stack(written, 2).to(v.dtype)


def own_scores(k: Tensor, kernel: Kernel, scale: float) -> Tensor:
    """x_ss = scale |k_s|^2, the score of each key with itself: (B, Hkv, T), in float32 at least; capped as the kernel caps it."""
    wide = k.to(torch.promote_types(k.dtype, torch.float32))
    x, softcap = (wide * scale * wide).sum(-1), kernel.softcap
    return x if softcap is None else softcap * torch.tanh(x / softcap)


def relative(beta: Tensor, k: Tensor, kernel: Kernel, scale: float) -> Tensor:
    """beta / kappa_ss of the newest keys (B, Hkv, T), in float32 at least; for exp beta itself.

    Where kappa_ss is 0, or so small that the quotient leaves no room in the dtype (below 1e-31 in float32), nothing is written. It is
    computed in float64 from the length of the key, so that its gradient, beta / kappa_ss^2 times a slope as small, stays in range.
    """
    wide = torch.promote_types(k.dtype, torch.float32)
    if kernel.exponential:
        return beta.to(wide)
    length = torch.linalg.vector_norm(k[:, :, k.shape[2] - beta.shape[2] :].to(wide), dim=-1).double()
    kappa = weight(scale * length * length, kernel.coefficients or (), kernel.limit)
    some = kappa >= torch.finfo(wide).tiny / torch.finfo(wide).eps
    quotient = beta.double() / kappa.where(some, torch.ones_like(kappa))
    return quotient.where(some, torch.zeros_like(kappa)).to(wide)


def with_own_scores(context: Context, k: Tensor, kernel: Kernel, scale: float) -> Context:
    """For exp under the delta rule: what is kept is exp(x_ss) u_s, so reads subtract x_ss in the exponent."""
    return replace(context, bias=own_scores(k, kernel, scale)) if kernel.exponential else context
