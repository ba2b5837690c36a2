"""Whole steps: ``bench decode``, one more token after N, and ``bench train``, a step of training.

decode   with a Kronecker state, against SDPA over a cache of keys and values
train    our trainer against a bare PyTorch loop over transformers' Llama (sdpa): same sizes, data, optimiser and machine, in turns, so
         that a busy machine disturbs both alike, each in a process of its own, since our trainer changes how a process keeps memory;
         and our attention against a dense one in the same model
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import State, UserError, attention
from ..nn import Attention as Layer
from ..slots.presets import mechanism as resolve
from .measure import Comparison, Work, interleave
from .ops import DENSE
from .processes import in_new_process

MECHANISM, HEADS, D, E = "taylor2", 8, 16, 64


def decode(quick: bool = False) -> Iterator[Comparison]:
    """Steps after more and more tokens: against our own first, and against the cache of the same length."""
    lengths = [16, 64] if quick else [1024, 4096, 16384, 65536]
    yield from flat(lengths[:3], 2 if quick else 30)
    work, carried = _decoding(lengths)
    t = interleave(work, 2 if quick else 30)
    first = lengths[0]
    for T in lengths:
        ours, kv = t[f"ours {T}"], t[f"kv {T}"]
        shape, name = f"(1, {HEADS}, 1) after {T}", f"{MECHANISM} step d={D} e={E}"
        note = f"state {carried[f'ours {T}']:,} bytes, cache {carried[f'kv {T}']:,}"
        goal = 1 / 10 if lengths[-1] == T else None
        yield Comparison.of_times(name, shape, f"step after {first}", ours, t[f"ours {first}"], 1.2)
        yield Comparison.of_times(
            name, shape, "SDPA over a KV cache d=64", ours, kv, goal, note=note, curve="decode|state", length=T
        )
        more = {"curve": "decode|cache", "length": T}
        yield Comparison.of_times(
            "KV cache step d=64", shape, f"step after {first}", kv, t[f"kv {first}"], None, **more
        )


FLAT = ("mamba2", "gla", "gated_deltanet", "near2")


def flat(lengths: list[int], repetitions: int) -> Iterator[Comparison]:
    """Steps of the field's mechanisms with a constant state: as long after many tokens as after few."""
    for name in FLAT:
        m = resolve(name)
        work: dict[str, Work] = {}
        for T in lengths:
            layer = Layer(HEADS * E, HEADS, m)
            with torch.no_grad():
                x = torch.randn(1, T, HEADS * E)
                state = layer(x, return_state=True)[1]

            def step(layer: Layer = layer, x: Tensor = x[:, -1:], state: State = state) -> None:
                with torch.no_grad():
                    layer(x, state=state, return_state=True)

            work[str(T)] = step
        t, first = interleave(work, repetitions), str(lengths[0])
        for T in lengths[1:]:
            shape = f"a layer of {HEADS} heads of {E}, 1 token after {T}"
            yield Comparison.of_times(f"{name} step", shape, f"step after {first}", t[str(T)], t[first], 1.2)


def _decoding(lengths: list[int]) -> tuple[dict[str, Work], dict[str, int]]:
    """A decoding step of ours and of SDPA after each number of tokens, and the bytes each carries."""
    work: dict[str, Work] = {}
    carried: dict[str, int] = {}
    for T in lengths:
        q, k, v = torch.randn(1, HEADS, T, D), torch.randn(1, HEADS, T, D), torch.randn(1, HEADS, T, E)
        with torch.no_grad():
            state = attention(q, k, v, MECHANISM, form="chunked", return_state=True)[1]
        token = [x[:, :, -1:] for x in (q, k, v)]
        keys, values, query = (torch.randn(1, HEADS, n, E) for n in (T, T, 1))

        def ours(token: list[Tensor] = token, state: State = state) -> None:
            with torch.no_grad():
                attention(token[0], token[1], token[2], MECHANISM, state=state, return_state=True)

        def cached(query: Tensor = query, keys: Tensor = keys, values: Tensor = values) -> None:
            with torch.no_grad():
                F.scaled_dot_product_attention(query, keys, values)

        work[f"ours {T}"], work[f"kv {T}"] = ours, cached
        carried[f"ours {T}"], carried[f"kv {T}"] = state.nbytes, 2 * keys.numel() * 4
    return work, carried


def train(quick: bool = False) -> Iterator[Comparison]:
    """The laptop preset (tokens per second; quick: tiny), and steps at length 1,024 with attention by T x T tensors."""
    preset, steps, rounds = ("tiny", 12, 1) if quick else ("laptop", 40, 3)
    for name in ("softmax",) if quick else ("softmax", "norm"):
        m = training_speed(name, preset, steps, rounds, apart=not quick)
        note = f"{m.ours:,.0f} tokens/s, waiting for data {m.data_share:.2%} of the time"
        shape = f"{preset} preset, per token"
        yield Comparison(
            f"train {name}", shape, "bare loop, Llama sdpa", 1 / m.ours, 1 / m.bare, target=1 / 0.95, note=note
        )
    m = training_speed("softmax", preset, steps, rounds, compiled=True, apart=not quick)
    note = f"{m.ours:,.0f} tokens/s; the first step, which compiles, is not counted"
    for anchor, speed, target in (("eager", m.bare, 1 / 1.3), ("compiled", m.bare_compiled, 1.0)):
        name, shape = f"bare loop, Llama sdpa, {anchor}", f"{preset} preset, per token"
        yield Comparison("train softmax, compiled", shape, name, 1 / m.ours, 1 / speed, target=target, note=note)
    length = 64 if quick else 1024
    t = interleave({"ours": _step("norm", length), "dense": _step("dense", length)}, 1 if quick else 5)
    shape = f"nano, 2 rows of {length:,}"
    yield Comparison.of_times("train norm", shape, "dense attention", t["ours"], t["dense"], 1 / 2)


class Speed(NamedTuple):
    """Tokens per second of our trainer and of the bare loop, and the share of our time spent waiting for data."""

    ours: float
    bare: float
    data_share: float
    bare_compiled: float = 0.0


def training_speed(
    mechanism: str, preset: str, steps: int, rounds: int, compiled: bool = False, apart: bool = True
) -> Speed:
    """Medians over the rounds; ``compiled``: our run by torch.compile, and the bare loop as it is and compiled, too.

    Each in a process of its own, unless not ``apart``: quicker, and not fair.
    """
    from ..lab.config import recipe
    from ..lab.data import prepare

    base = recipe(preset)
    config = replace(
        base,
        model=replace(base.model, mechanism=mechanism),
        train=replace(base.train, steps=steps, eval_every=steps),
        run=replace(base.run, threads=torch.get_num_threads(), compile=compiled),
    )
    prepare(config.data, config.tokenizer, quiet=True)  # tokenised once, for all of these processes
    call: Any = in_new_process if apart else lambda function, *arguments: function(*arguments)
    found = []
    for _ in range(rounds):
        other = call(_bare, config, True) if compiled else 0.0
        found.append((*call(_ours, config), call(_bare, config), other))
    ours, share, bare, other = (statistics.median(column) for column in zip(*found, strict=True))
    return Speed(ours, bare, share, other)


def _ours(config: Any) -> tuple[float, float]:
    """Tokens per second and data share of one run, from its own metrics, without the first row (warm-up)."""
    from ..lab.store import read_run
    from ..lab.train import train

    with tempfile.TemporaryDirectory() as folder:
        config = replace(config, run=replace(config.run, folder=str(Path(folder) / "run")))
        outcome = train(config, quiet=True)
        if outcome.ending != "done":
            raise UserError(f"The measurement was cut short: {outcome.message}")
        rows = [row for row in read_run(config.folder).rows if "train_loss" in row]
    spans = [(b["tokens"] - a["tokens"], b) for a, b in pairwise(rows)]
    seconds = sum(tokens / row["tokens_per_second"] for tokens, row in spans)
    waited = sum(tokens / row["tokens_per_second"] * row["data_share"] for tokens, row in spans)
    return sum(tokens for tokens, _ in spans) / seconds, waited / seconds


def _bare(config: Any, compiled: bool = False) -> float:
    """Tokens per second of the shortest loop that trains Llama on the same rows, without its first steps."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from ..lab.data import Order, collate, prepare
    from ..lab.model import model_config

    torch.set_num_threads(config.run.threads)
    data, t = prepare(config.data, config.tokenizer, quiet=True), config.train
    settings = model_config(config.model, data.tokenizer, config.data.length).to_dict()
    known = LlamaConfig().to_dict().keys() - {"model_type", "architectures"}
    sizes = {k: v for k, v in settings.items() if k in known}
    model = LlamaForCausalLM._from_config(LlamaConfig(**sizes), attn_implementation="sdpa").train()
    if compiled:
        model.compile(dynamic=False)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=t.lr, betas=(t.beta1, t.beta2), eps=t.eps, weight_decay=t.weight_decay, fused=True
    )
    rows = Order(data.train, t.steps * t.batch, config.seed)
    began = 0.0
    for step in range(t.steps):
        if step == t.log_every:
            began = time.monotonic()
        batch = collate([rows[step * t.batch + i] for i in range(t.batch)], pad=data.tokenizer.pad_token_id)
        model(**batch, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return (t.steps - t.log_every) * t.batch * config.data.length / (time.monotonic() - began)


def _dense_norm(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **_: Any) -> tuple[Tensor, None]:
    """transformers' attention function, by T x T tensors."""
    return DENSE["norm"](q, k, v).transpose(1, 2), None


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
