"""What people would use instead, callable side by side: torch's SDPA, the dense computation, two packages.

The packages come with the ``[bench]`` extra; where one is missing, its contests are left out and the report says so.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's fused softmax attention."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def dense(weight: Callable[[Tensor], Tensor], divide: Callable[[Tensor, Tensor], Tensor]) -> Attention:
    """Attention as in the paper's published code: the T x T weights as a tensor, left to autograd."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        x = q @ k.mT * q.shape[-1] ** -0.5
        w = weight(x).masked_fill(~torch.ones(x.shape[-2:], dtype=torch.bool).tril(), 0.0)
        return divide(w @ v, w)

    return attention


def _length(a: Tensor, w: Tensor) -> Tensor:
    return a / torch.arange(1, w.shape[-2] + 1)[:, None]


def _taylor(order: int) -> Callable[[Tensor], Tensor]:
    def series(x: Tensor) -> Tensor:
        term = total = torch.ones_like(x)
        for n in range(1, order + 1):
            term = term * x / n
            total = total + term
        return total

    return series


def _sum(a: Tensor, w: Tensor) -> Tensor:
    return a / w.sum(-1, keepdim=True)


DENSE: dict[str, Attention] = {
    "norm": dense(torch.exp, lambda a, w: F.normalize(a, dim=-1)),
    "length": dense(lambda x: x.clamp(max=5).exp(), _length),
    "taylor2": dense(_taylor(2), _sum),
    "taylor10": dense(_taylor(10), _sum),
}


def fla_naive() -> ModuleType | None:
    """``fla/ops/based/naive.py`` of flash-linear-attention, loaded alone: its package would import Triton."""
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "ops" / "based" / "naive.py"
    if not path.is_file():
        return None
    found = importlib.util.spec_from_file_location("softmax_rnn_bench_fla_naive", path)
    if found is None or found.loader is None:
        return None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def lucidrains() -> type[Any] | None:
    """The module class of taylor-series-linear-attention (bidirectional: its causal mode needs a CUDA extension)."""
    if importlib.util.find_spec("taylor_series_linear_attention") is None:
        return None
    from taylor_series_linear_attention import TaylorSeriesLinearAttn

    return TaylorSeriesLinearAttn
