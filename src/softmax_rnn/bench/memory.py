"""``bench memory``: the peak of a process of its own, above what the inputs take."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from ..errors import UserError
from .measure import Record

ATTENTION = """
import sys, torch, softmax_rnn as sr
from softmax_rnn.bench.memory import peak_mb
torch.set_num_threads(2)
name, form, T, D, E = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
def run(T):
    q, k, v = (torch.randn(1, 8, T, n, requires_grad=True) for n in (D, D, E))
    base = peak_mb()
    sr.attention(q, k, v, name, form=form).sum().backward()
    return peak_mb() - base
run(256)
print(run(T))
"""

GENERATE = """
import sys, torch
from softmax_rnn.bench.memory import peak_mb
from softmax_rnn import SoftmaxRnnConfig, SoftmaxRnnForCausalLM
torch.set_num_threads(2); torch.manual_seed(0)
T = int(sys.argv[1])
config = SoftmaxRnnConfig(mechanism="taylor2", vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                          num_attention_heads=4, max_position_embeddings=2**17, bos_token_id=0, eos_token_id=None, pad_token_id=None)
model = SoftmaxRnnForCausalLM(config).eval()
def run(T):
    ids = torch.randint(1, 512, (1, T))
    with torch.no_grad():
        model.generate(ids, max_new_tokens=8, do_sample=False, prefill_chunk_size=512)
run(600)
base = peak_mb()
run(T)
print(peak_mb() - base)
"""


def peak_mb() -> float:
    """The highest resident memory of this process so far, in MB."""
    try:
        with open("/proc/self/status") as status:
            return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024
    except OSError:
        raise UserError("bench memory reads /proc and needs Linux.") from None


def child(code: str, *arguments: object) -> float:
    """The number that a fresh process prints."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def run(quick: bool = False) -> Iterator[Record]:
    """Forward and backward at T = 16,384 against a limit of 600 MB; a whole dense head would take 1 GB each for w, dw, ..."""
    T = 512 if quick else 16384
    names = [
        ("norm", "parallel"),
        ("length", "parallel"),
        ("clamp_sum", "parallel"),
        ("taylor2", "parallel"),
        ("taylor10", "parallel"),
    ]
    for name, form in names[: 1 if quick else None]:
        used = child(ATTENTION, name, form, T, 64, 64)
        yield Record(name, f"(1, 8, {T}, 64) forward+backward", "float32", "600 MB", used, 600.0, "MB", 1.0)
    used = child(ATTENTION, "taylor2", "chunked", T, 16, 64)
    yield Record("taylor2 chunked d=16", f"(1, 8, {T}) forward+backward", "float32", "600 MB", used, 600.0, "MB", 1.0)
    for form in ("reference", "parallel", "chunked"):
        lengths = (1024, 2048, 4096) if form == "reference" else (1024, 2048, 4096, 8192)  # dense: 29 GB at 8,192
        for T in (128,) if quick else lengths:
            used = child(ATTENTION, "taylor2", form, T, 16, 64)
            shape = f"(1, 8, {T}) forward+backward"
            scores = 8 * T * T * 4 / 2**20
            yield Record(
                f"taylor2 d=16 {form}", shape, "float32", "one T x T tensor", max(used, 0.1), scores, "MB", None,
                curve=f"memory|{form}", length=T,
            )  # fmt: skip
    short, long = (600, 700) if quick else (1024, 65536)
    one, two = child(GENERATE, short), child(GENERATE, long)
    note = f"{one:.0f} MB above the first {600} tokens after {short:,}, {two:.0f} MB after {long:,}; a KV cache would grow by "
    note += f"{2 * 2 * 64 * 4 * (long - short) / 2**20:.0f} MB"
    yield Record("generate, taylor2", f"{long:,} tokens", "float32", "64 MB", two, 64.0, "MB", 1.0, note=note)
