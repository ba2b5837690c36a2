"""Tokens per second of ``train`` at the laptop preset, against a bare PyTorch loop over transformers' own Llama (sdpa).

    python -m softmax_rnn.lab.speed --mechanism norm --steps 40 --rounds 3

Same sizes, data, optimiser and machine; the two take turns in one process, so that a busy machine disturbs both alike.
Also says which share of training time was spent waiting for data.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import UserError
from .config import RunConfig
from .recipes import recipe


def ours(config: RunConfig) -> tuple[float, float]:
    """Tokens per second and data share of one run, from its own metrics, without the first row (warm-up)."""
    from .store import read_run
    from .train import train

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


def bare(config: RunConfig, data: Any) -> float:
    """Tokens per second of the shortest loop that trains Llama on the same rows, without its first steps."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from .data import Order, collate
    from .model import model_config

    t = config.train
    settings = model_config(config.model, data.tokenizer, config.data.length).to_dict()
    shared = {
        k: v for k, v in settings.items() if k in LlamaConfig().to_dict() and k not in ("model_type", "architectures")
    }
    model = LlamaForCausalLM._from_config(LlamaConfig(**shared), attn_implementation="sdpa").train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=t.lr, betas=(t.beta1, t.beta2), eps=t.eps, weight_decay=t.weight_decay, fused=True
    )
    rows = Order(data.train, t.steps * t.batch, config.seed)
    began = 0.0
    for step in range(t.steps):
        if step == t.log_every:
            began = time.monotonic()
        batch = collate([rows[step * t.batch + i] for i in range(t.batch)], pad=data.tokenizer.pad_token_id)
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return (t.steps - t.log_every) * t.batch * config.data.length / (time.monotonic() - began)


def measure(mechanism: str, steps: int, rounds: int, threads: int) -> dict[str, Any]:
    """Medians over the rounds."""
    import torch

    from .data import prepare

    base = recipe("laptop")
    config = replace(
        base,
        model=replace(base.model, mechanism=mechanism),
        train=replace(base.train, steps=steps, eval_every=steps),
        run=replace(base.run, threads=threads),
    )
    torch.set_num_threads(threads)
    data = prepare(config.data, config.tokenizer, quiet=True)
    pairs = [(bare(config, data), *ours(config)) for _ in range(rounds)]
    return {
        "mechanism": mechanism,
        "bare_tokens_per_second": statistics.median(b for b, _, _ in pairs),
        "tokens_per_second": statistics.median(o for _, o, _ in pairs),
        "ratio": statistics.median(o / b for b, o, _ in pairs),
        "data_share": statistics.median(d for _, _, d in pairs),
        "rounds": [{"bare": b, "ours": o} for b, o, _ in pairs],
        "config": asdict(config),
    }


def main(argv: list[str] | None = None) -> int:
    """Measure and print one line per mechanism."""
    parser = argparse.ArgumentParser(
        prog="python -m softmax_rnn.lab.speed", description="Training speed against a bare loop."
    )
    parser.add_argument(
        "--mechanism", action="append", help="may be given several times; softmax and norm if not at all"
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    for mechanism in options.mechanism or ["softmax", "norm"]:
        m = measure(mechanism, options.steps, options.rounds, options.threads)
        print(
            f"{mechanism}: {m['tokens_per_second']:,.0f} tokens/s, {m['ratio']:.2f}x of the bare Llama loop "
            f"({m['bare_tokens_per_second']:,.0f}), waiting for data {100 * m['data_share']:.2f}% of the time",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
