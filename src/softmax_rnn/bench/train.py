"""``bench train``: whole training steps, against a bare loop over transformers' Llama, and against dense attention in the same model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from . import anchors
from .measure import Record, Work, interleave


def run(quick: bool = False) -> Iterator[Record]:
    """The laptop preset (tokens per second), and steps at length 1,024 with attention by T x T tensors."""
    from ..lab.speed import measure

    steps, rounds = (12, 1) if quick else (40, 3)
    for name in ("softmax",) if quick else ("softmax", "norm"):
        m = measure(name, steps, rounds, torch.get_num_threads())
        note = f"{m['tokens_per_second']:,.0f} tokens/s, waiting for data {m['data_share']:.2%} of the time"
        ours, bare = 1 / m["tokens_per_second"], 1 / m["bare_tokens_per_second"]
        yield Record(
            f"train {name}",
            "laptop preset, per token",
            "float32",
            "bare loop, Llama sdpa",
            ours,
            bare,
            "s",
            1 / 0.95,
            note=note,
        )
    length = 64 if quick else 1024
    t = interleave({"ours": _step("norm", length), "dense": _step("dense", length)}, 1 if quick else 5)
    shape = f"nano, 2 rows of {length:,}"
    yield Record(
        "train norm", shape, "float32", "dense attention", t["ours"].best, t["dense"].best, "s", 1 / 2, t["ours"].spread
    )


def _dense_norm(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **_: Any) -> tuple[Tensor, None]:
    """transformers' attention function, by T x T tensors."""
    return anchors.DENSE["norm"](q, k, v).transpose(1, 2), None


def _step(kind: str, length: int) -> Work:
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

    from ..models import SIZES, SoftmaxRnnConfig, SoftmaxRnnForCausalLM

    torch.manual_seed(0)
    sizes = SIZES["nano"] | {"vocab_size": 4096}
    if kind == "dense":
        AttentionInterface.register("softmax_rnn_bench_dense", _dense_norm)
        model: Any = LlamaForCausalLM._from_config(LlamaConfig(**sizes), attn_implementation="softmax_rnn_bench_dense")
    else:
        model = SoftmaxRnnForCausalLM(SoftmaxRnnConfig(**sizes, mechanism=kind))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(0, 4096, (2, length))

    def step() -> None:
        model(ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
