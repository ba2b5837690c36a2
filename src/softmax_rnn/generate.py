"""``softmax-rnn generate MODEL --prompt TEXT``: write text with a model, to the terminal as it is made."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

from .cli import Parser, decimal, whole
from .errors import UserError, printable
from .files import read_text


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(prog="softmax-rnn generate", description=__doc__)
    p.add_argument(
        "model", help="a checkpoint folder, a run, a GGUF file, 'smollm2' (the installed package), or a name on the hub"
    )
    p.add_argument("--prompt", default="", help="how the text begins; '-' reads it from standard input")
    p.add_argument("--mechanism", help="patch the model with this mechanism first")
    p.add_argument("--max-new-tokens", type=whole(1, 10**9), default=100)
    p.add_argument(
        "--temperature", type=temperature, default=0.0, help="0 (default) takes the most likely token each time"
    )
    p.add_argument("--top-k", type=whole(1, 2**31 - 1), default=50, help="when sampling: only among the k most likely")
    p.add_argument("--seed", type=whole(0, 2**63 - 1), default=0, help="when sampling")
    p.add_argument("--chunk", type=whole(1, 2**31 - 1), help="read a long prompt in pieces of this many tokens")
    p.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code that lies beside the weights, if needed"
    )
    p.add_argument("--stats", action="store_true", help="say at the end how fast it was and what the cache holds")
    return p


def temperature(text: str) -> float:
    """0, or what the scores can be divided by."""
    return 0.0 if text.strip() in ("0", "0.0") else decimal(0.01, 100.0)(text)


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    args = parser().parse_args(argv)
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when tqdm is first imported: no progress bars between the words
    import torch
    from transformers.utils import logging

    from .models import cache_bytes, load_model, load_tokenizer, patch, smollm2_path

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    where = smollm2_path() if args.model == "smollm2" else args.model
    trust = {"trust_remote_code": args.trust_remote_code}
    model, tokenizer = load_model(where, **trust).eval(), load_tokenizer(where, **trust)
    if args.mechanism:
        patch(model, args.mechanism)
    inputs = _encode(tokenizer, read_text("-") if args.prompt == "-" else args.prompt)
    options: dict[str, Any] = {"do_sample": False}
    if args.temperature > 0:
        torch.manual_seed(args.seed)
        options = {"do_sample": True, "temperature": args.temperature, "top_k": args.top_k}
    if args.chunk:
        options["prefill_chunk_size"] = args.chunk
    begin = time.perf_counter()
    out = model.generate(
        **inputs, **options, max_new_tokens=args.max_new_tokens, pad_token_id=_pad(tokenizer),
        streamer=_streamer(tokenizer), return_dict_in_generate=True,
    )  # fmt: skip
    if args.stats:
        new = out.sequences.shape[1] - inputs["input_ids"].shape[1]
        rate = new / (time.perf_counter() - begin)
        print(f"{new} tokens, {rate:.1f} per second, cache {cache_bytes(out.past_key_values):,} bytes", file=sys.stderr)
    return 0


def _streamer(tokenizer: Any) -> Any:
    """Prints words as they are made; control characters, which could move the cursor, are written out."""
    from transformers import TextStreamer

    class Printer(TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            super().on_finalized_text("".join(c if c in "\n\t" else printable(c) for c in text), stream_end)

    return Printer(tokenizer, skip_special_tokens=True)


def _encode(tokenizer: Any, prompt: str) -> dict[str, Any]:
    import torch

    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    if inputs["input_ids"].shape[1]:
        return dict(inputs)
    begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if begin is None:
        raise UserError("An empty prompt needs a tokenizer with a token for the beginning of text: give --prompt.")
    ids = torch.tensor([[begin]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _pad(tokenizer: Any) -> int:
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0
