"""The first two primitives and the delta rule as the formula reads: dense, in any dtype, differentiated by autograd. They are the
specification that every other implementation is held to, and what runs where somebody differentiates in a way that no operator knows.

    weighted_sum   A_t = sum_s D_ts w(x_ts) v_s     Z_t = sum_s D_ts w(x_ts)        over the keys s that query t sees
    softmax_lse    O_t = A_t / Z_t and log Z_t, for w = exp(x_ts - bias_s): a pair that cannot overflow
    delta          u_s = b_s (v_s - sum_{r<s} D_sr w(x_sr) u_r), what the delta rule writes at a key (delta.py)

x = q . k (q is scaled already), D = exp(c_t - c_s); under channel decay x_ts = sum_i q_ti k_si exp(a_ti - a_si). They keep T x T weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def weight(x: Tensor, coefficients: Sequence[float], limit: float | None) -> Tensor:
    """w(x): a polynomial, or without coefficients exp, of min(x, limit)."""
    x = x if limit is None else x.clamp(max=limit)
    if not coefficients:
        return x.exp()
    exact = x.double()  # 1/n! and x^n leave the range of anything narrower
    total = torch.zeros_like(exact)
    for c in reversed(coefficients):
        total = total * exact + c
    return total.to(x.dtype)


def _seen(q: Tensor, k: Tensor, lo: Tensor | None, hi: Tensor | None, causal: bool) -> Tensor:
    """(N or 1, 1, Tq, Tk)."""
    Tq, Tk = q.shape[2], k.shape[1]
    key = torch.arange(Tk, device=q.device)
    if lo is not None and hi is not None:
        return ((key >= lo[..., None]) & (key < hi[..., None]))[:, None]
    last = torch.arange(Tq, device=q.device) + (Tk - Tq) if causal else torch.full((Tq,), Tk, device=q.device)
    return (key <= last[:, None])[None, None]


def _scores(q: Tensor, k: Tensor, aq: Tensor | None, ak: Tensor | None, seen: Tensor) -> Tensor:
    if aq is None or ak is None:
        return q @ k.mT[:, None]
    fall = (aq[:, :, None] - ak[:, None]).masked_fill(~seen[:, 0, ..., None], -torch.inf).exp().to(q.dtype)
    return torch.einsum("ngtd,nsd,ntsd->ngts", q, k, fall)


def _log_decay(cq: Tensor | None, ck: Tensor | None, seen: Tensor, like: Tensor) -> Tensor:
    """log D where seen, -inf elsewhere: masked before any exponential, or gradients would be NaN."""
    if cq is None or ck is None:
        return torch.zeros_like(seen, dtype=like.dtype).masked_fill(~seen, -torch.inf)
    return (cq[:, None, :, None] - ck[:, None, None]).masked_fill(~seen, -torch.inf).to(like.dtype)


def weighted_dense(
    q: Tensor, k: Tensor, v: Tensor, cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None,
    lo: Tensor | None, hi: Tensor | None, keep: Tensor | None, causal: bool, coefficients: Sequence[float], limit: float | None,
    with_total: bool,
) -> tuple[Tensor, Tensor]:
    """q (N, G, Tq, D), k (N, Tk, D), v (N, Tk, E) -> A (N, G, Tq, E) and Z (N, G, Tq, 1), empty unless ``with_total``."""
    seen = _seen(q, k, lo, hi, causal)
    seen = seen if keep is None else seen & keep[:, None, None]
    w = weight(_scores(q, k, aq, ak, seen), coefficients, limit).masked_fill(~seen, 0.0)
    w = w * _log_decay(cq, ck, seen, q).exp()
    return w @ v[:, None], w.sum(-1, keepdim=True) if with_total else w.new_empty(*w.shape[:3], 0)


def softmax_dense(
    q: Tensor, k: Tensor, v: Tensor, cq: Tensor | None, ck: Tensor | None, aq: Tensor | None, ak: Tensor | None,
    bias: Tensor | None, lo: Tensor | None, hi: Tensor | None, keep: Tensor | None, causal: bool, softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Softmax output (N, G, Tq, E) and log-sum-exp (N, G, Tq, 1); rows that see no key give 0 and 0."""
    seen = _seen(q, k, lo, hi, causal)
    seen = seen if keep is None else seen & keep[:, None, None]
    x = _scores(q, k, aq, ak, seen)
    x = x if softcap is None else softcap * torch.tanh(x / softcap)
    x = x if bias is None else x - bias[:, None, None]
    x = (x + _log_decay(cq, ck, seen, q)).masked_fill(~seen, -torch.inf)
    some = seen.any(-1, keepdim=True)
    lse = torch.logsumexp(torch.where(some, x, torch.zeros_like(x)), -1, keepdim=True)
    lse = torch.where(some, lse, torch.zeros_like(lse))
    return (x - lse).exp() @ v[:, None], lse


def unit_solve(b: Tensor, w: Tensor, right: Tensor, transposed: bool = False) -> Tensor:
    """(I + diag(b) W)^-1 right, or with its transpose; W (M, C, C) strictly lower, b (M, C)."""
    system = w * b[..., None]
    if transposed:
        return torch.linalg.solve_triangular(system.mT, right, upper=True, unitriangular=True)
    return torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)


def delta_dense(
    k: Tensor, v: Tensor, b: Tensor, c: Tensor | None, a: Tensor | None, bias: Tensor | None, lo: Tensor | None,
    coefficients: Sequence[float], limit: float | None, softcap: float | None, scale: float,
) -> tuple[Tensor, Tensor]:
    """u and p as the formula reads, with all of W in memory; differentiated by autograd."""
    first = k.shape[1] - b.shape[1]
    q = k[:, None, first:] * scale
    cq, aq = (None if x is None else x[:, first:] for x in (c, a))
    hi = None if lo is None else torch.arange(first, k.shape[1], device=k.device)[None].expand_as(lo)
    seen = _seen(q, k, lo, hi, True) & torch.ones(q.shape[2], k.shape[1], device=k.device).bool().tril(first - 1)
    x, fade = _scores(q, k, aq, a, seen), _log_decay(cq, c, seen, q)
    writes = torch.cat([v[:, :first].any(-1), b != 0], 1)
    idle = ~(writes[:, None, first:, None] & writes[:, None, None])  # infinite strengths do not matter there
    if bias is None:
        x = x.masked_fill(idle & weight(x.detach(), coefficients, limit).isinf(), 0.0)
        w = weight(x, coefficients, limit).masked_fill(~seen, 0.0) * fade.exp()
    else:
        x = x if softcap is None else softcap * torch.tanh(x / softcap)
        x = x - bias[:, None, None] + fade
        w = x.masked_fill(~seen | (idle & x.detach().exp().isinf()), -torch.inf).exp()
    past, inside = w[:, 0, :, :first], w[:, 0, :, first:]
    p = v[:, first:] - past @ v[:, :first]
    u = unit_solve(b, inside, b[..., None] * p)
    u = u.masked_fill((b[..., None] == 0) & ~u.isfinite(), 0.0)
    return u, (p - inside @ u).detach()  # p is for the backward pass alone
