"""``attention``: the one entry. It checks, prepares, picks a form, and finishes; the forms do the sums.

q, k, v -> centre, mask, gates, feature map -> a form: numerator and denominator -> gates and norm

``sdpa`` has the signature of torch's ``scaled_dot_product_attention``; ``taylor_terms`` gives the numerator of each order by itself.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Literal, TypeVar, cast, overload

import torch
from torch import Tensor

from .backends.operators import autocast, chosen_precision
from .checks import (
    Bool,
    Float,
    Int,
    check_center,
    check_inputs,
    check_masks,
    check_options,
    check_qkv,
    check_state,
    check_tensor,
    checked,
)
from .errors import MechanismError
from .forms import find_form
from .forms.parallel import needs_lse
from .problem import Setting, Sums, prepare
from .slots import Slot
from .slots.denominators import Unnormalised
from .slots.kernels import Power
from .slots.mechanism import Mechanism
from .slots.presets import mechanism as resolve
from .state import State

F = TypeVar("F", bound=Callable[..., Any])


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: str | Mechanism = ...,
    *,
    return_state: Literal[False] = ...,
    **options: Any,
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, mechanism: str | Mechanism = ..., *, return_state: Literal[True], **options: Any
) -> tuple[Tensor, State]: ...
@checked
def attention(
    q: Float[Tensor, "b h tq d"],
    k: Float[Tensor, "b hkv tk d"],
    v: Float[Tensor, "b hkv tk e"],
    mechanism: str | Mechanism = "softmax",
    *,
    causal: bool = True,
    scale: float | int | None = None,
    form: str = "auto",
    backend: str = "auto",
    window: int | None = None,
    key_padding_mask: Bool[Tensor, "b tk"] | None = None,
    segment_ids: Int[Tensor, "b tk"] | None = None,
    center: Float[Tensor, "hkv d"] | None = None,
    state: State | None = None,
    return_state: bool = False,
    chunk_size: int | None = None,
    **tensors: Tensor | None,
) -> Float[Tensor, "b h tq e"] | tuple[Float[Tensor, "b h tq e"], State]:
    """Attention by any mechanism, in any of its forms; all forms give the same numbers. **Causal unless you say otherwise.**

    Args:
        q, k, v: as in torch's SDPA; k and v may have fewer heads (GQA), v another width.
        mechanism: a name (``softmax_rnn.mechanisms()``) or a ``Mechanism``.
        causal: query t sees keys up to t. False: all keys (bidirectional or cross-attention).
        scale: on the score; None: 1/sqrt(d) for exp, Taylor and Power, 1 for linear feature maps.
        form: "parallel" (O(T) memory), "chunked" (linear time, finite kernels), "recurrent" (token by token), "reference" (dense),
            or "auto", the cheapest (see ``explain``).
        backend: "torch", "flex" or "triton", or "auto", the first that can.
        window: query t sees only the keys with t - s < window.
        key_padding_mask: True = keep (``nn.MultiheadAttention`` has it the other way round). A query that sees no key gives 0.
        segment_ids: packed documents; a new document starts wherever the number changes.
        center: a vector per kv head that is subtracted from the keys.
        state, return_state: streaming; any way to cut a sequence gives the same as the whole. With a state, fewer queries than
            keys are the last of the tokens, and queries without new keys each read all that is remembered.
        chunk_size: of the chunked form.
        tensors: what the mechanism's slots want (``Mechanism.inputs``), by name: ``input_gate`` (b, hkv, tk) and ``output_gate``
            (b, h, tq, e), in [0, 1]; ``norm_weight`` and ``norm_bias`` (e,); ``length_exponent`` (h,), c in t ** sigmoid(c);
            ``log_decay`` <= 0, (hkv,), (b, hkv, tk) or (b, hkv, tk, d); ``beta`` (b, hkv, tk) in [0, 2]; ``sink`` (h,); ...

    >>> import torch, softmax_rnn as sr
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    >>> sr.attention(q, k, v, "norm").shape
    torch.Size([1, 2, 5, 4])
    """
    m = resolve(mechanism)
    q, k, v = autocast(q, k, v)
    dims = check_qkv(q, k, v)
    check_masks(dims, q, key_padding_mask, segment_ids)
    given = check_inputs(m, dims, q, tensors, key_padding_mask)
    check_center(m, dims, center)
    check_options(m, q.dtype, causal, scale, window, chunk_size, backend)
    setting = Setting(m, dims, causal, window, None if state is None else type(state))
    check_state(setting, q, state, return_state, center)
    chosen = find_form(form, setting, return_state)
    with chosen_precision(q):
        problem = prepare(
            setting,
            q,
            k,
            v,
            given,
            scale=scale,
            reference=chosen.name == "reference",
            keep=key_padding_mask,
            segments=segment_ids,
            center=center,
            state=state,
            backend=backend,
            chunk_size=chunk_size,
        )
        sums, count, new_state = chosen.run(problem)
        out = finish(m, sums, count, q.dtype, problem.tensors, problem.may_be_empty)
    return (out, new_state) if return_state else out


def finish(
    m: Mechanism,
    sums: Sums,
    count: Tensor,
    dtype: torch.dtype,
    tensors: Mapping[str, Tensor],
    may_be_empty: bool = False,
) -> Tensor:
    """O_t = post_gate_t * Norm( pre_gate_t * A_t / Z_t ); queries that see no key get 0.

    For exp the numerator is softmax output times exp(lse). Under a vector norm that positive factor, and any denominator, cancels; it is
    then left out, so the norm's epsilon is relative to the softmax output (docs/adr/0003).
    """
    x = sums.numerator
    wide = torch.promote_types(x.dtype, torch.float32)
    gate = tensors.get("output_gate")
    gate = None if gate is None else gate.to(wide) if gate.ndim == 4 else gate.to(wide)[..., None]
    if gate is not None and may_be_empty:
        gate = gate.masked_fill(count == 0, 0.0)  # what stands where no key is seen must not reach a gradient
    own = _own(m.denominator, tensors)
    if sums.lse is None and not m.kernel.exponential:
        x = m.denominator.divide(x, sums.total, count, **own)
    elif sums.lse is not None and needs_lse(m):
        factor = m.denominator.factor(sums.lse, count, **own)
        x = x if factor is None else x.to(wide) * factor
    if gate is not None and m.output_gate == "before_norm":
        x = x.to(wide) * gate
    if m.norm_value is not None:
        x = m.norm_value.apply(x.to(wide), **{n: t.to(wide) for n, t in _own(m.norm_value, tensors).items()})
    if gate is not None and m.output_gate == "after_norm":
        x = x * gate
    if may_be_empty:
        x = torch.where(count > 0, x, torch.zeros_like(x))
    return x.to(dtype)


def _own(slot: Slot, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of the given tensors those that a slot declared."""
    return {x.name: tensors[x.name] for x in slot.inputs if x.name in tensors}


@checked
def taylor_terms(
    q: Float[Tensor, "b h tq d"],
    k: Float[Tensor, "b hkv tk d"],
    v: Float[Tensor, "b hkv tk e"],
    orders: int | Iterable[int],
    *,
    causal: bool = True,
    scale: float | int | None = None,
    key_padding_mask: Tensor | None = None,
    segment_ids: Tensor | None = None,
    center: Tensor | None = None,
    form: str = "auto",
) -> Float[Tensor, "n b h tq e"]:
    """The summands of section 3.1, A_t^n = 1/n! sum_s x_ts^n v_s, stacked in front; an int N stands for 0 .. N.

    Their sum is the numerator of ``Taylor(N)``.

    >>> import torch, softmax_rnn as sr
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    >>> sr.taylor_terms(q, k, v, 3).shape
    torch.Size([4, 1, 2, 5, 4])
    """
    wanted = list(range(orders + 1) if isinstance(orders, int) else orders if isinstance(orders, Iterable) else [])
    if not wanted or not all(isinstance(n, int) and n >= 0 for n in wanted):
        raise MechanismError(f"orders must be a whole number >= 0, or several of them, got {orders!r}.")
    if center is not None:  # terms are not divided by anything, so attention itself would refuse it
        check_tensor("center", center, (k.shape[1], k.shape[-1]), q)
        wide = torch.promote_types(k.dtype, torch.float32)
        k = (k.to(wide) - center.to(wide)[:, None]).to(k.dtype)
    masks: dict[str, Any] = {"key_padding_mask": key_padding_mask, "segment_ids": segment_ids}
    terms = [
        attention(q, k, v, Mechanism(Power(n), Unnormalised()), causal=causal, scale=scale, form=form, **masks)
        for n in wanted
    ]
    return torch.stack(terms)


def _as_torch_says(function: F) -> F:
    """Arguments by torch's names as well: query, key, value."""
    ours = {"query": "q", "key": "k", "value": "v"}

    @wraps(function)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{ours.get(name, name): value for name, value in kwargs.items()})

    return cast(F, renamed)


@_as_torch_says
def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    mechanism: str | Mechanism = "norm",
    **tensors: Tensor | None,
) -> Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` by another mechanism, ``norm`` unless you name one: the same arguments, to
    swap in one line.

    As there, not causal unless you say so. Masks that only hide padding, or are causal, or both, are recognised, as booleans
    (True = attend) or as 0 and -inf; any other is refused, and so is dropout on the weights.

    >>> import torch, softmax_rnn as sr
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    >>> sr.sdpa(q, k, v, is_causal=True, mechanism="taylor2").shape
    torch.Size([1, 2, 5, 4])
    """
    if dropout_p:
        raise MechanismError(f"Mechanisms have no dropout on weights: dropout_p must be 0, got {dropout_p}.")
    if any(not isinstance(x, Tensor) or x.ndim < 2 for x in (q, k, v)):
        raise MechanismError("q, k and v must be tensors (..., tokens, dim).")
    lead, (Tq, Tk) = q.shape[:-2], (q.shape[-2], k.shape[-2])
    if attn_mask is not None and len(lead) != 2:
        attn_mask = _like_queries(attn_mask, (*lead, Tq, Tk))
    q, k, v = (x if x.ndim == 4 else x.reshape(-1, 1, *x.shape[-2:]) for x in (q, k, v))
    if not enable_gqa and q.shape[1] != k.shape[1]:
        raise MechanismError(f"q has {q.shape[1]} heads, k has {k.shape[1]}: say enable_gqa=True.")
    if is_causal and attn_mask is not None:
        raise MechanismError("Give attn_mask or is_causal=True, not both.")
    if is_causal and Tq != Tk:
        raise MechanismError(
            f"is_causal=True needs as many queries as keys, got {Tq} and {Tk}: for a cache use attention(..., state=...)."
        )
    keep = None
    if attn_mask is not None:
        is_causal, keep = _read_mask(attn_mask, q.shape[0], Tq, Tk)
    options: dict[str, Any] = {"scale": scale, "key_padding_mask": keep, **tensors}
    out = attention(q, k, v, mechanism, causal=is_causal, **options)
    return out.reshape(*lead, Tq, v.shape[-1])


def _like_queries(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The mask of queries (..., Tq, dim) that have no four axes, as they get them: (batch, 1, Tq, Tk)."""
    try:
        return mask.expand(shape).reshape(-1, 1, *shape[-2:])
    except RuntimeError:
        raise MechanismError(f"attn_mask must broadcast to {shape}, got {tuple(mask.shape)}.") from None


def _read_mask(mask: Tensor, batch: int, Tq: int, Tk: int) -> tuple[bool, Tensor | None]:
    """(causal?, which keys count) of a mask that says no more than that."""
    if mask.dtype != torch.bool:
        lowest = torch.finfo(mask.dtype).min if mask.is_floating_point() else 0
        if not bool(((mask == 0) | (mask <= lowest)).all()):
            raise MechanismError(
                "attn_mask adds something other than 0 and -inf to the scores, which mechanisms do not have."
            )
        mask = mask == 0
    while mask.ndim < 4:
        mask = mask[None]
    try:
        mask = mask.expand(*torch.broadcast_shapes(mask.shape, (batch, 1, Tq, Tk)))
    except RuntimeError:
        raise MechanismError(f"attn_mask must broadcast to {(batch, 1, Tq, Tk)}, got {tuple(mask.shape)}.") from None
    one, keep = mask[:, :1], mask.any(dim=(1, 2))
    tril = torch.ones(Tq, Tk, dtype=torch.bool, device=mask.device).tril()
    keys = None if bool(keep.all()) else keep
    if bool((mask == one).all()) and bool((one == keep[:, None, None]).all()):
        return Tq == Tk == 1, keys  # one token is causal, too, which decay asks for
    # Under a causal mask a key that nobody sees is padding; queries that are padding themselves may see nothing or anything.
    seen = one[:, 0] | ~keep[:, :, None] if Tq == Tk else one[:, 0]
    if Tq == Tk and bool((mask == one).all()) and bool((seen == ((tril & keep[:, None]) | ~keep[:, :, None])).all()):
        return True, keys
    raise MechanismError(
        "attn_mask is neither padding nor causal: use key_padding_mask, segment_ids or window of attention() instead."
    )
