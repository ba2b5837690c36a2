"""What only a process of its own can tell: ``bench memory``, its peak above what the inputs take, and ``bench startup``."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UserError
from .measure import Comparison, Work, interleave

Found = TypeVar("Found")
WARM_UP = 600  # tokens generated before the peak is taken for the first time


def memory(quick: bool = False) -> Iterator[Comparison]:
    """Forward and backward at T = 16,384 against a limit of 600 MB; a whole dense head would take 1 GB each for w, dw, ..."""
    T = 512 if quick else 16384
    for name in ("norm",) if quick else ("norm", "length", "clamp_sum", "taylor2", "taylor10"):
        used = in_new_process(attention_peak, name, "parallel", T, 64, 64)
        yield Comparison(name, f"(1, 8, {T}, 64) forward+backward", "600 MB", used, 600.0, 1.0, "MB")
    constant = [("taylor2", 16), ("near2", 16), ("linear_elu", 64), ("gated_deltanet", 64)]
    forms = [("fox", "parallel", 64)] + [(name, "chunked", D) for name, D in constant]
    for name, form, D in [] if quick else forms:
        used = in_new_process(attention_peak, name, form, T, D, 64)
        yield Comparison(f"{name} {form} d={D}", f"(1, 8, {T}) forward+backward", "600 MB", used, 600.0, 1.0, "MB")
    for form in ("chunked",) if quick else ("reference", "parallel", "chunked"):
        sizes = (1024, 2048, 4096) if form == "reference" else (1024, 2048, 4096, 8192)  # dense: 29 GB at 8,192
        for T in (128,) if quick else sizes:
            used = max(0.1, in_new_process(attention_peak, "taylor2", form, T, 16, 64))
            shape, scores = f"(1, 8, {T}) forward+backward", 8 * T * T * 4 / 2**20
            yield Comparison(
                f"taylor2 d=16 {form}",
                shape,
                "one T x T tensor",
                used,
                scores,
                None,
                "MB",
                curve=f"memory|{form}",
                length=T,
            )
    lengths = (700,) if quick else (1024, 65536)
    used_by = {T: in_new_process(generation_peak, T) for T in lengths}
    first, last = min(lengths), max(lengths)
    cached = 2 * 2 * 64 * 4 * (last - first) / 2**20
    note = f"{used_by[first]:.0f} MB more than after {WARM_UP} tokens after {first:,}, {used_by[last]:.0f} MB after {last:,}; "
    note += f"a KV cache would grow by {cached:.0f} MB"
    yield Comparison("generate, taylor2", f"{last:,} tokens", "64 MB", used_by[last], 64.0, 1.0, "MB", note=note)


def startup(quick: bool = False) -> Iterator[Comparison]:
    """Importing the library and using a name of it, against importing torch; and the command's help."""
    script = str(Path(sys.executable).with_name("softmax-rnn"))
    work = {
        "torch": _command(sys.executable, "-c", "import torch"),
        "ours": _command(sys.executable, "-c", "import softmax_rnn; softmax_rnn.attention"),
        "help": _command(script, "--help"),
    }
    t = interleave(work, 1 if quick else 7)
    name, shape = "import softmax_rnn", "and touch attention"
    yield Comparison.of_times(name, shape, "import torch", t["ours"], t["torch"], 1.1, dtype="-")
    spent = t["help"]
    yield Comparison("softmax-rnn --help", "", "0.5 s", spent.best, 0.5, 1.0, dtype="-", spread=spent.spread)


def in_new_process(function: Callable[..., Found], *arguments: Any) -> Found:
    """What the function returns in a fresh interpreter, whose memory nobody has used before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_mb() -> float:
    """The highest resident memory of this process so far, in MB."""
    try:
        with open("/proc/self/status") as status:
            return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024
    except OSError:
        raise UserError("bench memory reads /proc and needs Linux.") from None


def above(base: float) -> float:
    """How far the peak has risen, in MB. Linux counts some pages late, so that what needs none may seem to need less than none."""
    return max(0.0, peak_mb() - base)


def attention_peak(name: str, form: str, T: int, D: int, E: int) -> float:
    """MB that forward and backward of one attention need above their inputs."""
    import torch

    from .. import attention, mechanism

    torch.set_num_threads(2)
    least = {"log_decay": -0.04, "beta": 1.0}  # drawn between 0 and these

    def used(T: int) -> float:
        q, k, v = (torch.randn(1, 8, T, n, requires_grad=True) for n in (D, D, E))
        more: dict[str, Any] = {
            x.name: (torch.rand(1, 8, T) * least[x.name]).requires_grad_() for x in mechanism(name).inputs
        }
        base = peak_mb()
        attention(q, k, v, name, form=form, **more).sum().backward()
        return above(base)

    used(256)  # what torch itself allocates at its first call does not count
    return used(T)


def generation_peak(T: int) -> float:
    """MB that a prompt of T tokens and 8 new ones need above the model and what ``WARM_UP`` tokens took."""
    import torch

    from .. import SoftmaxRnnConfig, SoftmaxRnnForCausalLM

    torch.set_num_threads(2)
    torch.manual_seed(0)
    config = SoftmaxRnnConfig(
        mechanism="taylor2",
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=2**17,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=None,
    )
    model: Any = SoftmaxRnnForCausalLM(config).eval()

    def generate(T: int) -> None:
        with torch.no_grad():
            ids = torch.randint(1, 512, (1, T))
            model.generate(ids, max_new_tokens=8, do_sample=False, prefill_chunk_size=512)

    generate(WARM_UP)
    base = peak_mb()
    generate(T)
    return above(base)


def _command(*words: str) -> Work:
    """With Python's own cache of compiled files, which some containers switch off."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return lambda: subprocess.run(words, check=True, capture_output=True, env=environment)
