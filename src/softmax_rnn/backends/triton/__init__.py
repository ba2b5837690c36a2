"""The three primitives as Triton kernels for NVIDIA cards: one file each, and what they share.

    common.py     loading, masks, decay, polynomials, launching
    softmax.py    softmax_lse
    weighted.py   weighted_sum
    scan.py       scan, for orders 0 to 2; orders.py how its state lies in memory; delta.py what the delta rule of order 1 writes
    trial.py      whether a card computes what the specification says, asked once before its first use

Nothing here imports Triton until a call is computed this way (``pip install softmax-rnn[triton]``); what they cannot do they refuse with a
sentence. With TRITON_INTERPRET=1 in the environment the kernels run on the CPU, slowly, as ordinary array operations: that is how their
numbers are tested.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...context import Context
from ..operators import transformed
from . import trial

if TYPE_CHECKING:
    from .. import ScanCall, SoftmaxCall, WeightedCall

WIDEST = {
    torch.float32: 64,
    torch.bfloat16: 128,
    torch.float16: 128,
}  # channels of keys and values in a tile, without spilling
WIDEST_KEY = 64  # channels of keys in a scan
HIGHEST = 2  # order of a scan
PROGRAMS = 65_535  # along an axis of a grid: sequences times heads
OLDEST = 8  # major compute capability: tf32 and bfloat16 matrix units
INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # do kernels run on the CPU? As Triton itself reads it, once


def missing() -> str | None:
    """Why this machine cannot run the kernels, in a sentence; None if it can."""
    if not INSTALLED:
        return "Triton is not installed (pip install softmax-rnn[triton])"
    if INTERPRETED:
        return None
    if not torch.cuda.is_available():
        return "there is no GPU"
    if torch.version.hip is not None or torch.cuda.get_device_properties().major < OLDEST:
        return f"the GPU is not an NVIDIA card of compute capability {OLDEST}.0 or newer"
    return None


def too_wide(key_dim: int, value_dim: int, dtype: torch.dtype) -> str | None:
    """Why heads of these sizes are refused; None if they are not."""
    if max(key_dim, value_dim) <= WIDEST[dtype]:
        return None
    name = str(dtype).removeprefix("torch.")
    return f"heads have {key_dim} and {value_dim} channels, and its tiles in {name} at most {WIDEST[dtype]}"


def describe(key_dim: int, value_dim: int) -> str:
    """For ``explain``: whether calls with heads of these sizes are computed here, and why not."""
    reason = too_wide(key_dim, value_dim, torch.bfloat16) or missing()
    if reason is not None:
        return f"triton is not used: {reason}"
    where = "the CPU, by its interpreter" if INTERPRETED else "the GPU"
    wide = max(key_dim, value_dim) > WIDEST[torch.float32]
    return f"triton is used for {'' if wide else 'float32, '}bfloat16 and float16 tensors on {where}"


def _refuses(x: Tensor, dtype: torch.dtype, channels: object) -> str | None:
    """What all kernels refuse."""
    if x.device.type != "cuda" and not (x.device.type == "cpu" and INTERPRETED):
        return f"it is for NVIDIA cards, and the tensors are on {x.device.type}"
    if dtype not in WIDEST:
        return f"it computes in float32, bfloat16 and float16, not in {str(dtype).removeprefix('torch.')}"
    if channels is not None:
        return "channel decay changes the score itself"
    if x.shape[0] * x.shape[1] > PROGRAMS:
        return f"{x.shape[0] * x.shape[1]:,} sequences times heads are more than the {PROGRAMS:,} programs of a grid"
    return "torch.func and forward-mode derivatives need ordinary torch code" if transformed() else None


def refuses_softmax(call: SoftmaxCall) -> str | None:
    """Why a call cannot be computed here, in a sentence; None if it can."""
    return _refuses_sums(call) or trial.failed(trial.softmax_kind(call))


def refuses_weighted(call: WeightedCall) -> str | None:
    """The same for ``weighted_sum``."""
    return _refuses_sums(call) or trial.failed(trial.weighted_kind(call))


def _refuses_sums(call: SoftmaxCall | WeightedCall) -> str | None:
    reason = _refuses(call.q, call.q.dtype, call.context.channels)
    return reason or too_wide(call.q.shape[-1], call.v.shape[-1], call.q.dtype) or missing()


def refuses_scan(call: ScanCall) -> str | None:
    """Why a scan cannot be computed here, in a sentence; None if it can."""
    D, order = call.q.shape[-1], len(call.coefficients) - 1
    reason = _refuses(call.q, call.dtype, call.channels)
    if reason is not None:
        return reason
    if order > HIGHEST:
        return f"it scans orders up to {HIGHEST}, not {order}"
    if D > WIDEST_KEY:
        return f"keys have {D} channels, and its scan at most {WIDEST_KEY}"
    if call.beta is not None and list(call.coefficients) != [0.0, 1.0]:
        return "it has the delta rule for order 1 alone"
    if call.chunk_size is not None:
        return f"it chooses its chunks itself, and chunk_size={call.chunk_size} was asked for"
    if torch.compiler.is_exporting() or call.q.numel() == 0:
        return "the length is not known, or nothing is there"
    return missing() or trial.failed(trial.scan_kind(call))


def run_softmax(call: SoftmaxCall) -> tuple[Tensor, Tensor]:
    """``softmax_lse``."""
    from .softmax import softmax

    q, k, v, clocks, bounds, keep = _tensors(call.q, call.k, call.v, call.context)
    bias = call.context.bias
    bias = None if bias is None else bias.float().flatten(0, 1).contiguous()
    out, lse = softmax(q, k, v, *clocks, bias, *bounds, keep, call.context.causal, call.scale, call.softcap)
    return out.reshape(*call.q.shape[:3], -1), lse.reshape(*call.q.shape[:3], 1)


def run_weighted(call: WeightedCall) -> tuple[Tensor, Tensor | None]:
    """``weighted_sum``."""
    from .weighted import weighted

    q, k, v, clocks, bounds, keep = _tensors(call.q, call.k, call.v, call.context)
    what = (call.context.causal, call.scale, list(call.coefficients), call.limit, call.with_total)
    out, total = weighted(q, k, v, *clocks, *bounds, keep, *what)
    shape = call.q.shape[:3]
    return out.reshape(*shape, -1), total.reshape(*shape, 1) if call.with_total else None


def run_scan(call: ScanCall) -> tuple[Tensor, Tensor]:
    """``scan``; under the delta rule first what is written, then the sums over that."""
    from .delta import delta
    from .scan import scan

    q, k, v = (x.to(call.dtype) for x in (call.q, call.k, call.v))
    if call.beta is not None:
        c = None if call.clock is None else call.clock[1]
        v = delta(k, v, call.beta, call.state, c, call.scale)  # in float32
    return scan(q, k, v, call.state, call.coefficients, call.clock)


def _tensors(q: Tensor, k: Tensor, v: Tensor, c: Context) -> tuple[Any, ...]:
    """As the kernels want them: sequences times kv heads in front, the query heads of each in a group, in one dtype; bounds in int32."""
    (B, H, Tq, D), Hkv = q.shape, k.shape[1]
    dtype = torch.promote_types(q.dtype, torch.promote_types(k.dtype, v.dtype))
    q = q.to(dtype).reshape(B * Hkv, H // Hkv, Tq, D).contiguous()
    k, v = (x.to(dtype).flatten(0, 1).contiguous() for x in (k, v))
    clocks: tuple[Tensor | None, Tensor | None] = (None, None)
    if c.clock is not None:
        clocks = (c.query_times(c.clock).flatten(0, 1).contiguous(), c.clock.flatten(0, 1).contiguous())
    bounds: tuple[Tensor | None, ...] = (None, None)
    if c.cut:
        bounds = tuple(x.expand(B, -1).repeat_interleave(Hkv, 0).int().contiguous() for x in c.bounds())
    keep = None if c.keep is None else c.keep.repeat_interleave(Hkv, 0).contiguous()
    return q, k, v, clocks, bounds, keep
