"""A trial before the first use: kernels that give other numbers than the specification on a card are not used there.

The kernels are tested in Triton's interpreter; cards, drivers and versions of Triton differ. So the first call of a kind (primitive, card,
dtype, head sizes, factors) is preceded by a small problem of that kind, forward and backward, which is compared with tiles and chunks in
float64 on the CPU. What it compiles is what the call needs. If the numbers differ, or nothing comes back, the kernels refuse calls of that
kind with the reason, the next implementation runs, and a warning says so.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ...context import Context
from ...errors import first_line

if TYPE_CHECKING:
    from .. import ScanCall, SoftmaxCall, WeightedCall

Kind = tuple[Any, ...]
TOKENS = 80  # several tiles
# How far off the largest number may be: more than any rounding, less than any mistake.
TOLERANCE = {torch.float32: 0.02, torch.bfloat16: 0.1, torch.float16: 0.05}


def failed(kind: Kind) -> str | None:
    """Why calls of this kind are not computed by kernels on this card, in a sentence; None if the trial went well."""
    if not kind[1].startswith("cuda") or torch.cuda.is_current_stream_capturing():
        return None
    return verdict(kind)


def softmax_kind(call: SoftmaxCall) -> Kind:
    """What decides which kernels are compiled: constants only, so that torch.compile can ask, too."""
    return "softmax", *_heads(call), (call.scale, call.softcap)


def weighted_kind(call: WeightedCall) -> Kind:
    """The same for ``weighted_sum``."""
    return "weighted", *_heads(call), (call.scale, tuple(call.coefficients), call.limit, call.with_total)


def _heads(call: SoftmaxCall | WeightedCall) -> Kind:
    c, heads = call.context, 1 if call.q.shape[1] == call.k.shape[1] else 2
    factors = (c.causal, c.cut, c.keep is not None, c.clock is not None, c.bias is not None)
    return str(call.q.device), call.q.dtype, call.q.shape[-1], call.v.shape[-1], heads, factors


def scan_kind(call: ScanCall) -> Kind:
    """The same for ``scan``."""
    factors = (call.clock is not None, call.beta is not None)
    heads = min(call.q.shape[1], 2)
    sizes = (str(call.q.device), call.dtype, call.q.shape[-1], call.v.shape[-1], heads)
    return "scan", *sizes, factors, (call.scale, tuple(call.coefficients), call.state.shape[1])


def verdict(kind: Kind) -> str | None:
    """The result of the trial of a kind, which takes place once in a process; torch.compile sees a constant."""
    return hold(kind)


# What torch.compiler.assume_constant_result does, which would import torch's compiler, and with it Triton, into every process.
verdict._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def hold(kind: Kind) -> str | None:
    """Hold the trial; returns what was wrong, and warns."""
    try:
        with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
            worst = error_of(kind)
        reason = None if worst <= TOLERANCE[kind[2]] else f"its numbers differ from the specification by {worst:.0%}"
    except Exception as error:  # compilers and drivers fail in many ways
        reason = f"it does not run ({first_line(error)})"
    if reason is None:
        return None
    warnings.warn(f"The Triton kernels for {kind[0]} are not used on {kind[1]}: in a trial {reason}.", stacklevel=2)
    return f"in a trial on this card {reason}"


def error_of(kind: Kind) -> float:
    """The largest difference of an output or gradient from the specification, relative to the largest number there."""
    found, want = (_outputs_and_gradients(kind, exact) for exact in (False, True))
    errors = [(a.cpu().double() - b).abs().amax() / b.abs().amax().clamp(min=1e-9) for a, b in zip(found, want, strict=True)]
    return max(float(e) if e.isfinite() else float("inf") for e in errors)


def _outputs_and_gradients(kind: Kind, exact: bool) -> list[Tensor]:
    """Of the kernels, or exactly: in float64 on the CPU, of the same numbers."""
    primitive, device, dtype, D, E, heads, factors, own = kind
    source = torch.Generator().manual_seed(0)
    leaves: list[Tensor] = []

    def leaf(x: Tensor, kept: torch.dtype = dtype) -> Tensor:
        x = x.to(kept).to("cpu" if exact else device, torch.float64 if exact else kept).requires_grad_()
        leaves.append(x)
        return x

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=source, dtype=torch.float64)

    def clock() -> Tensor:
        return leaf(drawn(1, 1, TOKENS).abs().mul(-0.05).cumsum(-1), torch.float64)

    if primitive == "scan":
        outputs = _scan(leaf, drawn, clock, kind, exact)
    else:
        causal, cut, padded, decay, bias = factors
        where = torch.device("cpu" if exact else device)
        keep = torch.arange(TOKENS, device=where)[None] >= 3 if padded else None
        q, k, v = leaf(drawn(1, heads, TOKENS, D)), leaf(drawn(1, 1, TOKENS, D)), leaf(drawn(1, 1, TOKENS, E))
        if keep is not None:  # calls come with zeros there
            k, v = k * keep[:, None, :, None], v * keep[:, None, :, None]
        context = Context(
            queries=TOKENS,
            keys=TOKENS,
            causal=causal,
            device=where,
            keep=keep,
            window=TOKENS // 3 if cut else None,
            clock=clock() if decay else None,
            bias=leaf(drawn(1, 1, TOKENS), torch.float32) if bias else None,
        )
        outputs = _sums(primitive, q, k, v, context, own, exact)
    loss = sum((x.double() * torch.linspace(-1, 1, x.numel(), device=x.device).view(x.shape)).sum() for x in outputs)
    assert isinstance(loss, Tensor)
    return [x.detach() for x in (*outputs, *torch.autograd.grad(loss, leaves))]


def _sums(primitive: str, q: Tensor, k: Tensor, v: Tensor, context: Context, own: Kind, exact: bool) -> list[Tensor]:
    from .. import SoftmaxCall, WeightedCall, _tiles_softmax, _tiles_weighted
    from . import run_softmax, run_weighted

    if primitive == "softmax":
        scale, softcap = own
        return list((_tiles_softmax if exact else run_softmax)(SoftmaxCall(q, k, v, context, scale, softcap, True)))
    scale, coefficients, limit, with_total = own
    call = WeightedCall(q, k, v, context, scale, coefficients, limit, with_total)
    return [x for x in (_tiles_weighted if exact else run_weighted)(call) if x is not None]


def _scan(leaf: Any, drawn: Any, clock: Any, kind: Kind, exact: bool) -> list[Tensor]:
    from .. import ScanCall, _chunks
    from . import run_scan

    dtype, D, E, heads, (decay, delta), (scale, coefficients, rows) = kind[2:]
    q, k = leaf(drawn(1, heads, TOKENS, D) * scale), leaf(drawn(1, TOKENS, D))
    times = clock()[0] if decay else None
    beta = leaf(drawn(1, TOKENS).sigmoid(), torch.float32) if delta else None
    call = ScanCall(
        q, k, leaf(drawn(1, TOKENS, E)), leaf(drawn(1, rows, E), torch.float32), coefficients, None,
        None if times is None else (times, times), None, beta, scale, torch.float64 if exact else dtype,
    )
    return list((_chunks if exact else run_scan)(call))
