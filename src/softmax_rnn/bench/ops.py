"""``bench ops``: attention against SDPA, against the dense computation, against other packages; how time grows with T, form by form.
``bench heads``: heads of 16 and 32 channels, as small models have them, against SDPA.

The packages come with the ``[bench]`` extra; where one is missing, its contests are left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import Exp, Length, Mechanism, Sum, Unnormalised, attention, explain
from .measure import Comparison, Contest, Work, both, forward, inputs, interleave, ours

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

EXP: dict[str, str | Mechanism] = {
    "softmax": "softmax",
    "norm": "norm",
    "unnormalised": Mechanism(Exp(), Unnormalised()),
    "length, no clamp": Mechanism(Exp(), Length()),
    "detached sum": Mechanism(Exp(), Sum(detach=True)),
}
CLAMPED: dict[str, str | Mechanism] = {"length": "length", "clamp_sum": "clamp_sum", "detach_sum": "detach_sum"}
SERIES = {"taylor2": 1.25, "taylor10": 1.6, "taylor10_norm": 1.6}
TARGETS = dict.fromkeys(EXP, 1.10) | dict.fromkeys([*CLAMPED, "gate"], 1.25) | SERIES
CASES = (("taylor2", 16, 64), ("taylor2", 64, 64), ("linear_elu", 64, 64), ("taylor4", 8, 32))  # of ``curves``
FORMS = ("parallel", "chunked")


def run(quick: bool = False) -> Iterator[Comparison]:
    """All of it; ``quick`` shrinks every size, for a test of the machinery."""
    n, T = (1, 64) if quick else (5, 4096)
    for B, length in ((2, T // 4), (1, T)):
        yield from against_sdpa(B, 8, length, 64, torch.float32, n).run()
    yield from against_sdpa(2, 8, T // 4, 64, torch.bfloat16, n).run()
    few = min(n, 2)
    for contests in (against_dense(T // 2, few), linear_time(T * 4, few), against_packages(max(T, 256), 2 * few)):
        for contest in contests:
            yield from contest.run()
    yield from growth([64] if quick else [8192, 16384, 32768, 65536], 1 if quick else 10)
    yield from curves((32, 64) if quick else (64, 128, 256, 512, 1024, 2048, 4096), min(n, 3))


def heads(quick: bool = False) -> Iterator[Comparison]:
    """Small heads, at the sizes of training and in longer rows; in half precision, too, where their sums are in float32."""
    shapes = ((1, 2, 64, 16),) if quick else ((8, 4, 256, 16), (16, 8, 256, 32), (1, 8, 4096, 32))
    for shape in shapes:
        for dtype in (torch.float32, torch.bfloat16):
            yield from against_sdpa(*shape, dtype, 1 if quick else 15, ("softmax", "norm", "length", "taylor2")).run()


def against_sdpa(
    B: int, H: int, T: int, D: int, dtype: torch.dtype, repetitions: int, only: Sequence[str] = ()
) -> Contest:
    """Parallel mechanisms, all or ``only`` these, forward and backward, against SDPA."""
    args = inputs(B, H, T, D, D, dtype)
    names = EXP | CLAMPED | {name: name for name in ("gate", *SERIES)}
    names = {name: names[name] for name in only or names}
    targets = TARGETS if dtype == torch.float32 else {}
    gate = torch.rand(B, H, T).to(dtype)
    work = {n: both(ours(m, "parallel"), args) for n, m in names.items() if n != "gate"}
    if "gate" in names:
        work["gate"] = both(lambda q, k, v: attention(q, k, v, "gate", form="parallel", output_gate=gate), args)
    flops = dict.fromkeys(names, _flops(B, H, T, D))
    shape = f"({B}, {H}, {T}, {D}) forward+backward"
    return Contest(shape, "SDPA", both(sdpa, args), work, targets, repetitions, dtype, flops)


def _flops(B: int, H: int, T: int, D: int) -> int:
    """Matrix-product operations of causal attention, forward (2 products) and backward (5: the scores are made again)."""
    return 7 * B * H * T * T * D


def against_dense(T: int, repetitions: int) -> Iterator[Contest]:
    """The same mechanism computed with T x T tensors."""
    args = inputs(1, 8, T, 64, 64)
    for name, function in DENSE.items():
        work = {name: both(ours(name, "parallel"), args)}
        yield Contest(
            f"(1, 8, {T}, 64) forward+backward", "dense", both(function, args), work, {name: 1 / 3}, repetitions
        )


def linear_time(T: int, repetitions: int) -> Iterator[Contest]:
    """The chunked form of order 2 against SDPA at head size 64, forward; ``bench field`` has both passes."""
    softmax, small = inputs(1, 8, T, 64, 64), inputs(1, 8, T, 16, 64)
    work = {"taylor2 chunked d=16 e=64": forward(ours("taylor2", "chunked"), small)}
    targets = dict.fromkeys(work, 1 / 10)
    yield Contest(f"(1, 8, {T}) forward", "SDPA d=64", forward(sdpa, softmax), work, targets, repetitions)


def against_packages(T: int, repetitions: int) -> Iterator[Contest]:
    """Second-order attention by flash-linear-attention (naive) and by taylor-series-linear-attention."""
    args = inputs(1, 8, T, 16, 16)
    fla = fla_naive("based")
    for name in ("naive_chunk_based", "naive_parallel_based") if fla is not None else ():
        work = {"taylor2 chunked d=16": both(ours("taylor2", "chunked"), args)}
        shape, anchor = f"(1, 8, {T}, 16) forward+backward", both(getattr(fla, name), args)
        yield Contest(shape, f"fla {name}", anchor, work, dict.fromkeys(work, 1 / 5), repetitions)
    module = _taylor_series_linear_attention()
    if module is not None:
        theirs = module(128, dim_head=16, heads=8, combine_heads=False)
        x = torch.randn(1, T, 128, requires_grad=True)

        def same(x: Tensor) -> Tensor:
            q, (k, v) = theirs.to_q(x), theirs.to_kv(x)
            return theirs.merge_heads(attention(q, k, v, "taylor2", causal=False))

        work = {"taylor2 bidirectional d=16": both(same, [x])}
        shape, name = f"(1, 8, {T}, 16) with projections, forward+backward", "taylor-series-linear-attention"
        yield Contest(shape, name, both(theirs, [x]), work, dict.fromkeys(work, 1 / 5), repetitions)


def growth(lengths: list[int], repetitions: int) -> Iterator[Comparison]:
    """Time from T to 2T in the chunked form, and the size of the state at both."""
    for T in lengths:
        work: dict[str, Work] = {}
        sizes = []
        for length in (T, 2 * T):
            q, k, v = (x.detach() for x in inputs(1, 8, length, 16, 64))
            work[str(length)] = forward(ours("taylor2", "chunked"), [q, k, v])
            sizes.append(attention(q, k, v, "taylor2", form="chunked", return_state=True)[1].nbytes)
        t = interleave(work, repetitions)
        note = f"state {sizes[0]:,} bytes at both" if sizes[0] == sizes[1] else f"state grows: {sizes}"
        shape, name = f"(1, 8, {2 * T}) / (1, 8, {T})", "taylor2 chunked, growth"
        yield Comparison.of_times(name, shape, "half the length", t[str(2 * T)], t[str(T)], 2.15, note=note)


def curves(lengths: tuple[int, ...], repetitions: int) -> Iterator[Comparison]:
    """Both forms and SDPA at every length, forward and backward; and is what ``auto`` takes within 1.3x of the best?"""
    for name, D, E in CASES:
        for T in lengths:
            args, softmax = inputs(1, 8, T, D, E), inputs(1, 8, T, 64, 64)
            work = {form: both(ours(name, form), args) for form in FORMS} | {"sdpa": both(sdpa, softmax)}
            t = interleave(work, repetitions)
            shape, case = f"(1, 8, {T}) forward+backward", case_name(name, D, E)
            for form in FORMS:
                more = {"curve": f"{case}|{form}", "length": T}
                yield Comparison.of_times(f"{case} {form}", shape, "SDPA d=64", t[form], t["sdpa"], None, **more)
            chosen = explain(name, 1, 8, T, D, E).choice
            best = min((t[form] for form in FORMS), key=lambda timing: timing.best)
            yield Comparison.of_times(f"{case}: auto takes {chosen}", shape, "best form", t[chosen], best, 1.3)


def case_name(name: str, D: int, E: int) -> str:
    """How one of ``CASES`` is called in the JSON and in pictures."""
    return f"{name} d={D} e={E}"


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's fused softmax attention."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _dense(weight: Callable[[Tensor], Tensor], divide: Callable[[Tensor, Tensor], Tensor]) -> Attention:
    """Attention as in the paper's published code: the T x T weights as a tensor, left to autograd."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        x = q @ k.mT * q.shape[-1] ** -0.5
        w = weight(x).masked_fill(~torch.ones(x.shape[-2:], dtype=torch.bool).tril(), 0.0)
        return divide(w @ v, w)

    return attention


def _series(order: int) -> Callable[[Tensor], Tensor]:
    def series(x: Tensor) -> Tensor:
        term = total = torch.ones_like(x)
        for n in range(1, order + 1):
            term = term * x / n
            total = total + term
        return total

    return series


def _by_length(a: Tensor, w: Tensor) -> Tensor:
    return a / torch.arange(1, w.shape[-2] + 1)[:, None]


def _by_sum(a: Tensor, w: Tensor) -> Tensor:
    return a / w.sum(-1, keepdim=True)


DENSE: dict[str, Attention] = {
    "norm": _dense(torch.exp, lambda a, w: F.normalize(a, dim=-1)),
    "length": _dense(lambda x: x.clamp(max=5).exp(), _by_length),
    "taylor2": _dense(_series(2), _by_sum),
    "taylor10": _dense(_series(10), _by_sum),
}


def fla_naive(what: str) -> ModuleType | None:
    """``fla/ops/WHAT/naive.py`` of flash-linear-attention, loaded alone: its package would import Triton."""
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "ops" / what / "naive.py"
    if not path.is_file():
        return None
    found = importlib.util.spec_from_file_location(f"softmax_rnn_bench_fla_{what}", path)
    if found is None or found.loader is None:
        return None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _taylor_series_linear_attention() -> type[Any] | None:
    """The module class of that package (bidirectional: its causal mode needs a CUDA extension)."""
    if importlib.util.find_spec("taylor_series_linear_attention") is None:
        return None
    from taylor_series_linear_attention import TaylorSeriesLinearAttn

    return TaylorSeriesLinearAttn
