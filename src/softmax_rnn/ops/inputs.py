"""Checks on what users pass to ``attention``: each answers with one sentence, before anything is computed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..algebra import Mechanism
from ..errors import MechanismError, is_number
from ..norms import LEARNED
from .state import KroneckerState, KVState, State

FORMS = ("auto", "parallel", "chunked", "recurrent", "reference")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Dims(NamedTuple):
    """Sizes by name."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    key_dim: int
    value_dim: int


def _has_tangent(x: Tensor) -> bool:
    # torch would give a custom operator's output a tangent of zero, without a word.
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> Dims:
    """Ranks, dtypes, devices and the sizes that must agree."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise MechanismError(f"{name} must be a torch.Tensor, got {type(x).__name__}.")
        if not torch.compiler.is_compiling() and _has_tangent(x):
            raise MechanismError("Forward-mode derivatives (jvp) are not there: the sums know how to go backward only.")
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


def check_mechanism_arguments(m: Mechanism, dims: Dims, given: dict[str, Tensor | None]) -> None:
    """Gates, exponent and norm weights: present if and only if the mechanism has the slot, and of the right shape."""
    shapes: dict[str, tuple[int, ...]] = {
        "input_gate": (dims.batch, dims.kv_heads, dims.keys),
        "output_gate": (dims.batch, dims.heads, dims.queries),
        "length_exponent": (dims.heads,),
        "norm_weight": (dims.value_dim,),
        "norm_bias": (dims.value_dim,),
    }
    learned = {f"norm_{p}" for p in LEARNED[m.norm]} if m.norm else set()
    for name, shape in shapes.items():
        value = given[name]
        if value is None:
            if name in m.parameters:
                raise MechanismError(f"The mechanism '{m}' needs {name}= of shape {shape}.")
        elif name not in m.parameters and name not in learned:
            raise MechanismError(f"The mechanism '{m}' has no use for {name}=; leave it out.")
        elif tuple(value.shape) != shape:
            raise MechanismError(f"{name} must have shape {shape}, got {tuple(value.shape)}.")


def check_tensors(q: Tensor, given: dict[str, Tensor | None]) -> None:
    """Everything a tensor, on the device of the queries."""
    for name, value in given.items():
        if value is None:
            continue
        if not isinstance(value, Tensor):
            raise MechanismError(f"{name} must be a torch.Tensor, got {type(value).__name__}.")
        if value.device != q.device:
            raise MechanismError(f"{name} is on {value.device}, q on {q.device}: move it there.")


def check_masks(dims: Dims, keep: Tensor | None, segments: Tensor | None) -> None:
    """key_padding_mask must be bool (B, Tk), segment_ids whole numbers (B, T)."""
    if keep is not None:
        if keep.dtype != torch.bool:
            raise MechanismError(f"key_padding_mask must be bool with True = keep, got {keep.dtype}.")
        if tuple(keep.shape) != (dims.batch, dims.keys):
            raise MechanismError(f"key_padding_mask must be {(dims.batch, dims.keys)}, got {tuple(keep.shape)}.")
    if segments is not None:
        if segments.is_floating_point() or segments.dtype == torch.bool or segments.is_complex():
            raise MechanismError(f"segment_ids must be whole numbers, got {segments.dtype}.")
        if dims.queries != dims.keys or tuple(segments.shape) != (dims.batch, dims.keys):
            raise MechanismError(
                f"segment_ids must be {(dims.batch, dims.keys)} and need as many queries as keys, "
                f"got {tuple(segments.shape)} with {dims.queries} queries."
            )


def check_center(m: Mechanism, dims: Dims, center: Tensor | None) -> None:
    """Centring multiplies all weights of a query by one number; something must cancel it."""
    if center is None:
        return
    if not m.kernel.shiftable:
        raise MechanismError(
            f"center= is for exp and its Taylor series; {m.kernel.text()} would become something else."
        )
    if not m.cancels_scale:
        raise MechanismError(f"center= changes the result of '{m}': only a plain Sum() or a vector norm cancels it.")
    if tuple(center.shape) != (dims.kv_heads, dims.key_dim):
        raise MechanismError(f"center must have shape {(dims.kv_heads, dims.key_dim)}, got {tuple(center.shape)}.")


def check_form(m: Mechanism, form: str, causal: bool, state: State | None, chunk_size: int | None) -> None:
    """The form exists and can compute this kernel."""
    if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
        raise MechanismError(f"chunk_size must be a whole number >= 1 or None, got {chunk_size!r}.")
    if form not in FORMS:
        raise MechanismError(f"form must be one of {', '.join(FORMS)}, got {form!r}.")
    if form == "chunked" and not m.kernel.finite:
        raise MechanismError(
            f"{m.kernel.text()} has no finite recurrent state, so no chunked form: use form='parallel'."
        )
    if form == "recurrent" and m.kernel.limit is not None:
        raise MechanismError(f"A clamp on scores cannot be taken apart ({m.kernel.text()}): use form='parallel'.")
    if form == "recurrent" and not causal:
        raise MechanismError("The recurrent form goes forward in time: for causal=False use 'chunked' or 'parallel'.")
    if state is not None and form != "auto":
        keeps_kv = form in ("parallel", "reference") or not m.kernel.finite
        if keeps_kv != isinstance(state, KVState):
            raise MechanismError(f"A {type(state).__name__} cannot be continued in the {form} form: use form='auto'.")


def check_state(
    m: Mechanism, dims: Dims, q: Tensor, causal: bool, state: State | None, wanted: bool, center: Tensor | None
) -> None:
    """The state belongs to this mechanism, these shapes and this device; causal lengths fit."""
    if not isinstance(causal, bool):
        raise MechanismError(f"causal must be True or False, got {causal!r}.")
    if (state is not None or wanted) and not causal:
        raise MechanismError("A state streams a causal sequence: it needs causal=True.")
    if causal and dims.queries != dims.keys:
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
    if isinstance(state, KVState):
        memory, columns, key_dim = state.value, dims.value_dim, state.key.shape[-1]
        if memory.dtype != q.dtype:
            raise MechanismError(
                f"The state holds {memory.dtype} values, the inputs are {q.dtype}: stay with one dtype."
            )
    else:
        assert isinstance(state, KroneckerState)
        memory, columns, key_dim = state.moments, dims.value_dim + int(m.denominator.needs_sum), state.head_dim
    if memory.device != q.device:
        raise MechanismError(f"The state is on {memory.device}, q on {q.device}: use state.to(device).")
    sizes = (memory.shape[0], memory.shape[1], memory.shape[-1], key_dim)
    if sizes != (dims.batch, dims.kv_heads, columns, dims.key_dim):
        raise MechanismError(
            f"The state is for batch {memory.shape[0]}, {memory.shape[1]} kv heads and key dim {key_dim}; the inputs have "
            f"batch {dims.batch}, {dims.kv_heads} kv heads, key dim {dims.key_dim} and value dim {dims.value_dim}."
        )


def _check_same_center(state: State, center: Tensor | None) -> None:
    if center is None:
        return  # that of the state is used
    if state.center is None:
        raise MechanismError("The state was built without center=; stay with that.")
    if not torch.compiler.is_compiling() and not torch.equal(state.center, center):
        raise MechanismError("The state was built with another center; leave it out, the state knows it.")


def check_scale(m: Mechanism, scale: float | None) -> None:
    """A finite number, and one that keeps the weights positive where they have to be."""
    if scale is None:
        return
    if not is_number(scale):
        raise MechanismError(f"scale must be a finite number or None, got {scale!r}.")
    if m.kernel.signed_at(scale) and m.denominator.needs_sum and not m.allow_signed:
        raise MechanismError(
            f"With scale={scale} the weights of {m.kernel.text()} can be negative, so their sum can be 0: "
            "take a vector norm with Unnormalised(), or say allow_signed=True."
        )
