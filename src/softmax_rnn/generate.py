"""``softmax-rnn generate MODEL --prompt TEXT``: write text with a model, to the terminal as it is made.

``--mechanism`` swaps the attention of somebody else's model before it writes. Its weights were trained with another attention, so the
command says by how much the loss on the prompt rose, and how to train the model with the new one.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from .cli import Parser, decimal, notice, place_of, quieten, whole
from .errors import MechanismError, UserError, printable
from .files import read_text

UNCHANGED = 0.005  # nats per token: the same loss, to the digits that are printed


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    p = Parser(prog="softmax-rnn generate", description=__doc__.split("\n\n")[0] if __doc__ else None)
    p.add_argument(
        "model", help="a checkpoint folder, a run, a GGUF file, 'smollm2' (the installed package), or a name on the hub"
    )
    p.add_argument(
        "--prompt",
        default="",
        help="how the text begins; '-' reads it from standard input; without it the model begins a text of its own",
    )
    p.add_argument("--mechanism", help="swap the attention of somebody else's model for this mechanism")
    p.add_argument(
        "--max-new-tokens", type=whole(1, 10**9), default=100, help="how much to write, at most (default: 100)"
    )
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
    try:
        return 0.0 if float(text) == 0 else decimal(0.01, 100.0)(text)
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"must be 0, or a number from 0.01 to 100, got {text[:40]!r}") from None


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    args = parser().parse_args(argv)
    prompt = read_text("-") if args.prompt == "-" else args.prompt
    if any("\ud800" <= c <= "\udfff" for c in prompt):  # how Python spells bytes that are no UTF-8
        raise UserError("The prompt is not text in UTF-8.")
    notice(f"loading torch, transformers and {args.model}")
    quieten()
    import torch

    from .models import cache_bytes, load_model, load_tokenizer

    where = place_of(args.model)
    trust = {"trust_remote_code": args.trust_remote_code}
    model, tokenizer = load_model(where, **trust).eval(), load_tokenizer(where, **trust)
    inputs = _encode(tokenizer, prompt)
    if args.mechanism:
        _swap(model, args.mechanism, args.model, inputs)
    options: dict[str, Any] = {"do_sample": False}
    if args.temperature > 0:
        torch.manual_seed(args.seed)
        options = {"do_sample": True, "temperature": args.temperature, "top_k": args.top_k}
    if args.chunk:
        options["prefill_chunk_size"] = args.chunk
    begin = time.perf_counter()
    out = model.generate(
        **inputs,
        **options,
        max_new_tokens=args.max_new_tokens,
        pad_token_id=_pad(tokenizer),
        streamer=_streamer(tokenizer),
        return_dict_in_generate=True,
    )
    if args.stats:
        new = out.sequences.shape[1] - inputs["input_ids"].shape[1]
        rate = new / (time.perf_counter() - begin)
        print(f"{new} tokens, {rate:.1f} per second, cache {cache_bytes(out.past_key_values):,} bytes", file=sys.stderr)
    return 0


def _swap(model: Any, name: str, source: str, inputs: dict[str, Any]) -> None:
    """Swap the attention, and say on stderr what that did to the loss on the prompt and what to do about it."""
    from .models import SoftmaxRnnConfig, patch
    from .slots.presets import mechanism as resolve

    m, ours = resolve(name), isinstance(model.config, SoftmaxRnnConfig)
    can_train = ours or model.config.model_type == "llama"
    command = f"softmax-rnn train --model.init {source} --model.mechanism {name} --data.source YOUR_TEXT"
    if ours:
        raise MechanismError(
            f"{source} is a softmax-rnn model with a mechanism of its own; to train it with {name}: {command}"
        )
    if m.parameters and can_train:
        raise MechanismError(
            f"'{m}' needs {' and '.join(m.parameters)}, which {source} does not have; to train them: {command}"
        )
    before = _loss(model, inputs)
    patch(model, m)
    after = _loss(model, inputs)
    if m == resolve("softmax"):
        return  # what it was trained with
    if before is None or after is None:
        change = "a longer --prompt shows by how much its loss rises"
    elif abs(after - before) < UNCHANGED:
        change = f"its loss on the prompt stays at {before:.2f} nats per token"
    else:
        verb = "rises" if after > before else "falls"
        change = f"its loss on the prompt {verb} from {before:.2f} to {after:.2f} nats per token"
    train = command if can_train else "patch it in Python with softmax_rnn.patch, then train it as usual"
    print(
        printable(f"The weights of {source} were not trained with {name}: {change}. To train them with it: {train}"),
        file=sys.stderr,
    )


def _loss(model: Any, inputs: dict[str, Any]) -> float | None:
    """Nats per token on the prompt; None where it has no second token to predict."""
    import torch

    ids = inputs["input_ids"]
    if ids.shape[1] < 2:
        return None
    with torch.no_grad():
        return float(model(**inputs, labels=ids, use_cache=False).loss)


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
