"""``attention``: the one entry. It checks, prepares, picks a form, and finishes; the forms do the sums.

q, k, v -> centre, mask, input gate, feature map -> a form: numerator and denominator -> gates and norm
"""

from typing import Any, Literal, overload

import torch
from torch import Tensor

from .._shapes import Bool, Float, Int, checked
from ..algebra import Mechanism
from ..presets import mechanism as resolve
from . import inputs
from .cost import cheapest
from .job import prepare
from .precision import autocast, chosen_precision
from .state import KVState, State, state_rows
from .sums import finish

EXPORTED_ROWS = 2**13  # of a state: above, an exported program keeps to the parallel form


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: str | Mechanism = "softmax",
    *,
    return_state: Literal[False] = False,
    **options: Any,
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: str | Mechanism = "softmax",
    *,
    return_state: Literal[True],
    **options: Any,
) -> tuple[Tensor, State]: ...
@checked  # type: ignore[misc]  # the options are the keywords of this signature
def attention(
    q: Float[Tensor, "b h tq d"],
    k: Float[Tensor, "b hkv tk d"],
    v: Float[Tensor, "b hkv tk e"],
    mechanism: str | Mechanism = "softmax",
    *,
    causal: bool = True,
    scale: float | int | None = None,
    form: str = "auto",
    input_gate: Float[Tensor, "b hkv tk"] | None = None,
    output_gate: Float[Tensor, "b h tq"] | None = None,
    norm_weight: Float[Tensor, " e"] | None = None,
    norm_bias: Float[Tensor, " e"] | None = None,
    length_exponent: Float[Tensor, " h"] | None = None,
    key_padding_mask: Bool[Tensor, "b tk"] | None = None,
    segment_ids: Int[Tensor, "b tk"] | None = None,
    center: Float[Tensor, "hkv d"] | None = None,
    state: State | None = None,
    return_state: bool = False,
    chunk_size: int | None = None,
) -> Float[Tensor, "b h tq e"] | tuple[Float[Tensor, "b h tq e"], State]:
    """Attention by any mechanism, in any of its forms; all forms give the same numbers.

    Args:
        q, k, v: as in torch's SDPA; k and v may have fewer heads (GQA), v another width.
        mechanism: a name (``softmax_rnn.mechanisms()``) or a ``Mechanism``.
        causal: query t sees keys up to t. False: all keys (bidirectional or cross-attention).
        scale: on the score; None: 1/sqrt(d) for exp, Taylor and Power, 1 for linear feature maps.
        form: "parallel" (O(T) memory), "chunked" (linear time, finite kernels), "recurrent" (token by token), "reference" (dense),
            or "auto", the cheapest (see ``explain``).
        input_gate, output_gate: per head and token, in [0, 1], where the mechanism has them (the input gate per kv head).
        norm_weight, norm_bias: for rms and layer norms.
        length_exponent: c in t ** sigmoid(c), for ``Length(learned=True)``.
        key_padding_mask: True = keep. A query that sees no key gives 0.
        segment_ids: packed documents; a new document starts wherever the number changes.
        center: a vector per kv head that is subtracted from the keys.
        state, return_state: streaming; any way to cut a sequence gives the same as the whole. With a state, fewer queries than
            keys are the last of the tokens, and queries without new keys each read all that is remembered.
        chunk_size: of the chunked form.

    >>> import torch, softmax_rnn as sr
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    >>> sr.attention(q, k, v, "norm").shape
    torch.Size([1, 2, 5, 4])
    """
    m = resolve(mechanism)
    q, k, v = autocast(q, k, v)
    dims = inputs.check_qkv(q, k, v)
    extras = {
        "output_gate": output_gate,
        "norm_weight": norm_weight,
        "norm_bias": norm_bias,
        "length_exponent": length_exponent,
    }
    masks = {"key_padding_mask": key_padding_mask, "segment_ids": segment_ids, "center": center}
    inputs.check_tensors(q, {"input_gate": input_gate, **extras, **masks})
    inputs.check_mechanism_arguments(m, dims, {"input_gate": input_gate, **extras})
    inputs.check_masks(dims, key_padding_mask, segment_ids)
    inputs.check_center(m, dims, center)
    inputs.check_scale(m, scale)
    inputs.check_state(m, dims, q, causal, state, return_state, center)
    inputs.check_form(m, form, causal, state, chunk_size)
    if form == "auto":
        form = _choose(m, dims, causal, state, return_state)

    with chosen_precision(q):
        job = prepare(m, q, k, v, causal, scale, form, input_gate, key_padding_mask, segment_ids, center, state)
        sums, count, new_state = job.run(state, chunk_size)
        out = finish(m, sums, count, q.dtype, may_be_empty=job.may_be_empty(state), **extras)
    return (out, new_state) if return_state else out


def _choose(m: Mechanism, dims: inputs.Dims, causal: bool, state: State | None, return_state: bool) -> str:
    """The form that ``auto`` stands for."""
    if not m.kernel.finite or isinstance(state, KVState):
        return "parallel"
    if state is not None or return_state:
        return "recurrent" if dims.keys <= 1 else "chunked"
    if torch.compiler.is_exporting():  # one program for every length: what is best at great length
        return "chunked" if state_rows(m.kernel, dims.key_dim) <= EXPORTED_ROWS else "parallel"
    return cheapest(
        m, dims.batch, dims.heads, dims.queries, dims.key_dim, dims.value_dim, dims.kv_heads, dims.keys, causal
    )
