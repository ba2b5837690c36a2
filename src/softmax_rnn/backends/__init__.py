"""Three primitives that everything is computed with, each an ordered tuple of implementations; the first that does not refuse runs.

    softmax_lse    q, k, v -> softmax output O and log-sum-exp        sdpa, flash (CPU), triton and flex (CUDA), tiles
    weighted_sum   q, k, v -> numerator A and sum of weights Z        triton and flex (CUDA), tiles
    scan           q, k, v, state -> numerator A and the state after          triton (CUDA), chunks

An implementation belongs to a backend, ``torch``, ``flex`` or ``triton``: ``attention(..., backend=...)`` asks for one of them by name.

    operators.py  how an operator is made: forward, backward, and a plain version for everything else
    dense.py      the first two primitives and the delta rule as the formula reads: the specification
    tiles.py      the same in O(T) memory, with every factor
    flash.py      softmax_lse by torch's flash kernel on the CPU
    triton/       the primitives as kernels for NVIDIA cards
    flex.py       the first two by FlexAttention, where weights are positive
    chunks.py     the third primitive: order 1 in linear.py and linear_delta.py, every order in scan.py
    delta.py      what the delta rule writes, in tiles and in chunks
    powers.py     Kronecker features and moments
    scores.py     scores under channel decay, weights and their slopes, for a tile
    native/       the loops of tiles.py and linear.py in C, where there is a compiler
    threads.py    sequences divided between the threads of a CPU
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..context import Context
from ..errors import MechanismError
from . import chunks, native, triton
from .flash import flash_lse
from .flex import even_taylor, flex_lse, logarithm
from .operators import transformed
from .tiles import softmax_tiles, weighted_tiles

BACKENDS = ("auto", "torch", "flex", "triton")
Call = TypeVar("Call")


@dataclass(frozen=True)
class SoftmaxCall:
    """What ``softmax_lse`` is asked: q (B, H, Tq, D), k and v (B, Hkv, Tk, ...), zero where padded; at least one key."""

    q: Tensor
    k: Tensor
    v: Tensor
    context: Context
    scale: float
    softcap: float | None
    needs_lse: bool


@dataclass(frozen=True)
class WeightedCall:
    """What ``weighted_sum`` is asked; no coefficients stands for exp."""

    q: Tensor
    k: Tensor
    v: Tensor
    context: Context
    scale: float
    coefficients: Sequence[float]
    limit: float | None
    with_total: bool


@dataclass(frozen=True)
class ScanCall:
    """What ``scan`` is asked: q (N, G, T, D) scaled, k (N, T, D), v (N, T, E) in float32 at least, and the state (N, rows, E) before them.

    Clocks are of queries and of keys. ``beta`` (N, T), relative to the weight of a key with itself, is for the delta rule; ``dtype`` is
    what the tensors were given in.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    state: Tensor
    coefficients: Sequence[float]
    chunk_size: int | None
    clock: tuple[Tensor, Tensor] | None
    channels: tuple[Tensor, Tensor] | None
    beta: Tensor | None
    scale: float
    dtype: torch.dtype


@dataclass(frozen=True)
class Implementation(Generic[Call]):
    """One way to compute a primitive; ``refuses`` answers with a sentence, or None."""

    name: str
    backend: str
    refuses: Callable[[Call], str | None]
    run: Callable[[Call], Any]


def choose(implementations: Sequence[Implementation[Call]], call: Call, backend: str) -> Implementation[Call]:
    """The first that belongs to the backend and does not refuse."""
    reasons = []
    for implementation in implementations:
        if backend not in ("auto", implementation.backend):
            continue
        reason = implementation.refuses(call)
        if reason is None:
            return implementation
        reasons.append(f"{implementation.name}: {reason}")
    raise MechanismError(
        f"backend='{backend}' cannot compute this ({'; '.join(reasons) or 'it has no such primitive'}): use backend='auto'."
    )


def softmax_lse(call: SoftmaxCall, backend: str = "auto") -> tuple[Tensor, Tensor | None]:
    """Softmax output (B, H, Tq, E) and log-sum-exp (B, H, Tq, 1), or None where nobody needs it and it would cost."""
    return choose(SOFTMAX_LSE, call, backend).run(call)


def weighted_sum(call: WeightedCall, backend: str = "auto") -> tuple[Tensor, Tensor | None]:
    """Numerator (B, H, Tq, E) and sum of weights (B, H, Tq, 1), or None."""
    return choose(WEIGHTED_SUM, call, backend).run(call)


def scan_sums(call: ScanCall, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Numerator (N, G, T, E) and the state after."""
    return choose(SCAN, call, backend).run(call)


SMALL = (16, 32)  # channels of heads for which native/products.h has products of its own


def _is_causal(context: Context) -> bool:
    return True if context.causal and context.queries > 1 else False  # noqa: SIM210  # an expression would be a symbol under torch.compile


def _small_refuses(call: SoftmaxCall) -> str | None:
    """Where the loops in C take less time than torch's kernels."""
    if call.q.shape[-1] not in SMALL or call.v.shape[-1] not in SMALL:
        return "it is for heads of 16 or 32 channels"
    if torch.compiler.is_exporting() or torch.jit.is_tracing() or transformed():
        return "it cannot be exported or transformed"
    wide = call.q.new_empty(0, dtype=torch.promote_types(call.q.dtype, torch.float32))
    fits = call.q.shape[-2] >= 64 and native.takes(wide, softcap=call.softcap)
    return None if fits else "it is for 64 queries and more, and for the loops in C"


def _sdpa_refuses(call: SoftmaxCall) -> str | None:
    c = call.context
    if call.needs_lse or call.softcap is not None or c.decays or c.bias is not None:
        return "the log-sum-exp, a cap, a decay or a bias is needed"
    if c.keep is not None or not c.plain:
        return "padding, documents or a window need a mask"
    if call.q.shape[-1] != call.v.shape[-1]:
        return "keys and values have unequal widths, for which it goes dense"
    return "torch.func and forward-mode derivatives need ordinary torch code" if transformed() else None


def _sdpa(call: SoftmaxCall) -> tuple[Tensor, None]:
    q, scale = _positive_scale(call.q, call.scale)
    grouped = bool(q.shape[1] != call.k.shape[1])  # sizes are tensors while torch.jit traces
    out = F.scaled_dot_product_attention(
        q, call.k, call.v, is_causal=_is_causal(call.context), scale=scale, enable_gqa=grouped
    )
    return out, None


def _positive_scale(q: Tensor, scale: float) -> tuple[Tensor, float]:
    """torch's kernels mask by adding -inf before they scale, and in float32 a scale below 1e-38 is 0."""
    return (q, scale) if scale > 1e-30 else (q * scale, 1.0)


def _flash_refuses(call: SoftmaxCall) -> str | None:
    if call.q.device.type != "cpu":
        return "it is for the CPU"
    if call.softcap is not None or call.context.decays:
        return "a cap or a decay is needed"
    if call.context.bias is not None and call.q.dtype not in (torch.float32, torch.float64):
        return "a bias as one more channel would be too coarse in half precision"
    return None


def _flash(call: SoftmaxCall) -> tuple[Tensor, Tensor]:
    q, k, v, c = call.q, call.k, call.v, call.context
    d, e = q.shape[-1], v.shape[-1]
    q, scale = _positive_scale(q, call.scale)
    if c.bias is not None:  # one more channel of the keys
        k = torch.cat([k, c.bias.to(k.dtype)[..., None] / -scale], -1)
        q, d = torch.cat([q, torch.ones_like(q[..., :1])], -1), d + 1
    if d != e:  # the kernel wants equal widths; zero channels change neither the scores nor the other channels
        q, k, v = (F.pad(x, (0, max(d, e) - x.shape[-1])) for x in (q, k, v))
    out, lse = flash_lse(q, k, v, c.keep, None if c.plain else c.bounds(), _is_causal(c), scale)
    return out[..., :e], lse[..., None]


def _flex_refuses(call: SoftmaxCall | WeightedCall) -> str | None:
    if call.q.device.type != "cuda":
        return "it is compiled for CUDA only"
    if call.context.decays:
        return "decay is not computed this way"
    if call.context.bias is not None:
        return "a bias per key is not computed this way"
    return "torch.func and forward-mode derivatives need ordinary torch code" if transformed() else None


def _flex(call: SoftmaxCall) -> tuple[Tensor, Tensor]:
    q, scale = _positive_scale(call.q, call.scale)
    return flex_lse(q, call.k, call.v, call.context, scale, logarithm((), None, call.softcap))


def _flex_weighted_refuses(call: WeightedCall) -> str | None:
    if call.coefficients and not even_taylor(call.coefficients):
        return "only weights that are positive everywhere are computed this way: exp, and Taylor series of even order"
    return _flex_refuses(call)


def _flex_weighted(call: WeightedCall) -> tuple[Tensor, Tensor | None]:
    q, scale = _positive_scale(call.q, call.scale)
    out, lse = flex_lse(q, call.k, call.v, call.context, scale, logarithm(call.coefficients, call.limit, None))
    total = lse.exp() * (call.context.count() > 0)
    return out * total, total


def grouped(q: Tensor, k: Tensor, v: Tensor, c: Context, scale: float, wide: torch.dtype) -> list[Any]:
    """The tensors as tiles and dense functions want them: sequences times kv heads in front, the query heads of each in a group."""
    B, H, Tq, D = q.shape
    Hkv = k.shape[1]
    q = (q.to(wide) * scale).reshape(B * Hkv, H // Hkv, Tq, D)
    clocks: list[Tensor | None] = []
    for clock in (c.clock, c.channels):
        if clock is None:
            clocks += [None, None]
        else:
            clocks += [c.query_times(clock).flatten(0, 1).contiguous(), clock.flatten(0, 1).contiguous()]
    lo, hi = (x.expand(B, -1).repeat_interleave(Hkv, 0) for x in c.bounds()) if c.cut else (None, None)
    keep = None if c.keep is None else c.keep.repeat_interleave(Hkv, 0)
    k, v = (x.to(wide).flatten(0, 1).contiguous() for x in (k, v))
    return [q.contiguous(), k, v, *clocks, lo, hi, keep, c.causal]


def with_bias(arguments: list[Any], c: Context) -> list[Any]:
    """The arguments of ``grouped`` for softmax: behind the clocks, the bias of the keys."""
    bias = None if c.bias is None else c.bias.to(arguments[1].dtype).flatten(0, 1).contiguous()
    return [*arguments[:7], bias, *arguments[7:]]


def _wide(call: SoftmaxCall | WeightedCall) -> list[Any]:
    wide = torch.promote_types(call.q.dtype, torch.float32)
    return grouped(call.q, call.k, call.v, call.context, call.scale, wide)


def _tiles_softmax(call: SoftmaxCall) -> tuple[Tensor, Tensor]:
    B, H, Tq, _ = call.q.shape
    out, lse = softmax_tiles(*with_bias(_wide(call), call.context), call.softcap)
    return out.reshape(B, H, Tq, call.v.shape[-1]), lse.reshape(B, H, Tq, 1)


def _tiles_weighted(call: WeightedCall) -> tuple[Tensor, Tensor | None]:
    B, H, Tq, _ = call.q.shape
    out, total = weighted_tiles(*_wide(call), list(call.coefficients), call.limit, call.with_total)
    return out.reshape(B, H, Tq, call.v.shape[-1]), total.reshape(B, H, Tq, 1) if call.with_total else None


def _chunks(call: ScanCall) -> tuple[Tensor, Tensor]:
    x = chunks.Sequences(call.q, call.k, call.v, call.state, call.clock, call.channels)
    if call.beta is None:
        return chunks.scan(x, call.coefficients, call.chunk_size)
    return chunks.delta_scan(x, call.beta, call.coefficients, call.scale, call.chunk_size)


def _never(call: Any) -> None:
    return None


SOFTMAX_LSE: tuple[Implementation[SoftmaxCall], ...] = (
    Implementation("small tiles", "torch", _small_refuses, _tiles_softmax),
    Implementation("sdpa", "torch", _sdpa_refuses, _sdpa),
    Implementation("flash", "torch", _flash_refuses, _flash),
    Implementation("triton", "triton", triton.refuses_softmax, triton.run_softmax),
    Implementation("flex", "flex", _flex_refuses, _flex),
    Implementation("tiles", "torch", _never, _tiles_softmax),
)
WEIGHTED_SUM: tuple[Implementation[WeightedCall], ...] = (
    Implementation("triton", "triton", triton.refuses_weighted, triton.run_weighted),
    Implementation("flex", "flex", _flex_weighted_refuses, _flex_weighted),
    Implementation("tiles", "torch", _never, _tiles_weighted),
)
SCAN: tuple[Implementation[ScanCall], ...] = (
    Implementation("triton", "triton", triton.refuses_scan, triton.run_scan),
    Implementation("chunks", "torch", _never, _chunks),
)
