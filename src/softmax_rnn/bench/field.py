"""``bench field``: decay, the delta rule and near-and-far, against SDPA and against the torch functions of others for the same sums.

Those of transformers (Mamba-2, Gated DeltaNet) and of flash-linear-attention (GLA, its ``naive`` file) are contests only where these
packages are installed. All are forward and backward, in float32.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import Mechanism, Power, Unnormalised, attention
from .measure import Comparison, Contest, Work, both, inputs, ours
from .ops import fla_naive, sdpa

MEANS = (0.0, -0.02, -0.05, -0.1, -0.2)  # of log_decay


def run(quick: bool = False) -> Iterator[Comparison]:
    """All of it; ``quick`` shrinks every size, for a test of the machinery."""
    T, few = (64, 1) if quick else (4096, 3)
    contests = [
        forgetting(2, T // 4, 2 * few),
        forgetting(1, T, few),
        far(4 * T, 1 if quick else 2),
        delta_softmax(T // 4, few),
    ]
    contests += [decay_in_chunks(T, 2 * few), *mamba2(T, few), *gated_deltanet(T, few), *gla(T // 4, few)]
    for contest in contests:
        yield from contest.run()


def fading(B: int, T: int, mean: float) -> Tensor:
    """log_decay (B, 8, T), evenly spread between 0 and twice the mean."""
    return (torch.rand(B, 8, T) * 2 * mean).requires_grad_()


def decayed(name: str | Mechanism, form: str) -> Callable[..., Tensor]:
    """Ours as a function of q, k, v and log_decay."""
    return lambda q, k, v, log_decay: attention(q, k, v, name, form=form, log_decay=log_decay)


def forgetting(B: int, T: int, repetitions: int) -> Contest:
    """``fox`` at every mean decay."""
    args = inputs(B, 8, T, 64, 64)
    work = {f"fox, log_decay {m:g}": both(decayed("fox", "parallel"), [*args, fading(B, T, m)]) for m in MEANS}
    shape = f"({B}, 8, {T}, 64) forward+backward"
    return Contest(shape, "SDPA", both(sdpa, args), work, dict.fromkeys(work, 1.3), repetitions)


def far(T: int, repetitions: int) -> Contest:
    """What is linear in T, or nearly, against SDPA at a great length."""
    args, small = inputs(1, 8, T, 64, 64), inputs(1, 8, T, 16, 64)
    fade = fading(1, T, -0.02)
    work = {
        "taylor2 chunked d=16 e=64": both(ours("taylor2", "chunked"), small),
        "near2 chunked d=16 e=64": both(ours("near2", "chunked"), small),
        "linear_elu chunked d=64 e=64": both(ours("linear_elu", "chunked"), args),
        "fox, log_decay -0.02": both(decayed("fox", "parallel"), [*args, fade]),
    }
    targets = dict(zip(work, (1 / 5, 1 / 5, 1 / 10, 1 / 3), strict=True))
    return Contest(f"(1, 8, {T}) forward+backward", "SDPA d=64", both(sdpa, args), work, targets, repetitions)


def delta_softmax(T: int, repetitions: int) -> Contest:
    """The delta rule at infinite order: a triangular solve over all keys."""
    args = [*inputs(2, 8, T, 64, 64), torch.rand(2, 8, T, requires_grad=True)]
    work = {"delta_softmax": both(lambda q, k, v, b: attention(q, k, v, "delta_softmax", beta=b), args)}
    shape = f"(2, 8, {T}, 64) forward+backward"
    return Contest(shape, "SDPA", both(sdpa, args[:3]), work, {"delta_softmax": 4.0}, repetitions)


def decay_in_chunks(T: int, repetitions: int) -> Contest:
    """The chunked form of order 1 with token decay, against the same without."""
    args = inputs(1, 8, T, 64, 64)
    fades = Mechanism(Power(1), Unnormalised(), decay="token")
    work = {"linear chunked, token decay": both(decayed(fades, "chunked"), [*args, fading(1, T, -0.05)])}
    plain = both(ours("linear", "chunked"), args)
    shape = f"(1, 8, {T}, 64) forward+backward"
    return Contest(shape, "without decay", plain, work, dict.fromkeys(work, 1.15), repetitions)


def _function(module: str, name: str) -> Callable[..., Any] | None:
    """A torch function of transformers itself, not the kernel it is replaced by where one is installed; None where it is missing."""
    try:
        found = getattr(importlib.import_module(f"transformers.models.{module}"), name, None)
    except ImportError:
        return None
    return None if found is None else inspect.unwrap(found)


def _contest(
    name: str, shape: str, anchor_name: str, anchor: Work, work: Work, target: float, repetitions: int
) -> Contest:
    return Contest(f"{shape} forward+backward", anchor_name, anchor, {name: work}, {name: target}, repetitions)


def mamba2(T: int, repetitions: int) -> Iterator[Contest]:
    """transformers' scan at its default chunk of 256, and at 64, where it is fastest."""
    theirs = _function("mamba2.modeling_mamba2", "mamba2_chunk_scan")
    if theirs is None:
        return
    c, b, x = (y.detach().transpose(1, 2).contiguous().requires_grad_() for y in inputs(1, 8, T, 64, 64))
    dt, rate = (torch.rand(1, T, 8) * 0.1).requires_grad_(), -torch.rand(8) - 0.5
    work = both(decayed("mamba2", "chunked"), [*inputs(1, 8, T, 64, 64), fading(1, T, -0.05)])
    for chunk in (256, 64):

        def scan(x: Tensor, dt: Tensor, b: Tensor, c: Tensor, chunk: int = chunk) -> Tensor:
            return theirs(x, dt, rate, b, c, chunk_size=chunk)

        anchor = both(scan, [x, dt, b, c])
        name = f"transformers mamba2_chunk_scan, chunks of {chunk}"
        yield _contest("mamba2 chunked", f"(1, 8, {T}, 64)", name, anchor, work, 1 / 3, repetitions)


def gated_deltanet(T: int, repetitions: int) -> Iterator[Contest]:
    """transformers' chunked gated delta rule, with unit queries and keys."""
    theirs = _function("qwen3_next.modeling_qwen3_next", "torch_chunk_gated_delta_rule")
    if theirs is None:
        return
    q, k, v = inputs(1, 8, T, 64, 64)
    q, k = (F.normalize(x.detach(), dim=-1).requires_grad_() for x in (q, k))
    args = [q, k, v, fading(1, T, -0.05), torch.rand(1, 8, T, requires_grad=True)]

    def same(q: Tensor, k: Tensor, v: Tensor, fade: Tensor, beta: Tensor) -> Tensor:
        return attention(q, k, v, "gated_deltanet", scale=1.0, form="chunked", log_decay=fade, beta=beta)

    turned = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in args]
    anchor = both(lambda *x: theirs(*x)[0], turned)
    name = "transformers torch_chunk_gated_delta_rule"
    yield _contest("gated_deltanet chunked", f"(1, 8, {T}, 64)", name, anchor, both(same, args), 1 / 3, repetitions)


def gla(T: int, repetitions: int) -> Iterator[Contest]:
    """flash-linear-attention's recurrent GLA, which is the only one that runs without Triton."""
    module = fla_naive("gla")
    if module is None:
        return
    args = [*inputs(1, 8, T, 64, 64), (torch.rand(1, 8, T, 64) * -0.1).requires_grad_()]
    turned = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in args]
    anchor = both(lambda *x: module.naive_recurrent_gla(*x)[0], turned)
    work = both(decayed("gla", "chunked"), args)
    yield _contest("gla chunked", f"(1, 8, {T}, 64)", "fla naive_recurrent_gla", anchor, work, 1 / 5, repetitions)
