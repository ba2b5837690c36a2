"""``bench ops``: attention against SDPA, against the dense computation, against other packages; and how it grows with T."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..algebra import Mechanism
from ..denominators import Length, Sum, Unnormalised
from ..kernels import Exp
from ..ops.api import attention
from ..ops.cost import costs
from ..presets import mechanism
from . import anchors, curves
from .measure import Contest, Record, Work, both, forward, inputs, interleave, ours

EXP: dict[str, str | Mechanism] = {
    "softmax": "softmax",
    "norm": "norm",
    "unnormalised": Mechanism(Exp(), Unnormalised()),
    "length, no clamp": Mechanism(Exp(), Length()),
    "detached sum": Mechanism(Exp(), Sum(detach=True)),
}
CLAMPED: dict[str, str | Mechanism] = {"length": "length", "clamp_sum": "clamp_sum", "detach_sum": "detach_sum"}
TARGETS = dict.fromkeys(EXP, 1.10) | dict.fromkeys(CLAMPED, 1.5) | {"taylor2": 1.5, "taylor10": 2.5}


def flops(name: str | Mechanism, form: str, B: int, H: int, T: int, D: int, E: int) -> int:
    """Matrix-product operations, forward (2 products) and backward (5: the scores are made again)."""
    (cost,) = (c for c in costs(mechanism(name), B, H, T, D, E) if c.form == form)
    return int(cost.matmul * 3.5)


def against_sdpa(B: int, H: int, T: int, D: int, dtype: torch.dtype, repetitions: int) -> Contest:
    """Every parallel mechanism, forward and backward, against SDPA."""
    args = inputs(B, H, T, D, D, dtype)
    names = EXP | CLAMPED | {"taylor2": "taylor2", "taylor10": "taylor10"}
    targets = TARGETS if dtype == torch.float32 else {}
    counted = {n: flops(m, "parallel", B, H, T, D, D) for n, m in names.items()}
    work = {n: both(ours(m, "parallel"), args) for n, m in names.items()}
    shape = f"({B}, {H}, {T}, {D}) forward+backward"
    return Contest(shape, dtype, "SDPA", both(anchors.sdpa, args), work, targets, counted, repetitions)


def against_dense(T: int, repetitions: int) -> Iterator[Contest]:
    """The same mechanism computed with T x T tensors."""
    args = inputs(1, 8, T, 64, 64)
    for name, function in anchors.DENSE.items():
        work = {name: both(ours(name, "parallel"), args)}
        shape = f"(1, 8, {T}, 64) forward+backward"
        yield Contest(shape, torch.float32, "dense", both(function, args), work, {name: 1 / 3}, {}, repetitions)


def linear_time(T: int, repetitions: int) -> Iterator[Contest]:
    """Chunked forms against SDPA at head size 64."""
    softmax = inputs(1, 8, T, 64, 64)
    small = inputs(1, 8, T, 16, 64)
    f = "taylor2 chunked d=16 e=64"
    yield Contest(
        f"(1, 8, {T}) forward",
        torch.float32,
        "SDPA d=64",
        forward(anchors.sdpa, softmax),
        {f: forward(ours("taylor2", "chunked"), small)},
        {f: 1 / 10},
        {},
        repetitions,
    )
    g = "linear_elu chunked d=64 e=64"
    work = {f: both(ours("taylor2", "chunked"), small), g: both(ours("linear_elu", "chunked"), softmax)}
    shape = f"(1, 8, {T}) forward+backward"
    yield Contest(
        shape, torch.float32, "SDPA d=64", both(anchors.sdpa, softmax), work, {f: 1 / 5, g: 1 / 10}, {}, repetitions
    )


def against_packages(T: int, repetitions: int) -> Iterator[Contest]:
    """Second-order attention by flash-linear-attention (naive) and by taylor-series-linear-attention."""
    args = inputs(1, 8, T, 16, 16)
    fla = anchors.fla_naive()
    if fla is not None:
        work = {"taylor2 chunked d=16": both(ours("taylor2", "chunked"), args)}
        for name in ("naive_chunk_based", "naive_parallel_based"):
            anchor = both(getattr(fla, name), args)
            shape = f"(1, 8, {T}, 16) forward+backward"
            yield Contest(
                shape, torch.float32, f"fla {name}", anchor, work, dict.fromkeys(work, 1 / 5), {}, repetitions
            )
    module = anchors.lucidrains()
    if module is not None:
        theirs = module(128, dim_head=16, heads=8, combine_heads=False)
        x = torch.randn(1, T, 128, requires_grad=True)

        def same(x: Tensor) -> Tensor:
            q, (k, v) = theirs.to_q(x), theirs.to_kv(x)
            return theirs.merge_heads(attention(q, k, v, "taylor2", causal=False))

        work = {"taylor2 bidirectional d=16": both(same, [x])}
        shape = f"(1, 8, {T}, 16) with projections, forward+backward"
        anchor = both(theirs, [x])
        yield Contest(
            shape,
            torch.float32,
            "taylor-series-linear-attention",
            anchor,
            work,
            dict.fromkeys(work, 1 / 5),
            {},
            repetitions,
        )


def growth(lengths: list[int], repetitions: int) -> Iterator[Record]:
    """Time from T to 2T in the chunked form, and the size of the state at both."""
    for T in lengths:
        work: dict[str, Work] = {}
        sizes = []
        for length in (T, 2 * T):
            q, k, v = (x.detach() for x in inputs(1, 8, length, 16, 64))
            run = ours("taylor2", "chunked")
            work[str(length)] = forward(run, [q, k, v])
            sizes.append(attention(q, k, v, "taylor2", form="chunked", return_state=True)[1].nbytes)
        t = interleave(work, repetitions)
        one, two = t[str(T)], t[str(2 * T)]
        note = f"state {sizes[0]:,} bytes at both" if sizes[0] == sizes[1] else f"state grows: {sizes}"
        shape = f"(1, 8, {2 * T}) / (1, 8, {T})"
        yield Record(
            "taylor2 chunked, growth",
            shape,
            "float32",
            "half the length",
            two.best,
            one.best,
            "s",
            2.15,
            two.spread,
            note=note,
        )


def run(quick: bool = False) -> Iterator[Record]:
    """All of it; ``quick`` shrinks every size, for a test of the machinery."""
    n, T = (1, 64) if quick else (7, 4096)
    for B, length in ((2, T // 4), (1, T)):
        yield from against_sdpa(B, 8, length, 64, torch.float32, n).run()
    yield from against_sdpa(2, 8, T // 4, 64, torch.bfloat16, n).run()
    contests: list[Iterator[Any]] = [
        against_dense(T, min(n, 3)),
        linear_time(T * 4, min(n, 3)),
        against_packages(max(T, 256), min(n, 3)),
    ]
    for group in contests:
        for contest in group:
            yield from contest.run()
    yield from growth([64] if quick else [8192, 16384, 32768, 65536], min(n, 5))
    yield from curves.run(min(n, 5), (32, 64) if quick else (64, 128, 256, 512, 1024, 2048, 4096))
