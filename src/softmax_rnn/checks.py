"""Everything a user can get wrong in a call of ``attention``: each wrong thing is one sentence, before anything is computed.

Annotations such as ``Float[Tensor, "b h t d"]`` document the public functions; they are checked at run time (``checked``) only where
``SOFTMAX_RNN_CHECK_SHAPES`` is set, as the test suite does, and jaxtyping is installed.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from .backends import BACKENDS
from .backends.operators import tracing
from .errors import MechanismError, is_number
from .problem import Dims, Setting, blank
from .slots import Input
from .slots.kernels import Near
from .slots.mechanism import Mechanism
from .state import KroneckerState, KVState, NearState, State

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ModuleNotFoundError:

        class Float:
            """Stands for ``torch.Tensor`` where jaxtyping is not installed."""

            def __class_getitem__(cls, item: Any) -> type:
                return Tensor

        Bool = Int = Float

F = TypeVar("F", bound=Callable[..., Any])
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> Dims:
    """Ranks, dtypes, devices and the sizes that must agree."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise MechanismError(f"{name} must be a torch.Tensor, got {type(x).__name__}.")
        if x.ndim != 4:
            raise MechanismError(f"{name} must have shape (batch, heads, tokens, dim), got {tuple(x.shape)}.")
    if not (q.dtype == k.dtype == v.dtype) or q.dtype not in DTYPES:
        raise MechanismError(f"q, k and v must share one floating dtype, got {q.dtype}, {k.dtype} and {v.dtype}.")
    if not (q.device == k.device == v.device):
        raise MechanismError(f"q, k and v must be on one device, got {q.device}, {k.device} and {v.device}.")
    B, H, Tq, D = q.shape
    _, Hkv, Tk, E = v.shape
    if v.shape[0] != B:
        raise MechanismError(f"v must have the batch size of q, {B}, got {v.shape[0]}.")
    if k.shape != (B, Hkv, Tk, D):
        raise MechanismError(
            f"k must have shape {(B, Hkv, Tk, D)} to go with q {tuple(q.shape)} and v {tuple(v.shape)}, got {tuple(k.shape)}."
        )
    if Hkv == 0 or H % Hkv:
        raise MechanismError(f"The {H} query heads must be a multiple of the {Hkv} key/value heads.")
    if D == 0 or E == 0:
        raise MechanismError("The head dimension must be at least 1.")
    return Dims(B, H, Hkv, Tq, Tk, D, E)


def check_inputs(
    m: Mechanism, dims: Dims, q: Tensor, given: Mapping[str, Tensor | None], keep: Tensor | None
) -> dict[str, Tensor]:
    """What the slots declared: present unless optional, tensors of the declared shape and range; nothing else. Returns those given."""
    declared = {x.name: x for x in m.inputs}
    found: dict[str, Tensor] = {}
    for name, value in given.items():
        if value is None:
            continue
        if not isinstance(value, Tensor):
            raise MechanismError(f"{name} must be a torch.Tensor, got {type(value).__name__}.")
        if name not in declared:
            raise MechanismError(f"The mechanism '{m}' has no use for {name}=; leave it out.")
        check_tensor(name, value, dims.shape(declared[name]), q)
        _check_range(declared[name], value, keep)
        found[name] = value
    for name, x in declared.items():
        if name not in found and not x.optional:
            raise MechanismError(f"The mechanism '{m}' needs {name}= of shape {dims.shape(x)} ({x.what}).")
    width = m.kernel.width(dims.key_dim)
    if m.decay == "channel" and width != dims.key_dim:
        raise MechanismError(
            f"Channel decay has a number for each of the {dims.key_dim} key channels, but the feature map of '{m}' makes them {width}: "
            "take decay='token', or a map that keeps the channels."
        )
    return found


def check_tensor(name: str, value: object, shape: tuple[int, ...], q: Tensor) -> None:
    """A tensor of this shape, on the device of the queries."""
    if not isinstance(value, Tensor):
        raise MechanismError(f"{name} must be a torch.Tensor, got {type(value).__name__}.")
    if value.device != q.device:
        raise MechanismError(f"{name} is on {value.device}, q on {q.device}: move it there.")
    if tuple(value.shape) != shape:
        raise MechanismError(f"{name} must have shape {shape}, got {tuple(value.shape)}.")
    if value.is_complex():
        raise MechanismError(f"{name} must hold real numbers, got {value.dtype}.")


def _check_range(declared: Input, value: Tensor, keep: Tensor | None) -> None:
    """Gates are not checked (a little over 1 does no harm); what would make a state explode is, on the CPU, where looking costs nothing."""
    if declared.name not in ("log_decay", "beta") or tracing() or value.device.type != "cpu" or value.numel() == 0:
        return
    value = value.detach() if keep is None else blank(value.detach(), declared, keep)
    low, high = torch.aminmax(value.masked_fill(value.isnan(), 0.0))  # a NaN must not hide what is wrong elsewhere
    if bool(low < declared.low) or bool(high > declared.high):
        bad = low if bool(low < declared.low) else high
        limits = (
            f"at most {declared.high:g}"
            if declared.low == -float("inf")
            else f"from {declared.low:g} to {declared.high:g}"
        )
        raise MechanismError(f"{declared.name} must be {limits}, got {bad.item():g}.")


def check_masks(dims: Dims, q: Tensor, keep: Tensor | None, segments: Tensor | None) -> None:
    """key_padding_mask must be bool (B, Tk), segment_ids whole numbers (B, T)."""
    if keep is not None:
        if isinstance(keep, Tensor) and keep.dtype != torch.bool:
            raise MechanismError(f"key_padding_mask must be bool with True = keep, got {keep.dtype}.")
        check_tensor("key_padding_mask", keep, (dims.batch, dims.keys), q)
    if segments is not None:
        if isinstance(segments, Tensor) and (
            segments.is_floating_point() or segments.dtype == torch.bool or segments.is_complex()
        ):
            raise MechanismError(f"segment_ids must be whole numbers, got {segments.dtype}.")
        if dims.queries != dims.keys:
            raise MechanismError(
                f"segment_ids need as many queries as keys, got {dims.queries} queries and {dims.keys} keys."
            )
        check_tensor("segment_ids", segments, (dims.batch, dims.keys), q)


def check_center(m: Mechanism, dims: Dims, center: Tensor | None) -> None:
    """Centring multiplies all weights of a query by one number; something must cancel it."""
    if center is None:
        return
    if not m.kernel.shiftable or m.decay == "channel" or m.update == "delta":
        raise MechanismError(
            f"center= is for exp and its Taylor series, without channel decay and delta; '{m}' would become something else."
        )
    if not m.cancels_scale:
        raise MechanismError(f"center= changes the result of '{m}': only a plain Sum() or a vector norm cancels it.")
    if not isinstance(center, Tensor) or tuple(center.shape) != (dims.kv_heads, dims.key_dim):
        got = tuple(center.shape) if isinstance(center, Tensor) else type(center).__name__
        raise MechanismError(f"center must have shape {(dims.kv_heads, dims.key_dim)}, got {got}.")


def check_options(
    m: Mechanism,
    dtype: torch.dtype,
    causal: object,
    scale: object,
    window: object,
    chunk_size: object,
    backend: object,
) -> None:
    """Numbers and flags; and a scale that keeps the weights positive where they have to be."""
    if not isinstance(causal, bool):
        raise MechanismError(f"causal must be True or False, got {causal!r}.")
    for name, value in (("chunk_size", chunk_size), ("window", window)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise MechanismError(f"{name} must be a whole number >= 1 or None, got {value!r}.")
    if backend not in BACKENDS:
        raise MechanismError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}.")
    if not causal:
        what = {
            "window=": window,
            "decay": m.decay,
            "the delta rule": m.update == "delta",
            "Near": isinstance(m.kernel, Near),
        }
        wrong = [name for name, there in what.items() if there]
        if wrong:
            raise MechanismError(f"{wrong[0]} looks back in time, so it needs causal=True.")
    if window is not None and isinstance(m.kernel, Near):
        raise MechanismError("Near has a window of its own: leave window= out.")
    if scale is None:
        return
    if not is_number(scale):
        raise MechanismError(f"scale must be a finite number or None, got {str(scale)[:40]}.")
    most = torch.finfo(torch.promote_types(dtype, torch.float32)).max
    if abs(float(scale)) > most:  # type: ignore[arg-type]
        raise MechanismError(f"scale must be at most {most:.3g} for {dtype}, got {scale!r}.")
    if m.kernel.signed_at(float(scale)) and m.denominator.needs_sum and not m.allow_signed:  # type: ignore[arg-type]
        raise MechanismError(
            f"With scale={scale} the weights of {m.kernel.text()} can be negative, so their sum can be 0: "
            "take a vector norm with Unnormalised(), or say allow_signed=True."
        )


def check_state(setting: Setting, q: Tensor, state: State | None, wanted: bool, center: Tensor | None) -> None:
    """The state belongs to this mechanism, these shapes, this dtype and this device; causal lengths fit."""
    m, dims = setting.mechanism, setting.dims
    if (state is not None or wanted) and not setting.causal:
        raise MechanismError("A state streams a causal sequence: it needs causal=True.")
    if setting.causal and dims.queries != dims.keys:
        if state is None:
            raise MechanismError(
                f"Causal attention of {dims.queries} queries over {dims.keys} keys needs a state with the earlier keys; "
                "for cross-attention say causal=False."
            )
        if 0 < dims.keys < dims.queries:
            raise MechanismError(
                f"With a state, {dims.queries} queries need as many new keys or none, got {dims.keys}."
            )
    if state is None:
        return
    if not isinstance(state, State):
        raise MechanismError(f"state must come from attention(..., return_state=True), got {type(state).__name__}.")
    if state.mechanism != m:
        raise MechanismError(f"The state belongs to '{state.mechanism}', not to '{m}'.")
    _check_same_center(state, center)
    _check_window(setting.window, state)
    _check_memory(m, dims, q, state)


def _check_window(window: int | None, state: State) -> None:
    """The keys that the window asks for are there."""
    if not isinstance(state, KVState):
        if window is not None:
            raise MechanismError(
                "This state was made without window= and holds no keys that could leave it: continue without window=, "
                "or begin again with it."
            )
        return
    kept = state.key.shape[2]
    if state.tokens > kept and (window is None or window > kept + 1):
        raise MechanismError(
            f"The state was made with a window and holds the newest {kept} keys: continue with window={kept} "
            f"(at most {kept + 1}), got {window}."
        )


def _check_memory(m: Mechanism, dims: Dims, q: Tensor, state: State) -> None:
    key_dim = m.kernel.width(dims.key_dim)
    if isinstance(state, NearState):
        _check_memory(m, dims, q, state.near)
        return _check_memory(m, dims, q, state.far)
    if isinstance(state, KVState):
        memory, dtype, sizes = state.value, state.value.dtype, (*_ends(state.value), state.key.shape[-1])
        expected, columns = q.dtype, dims.value_dim
    else:
        assert isinstance(state, KroneckerState)
        memory, dtype, sizes = state.moments, state.moments.dtype, (*_ends(state.moments), state.head_dim)
        expected, columns = (
            torch.promote_types(q.dtype, torch.float32),
            dims.value_dim + int(m.denominator.needs_sum or isinstance(m.kernel, Near)),
        )
    if dtype != expected:
        raise MechanismError(
            f"The state holds {dtype} numbers, inputs of {q.dtype} need {expected}: stay with one dtype."
        )
    if memory.device != q.device:
        raise MechanismError(f"The state is on {memory.device}, q on {q.device}: use state.to(device).")
    if sizes != (dims.batch, dims.kv_heads, columns, key_dim):
        raise MechanismError(
            f"The state is for batch {sizes[0]}, {sizes[1]} kv heads and key dim {sizes[3]}; the inputs have "
            f"batch {dims.batch}, {dims.kv_heads} kv heads, key dim {key_dim} and value dim {dims.value_dim}."
        )


def _ends(memory: Tensor) -> tuple[int, int, int]:
    return memory.shape[0], memory.shape[1], memory.shape[-1]


def _check_same_center(state: State, center: Tensor | None) -> None:
    if center is None:
        return  # that of the state is used
    if state.center is None:
        raise MechanismError("The state was built without center=; stay with that.")
    if not tracing() and not torch.equal(state.center, center):
        raise MechanismError("The state was built with another center; leave it out, the state knows it.")


def checked(function: F) -> F:
    """Check the annotated shapes of ``function`` while tests run; otherwise return it unchanged."""
    if not os.environ.get("SOFTMAX_RNN_CHECK_SHAPES"):
        return function
    from beartype import beartype
    from jaxtyping import jaxtyped

    strict = jaxtyped(typechecker=beartype)(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return (function if torch.compiler.is_compiling() else strict)(*args, **kwargs)

    return wrapper  # type: ignore[return-value]
