"""``softmax-rnn bench gpu``: everything that a graphics card has to show, in ten minutes.

    correct    every kernel against the reference in float64 on the CPU: outputs and all gradients
    compiled   registers, spills and shared memory of every kernel that is claimed (also without a card: ``--compile-only``)
    speed      forward and backward beside torch's SDPA, FlexAttention and, where installed, flash-linear-attention

It writes one JSON file and prints what to send back. Without a card it says so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..cli import Parser, whole
from ..errors import UserError
from ..files import check_folder

DEVICE = "cuda"
ROUNDING = 1e-5  # allowed beside twice the dense computation's error in the same dtype, relative to the largest entry
CORRECT = (
    "softmax",
    "fox",
    "length",
    "sink",
    "delta_softmax",
    "taylor2",
    "taylor10",
    "taylor3_norm",
    "taylor2_decay",
    "power2",
)
SCANNED = ("linear_elu", "mamba2", "taylor2", "taylor2_decay", "deltanet", "gated_deltanet")
SOME = ("fox", "taylor10", "taylor2_decay", "gated_deltanet")
FLEXED = ("norm", "length", "taylor2", "taylor10")  # at one size: each is compiled for each size
TIMED = ("norm", "fox", "length", "taylor2", "taylor4", "taylor10")


def main(argv: list[str]) -> int:
    """Check, compile, measure, write."""
    parser = Parser("softmax-rnn bench gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where the record goes (default: gpu.json or compile.json)"
    )
    parser.add_argument(
        "--compile-only", action="store_true", help="compile every kernel for A100 and H100; needs no card"
    )
    parser.add_argument(
        "--processes", type=whole(1, 256), default=os.cpu_count() or 1, help="that compile (default: the cores)"
    )
    parser.add_argument("--quick", action="store_true", help="a few small cases: shows that everything runs")
    options = parser.parse_args(argv)
    path = options.json or Path("compile.json" if options.compile_only else "gpu.json")
    check_folder(path.parent, "--json")
    import torch

    from ..backends.triton import INSTALLED, missing

    if options.compile_only:
        if not INSTALLED:
            raise UserError("Triton is not installed: pip install softmax-rnn[triton].")
        return compile_only(path, options.processes, options.quick)
    reason = missing() or (None if torch.cuda.is_available() else "there is no GPU")
    if reason is not None:
        raise UserError(
            f"Nothing can be measured here, because {reason}; --compile-only compiles the kernels without a GPU."
        )
    record: dict[str, Any] = {
        "environment": environment(),
        "correct": list(correct(options.quick)),
        "speed": list(speed(options.quick)),
    }
    write(path, record)
    wrong = [x for x in record["correct"] if not x["ok"]]
    print(
        f"\n{len(record['correct']) - len(wrong)} of {len(record['correct'])} checks passed. Please send back {path}."
    )
    return 1 if wrong else 0


def environment() -> dict[str, Any]:
    """The card and the versions."""
    import torch
    import triton

    found = {"torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version()}
    found |= {"system": platform.platform(), "date": time.strftime("%Y-%m-%d")}
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties()
        found |= {"gpu": card.name, "capability": f"{card.major}.{card.minor}", "memory": str(card.total_memory)}
        found |= {"cuda": str(torch.version.cuda)}
    return found


def write(path: Path, record: dict[str, Any]) -> None:
    """As JSON, replacing the file at once."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(path)


def compile_only(path: Path, processes: int, quick: bool) -> int:
    """Every kernel that is claimed, for every architecture, into the record."""
    from .ahead import CARDS, claimed, compile_all

    cases = [c for c in claimed() if not quick or (c.width == 16 and c.dtype == "bfloat16" and c.architecture == 80)]
    found = []
    for made in compile_all(cases, processes):
        found.append(made)
        card = CARDS[made.architecture][0]
        note = "" if made.fits else "   DOES NOT FIT"
        print(
            f"{made.kernel:<26} {made.dtype:<9} {made.width:>4} {'all masks' if made.masks else 'no masks':<10} {card}  "
            f"{made.registers:>3} registers {made.spilled_bytes:>5} bytes spilled {made.shared_bytes // 1024:>4} KB shared{note}",
            flush=True,
        )
    cards = {card: {"architecture": f"sm_{a}", "shared_bytes": limit} for a, (card, limit) in CARDS.items()}
    about = {"what": "compiled ahead of time, not run on a card", "cards": cards, **environment()}
    write(path, {"environment": about, "kernels": [made.to_dict() for made in found]})
    bad = [made for made in found if not made.fits]
    print(f"\n{len(found)} kernels compiled, {len(bad)} of them spill or need too much shared memory; wrote {path}.")
    return 1 if bad else 0


def arguments(name: str, B: int, H: int, Hkv: int, T: int, D: int, E: int) -> dict[str, Any]:
    """Random tensors for everything that a mechanism wants, in float64 on the CPU."""
    import torch

    from .. import mechanism
    from ..problem import Dims

    made = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Any:
        return torch.randn(*shape, generator=made, dtype=torch.float64)

    found = {"q": draw(B, H, T, D), "k": draw(B, Hkv, T, D), "v": draw(B, Hkv, T, E)}
    for x in mechanism(name).inputs:
        value, low, high = draw(*Dims(B, H, Hkv, T, T, D, E).shape(x)), max(x.low, -2.0), min(x.high, 2.0)
        found[x.name] = value if x.low == -x.high else low + (high - low) * torch.sigmoid(value)
    return found


def correct(quick: bool) -> Iterator[dict[str, Any]]:
    """Every kernel, dtype and mask against the reference."""
    import torch

    T, sizes = (20, (2, 2, 1, 20, 4, 4)) if quick else (333, (2, 4, 2, 333, 32, 64))
    documents = (torch.arange(T)[None] // (T // 3)).expand(2, -1)
    masks: dict[str, dict[str, Any]] = {
        "causal": {},
        "bidirectional": {"causal": False},
        "window": {"window": T // 4},
        "documents": {"segment_ids": documents},
        "padding": {"key_padding_mask": torch.arange(T)[None] >= torch.tensor([[0], [T // 2]])},
    }
    plan = [(name, "parallel", "causal") for name in CORRECT] + [(name, "chunked", "causal") for name in SCANNED]
    plan += [(name, "parallel", mask) for name in ("softmax", "taylor2") for mask in masks if mask != "causal"]
    plan += [(name, "chunked", "documents") for name in ("taylor2", "gated_deltanet")]
    for name, form, mask in plan[:3] if quick else plan:
        # Most of the time goes into compiling, so float16, which differs from bfloat16 in a few casts, is tried on a few.
        half = (torch.bfloat16, torch.float16) if name in SOME and mask == "causal" else (torch.bfloat16,)
        for dtype in (torch.float32, *half):
            yield check(name, form, mask, masks[mask], dtype, sizes)


def check(
    name: str, form: str, mask: str, options: dict[str, Any], dtype: Any, sizes: tuple[int, ...]
) -> dict[str, Any]:
    """Outputs and gradients by kernels, against the reference in float64 on the same rounded inputs."""
    import torch

    from .. import attention

    rounded = {n: x.to(dtype) for n, x in arguments(name, *sizes).items()}

    def run(where: str, kind: Any, **how: Any) -> list[Any]:
        leaves = {n: x.to(where, kind).requires_grad_() for n, x in rounded.items()}
        given = {n: x.to(where) if hasattr(x, "to") else x for n, x in options.items()}
        out = attention(mechanism=name, **leaves, **given, **how)
        torch.manual_seed(1)
        direction = torch.randn(out.shape, dtype=torch.float64).to(dtype).to(where, kind)
        return [out.detach(), *torch.autograd.grad(out, list(leaves.values()), direction)]

    def error(found: list[Any]) -> float:
        return max(float((a.double().cpu() - b).abs().max()) for a, b in zip(found, exact, strict=True)) / largest

    exact = run("cpu", torch.float64, form="reference")
    largest = max(float(x.abs().max()) for x in exact)
    dense = error(run("cpu", dtype, form="reference"))
    have = error(run(DEVICE, dtype, form=form, backend="triton"))
    allowed = 2 * dense if math.isfinite(dense) else 0.05  # float16 may overflow in the dense computation
    ok = have <= allowed + ROUNDING
    kind = str(dtype).removeprefix("torch.")
    print(f"{name:<18} {form:<9} {mask:<14} {kind:<9} error {have:.1e}   {'ok' if ok else 'WRONG'}", flush=True)
    return {"name": name, "form": form, "mask": mask, "dtype": kind, "error": have, "dense_error": dense, "ok": ok}


def milliseconds(work: Callable[[], Any], repetitions: int = 20) -> float:
    """The median, by the card's own clock, after a warm-up."""
    import torch

    for _ in range(3):
        work()
    times = []
    for _ in range(repetitions):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def speed(quick: bool) -> Iterator[dict[str, Any]]:
    """Forward and backward in bfloat16: each of ours by Triton and by FlexAttention, beside SDPA and what else is there."""
    import torch

    for B, H, T, D in (
        [(1, 1, 32, 16)] if quick else [(8, 16, 1024, 64), (2, 16, 4096, 64), (1, 16, 16384, 64), (2, 16, 4096, 128)]
    ):
        q, k, v = (torch.randn(B, H, T, D, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        anchor = milliseconds(differentiated(_sdpa, q, k, v))
        yield said("SDPA", "torch", (B, H, T, D), anchor, anchor)
        for name, backend, function in competitors(B, H, T, D):
            try:
                took = milliseconds(differentiated(function, q, k, v))
            except Exception as error:  # one that fails must not take the others with it; the record says which and why
                yield said(name, backend, (B, H, T, D), None, anchor, str(error).splitlines()[0][:200])
                continue
            yield said(name, backend, (B, H, T, D), took, anchor)


def competitors(B: int, H: int, T: int, D: int) -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Our mechanisms by backend and form, and other packages' nearest."""
    import torch

    from .. import attention

    decay = -0.05 * torch.rand(B, H, T, device=DEVICE)

    def ours(name: str, **how: Any) -> Callable[..., Any]:
        more: dict[str, Any] = {"log_decay": decay} if name in ("fox", "mamba2", "taylor2_decay") else {}
        more |= how
        return lambda q, k, v: attention(q, k, v, name, **more)

    for name in TIMED:
        yield name, "triton", ours(name, form="parallel", backend="triton")
        if name in FLEXED and (T, D) == (4096, 64):
            yield name, "flex", ours(name, form="parallel", backend="flex")
    if D <= 64:
        for name in ("linear_elu", "mamba2"):
            yield f"{name}, chunked", "triton", ours(name, form="chunked", backend="triton")
        yield "linear_elu, chunked", "torch", ours("linear_elu", form="chunked", backend="torch")
    yield from _fla()


def _fla() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """flash-linear-attention's own kernels, where it can be imported."""
    try:
        from fla.ops.linear_attn import chunk_linear_attn
    except Exception:  # not installed, or not for this version of Triton
        return

    def linear(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # its axes are batch, time, heads, channels
        return chunk_linear_attn(q, k, v, normalize=False)[0]

    yield "linear attention, chunked", "fla", linear


def _sdpa(q: Any, k: Any, v: Any) -> Any:
    import torch.nn.functional as F

    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def differentiated(function: Callable[..., Any], *tensors: Any) -> Callable[[], Any]:
    """Forward and backward."""
    import torch

    direction = torch.randn_like(function(*tensors))
    return lambda: torch.autograd.grad(function(*tensors), tensors, direction)


def said(
    name: str, backend: str, shape: tuple[int, ...], took: float | None, anchor: float, why: str = ""
) -> dict[str, Any]:
    """One line, printed and recorded."""
    ratio = None if took is None else took / anchor
    value = f"failed: {why}" if took is None else f"{took:8.3f} ms {ratio:6.2f}x SDPA"
    print(f"{name:<26} {backend:<7} {shape!s:<22} {value}", flush=True)
    return {
        "name": name,
        "backend": backend,
        "shape": list(shape),
        "milliseconds": took,
        "ratio_to_sdpa": ratio,
        "failed": why,
    }
