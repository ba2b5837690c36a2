"""The summands of section 3.1: what each order contributes to the numerator.

A_t = sum_n A_t^n        A_t^n = 1/n! sum_s x_ts^n v_s
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .._shapes import Float, checked
from ..algebra import Mechanism, Power, Unnormalised
from ..errors import MechanismError
from .api import attention


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
    """The numerator of each order, stacked in front; an int N stands for 0 .. N. Their sum is that of ``Taylor(N)``.

    >>> import torch, softmax_rnn as sr
    >>> q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    >>> sr.taylor_terms(q, k, v, 3).shape
    torch.Size([4, 1, 2, 5, 4])
    """
    wanted = list(range(orders + 1) if isinstance(orders, int) else orders if isinstance(orders, Iterable) else [])
    if not wanted or not all(isinstance(n, int) and n >= 0 for n in wanted):
        raise MechanismError(f"orders must be a number >= 0 or some of them, got {orders!r}.")
    if center is not None:  # terms are not divided by anything, so attention itself would refuse it
        if tuple(center.shape) != (k.shape[1], k.shape[-1]):
            raise MechanismError(f"center must have shape {(k.shape[1], k.shape[-1])}, got {tuple(center.shape)}.")
        k = k - center.to(k.dtype)[:, None]
    masks: dict[str, Any] = {"key_padding_mask": key_padding_mask, "segment_ids": segment_ids}
    terms = [
        attention(q, k, v, Mechanism(Power(n), Unnormalised()), causal=causal, scale=scale, form=form, **masks)
        for n in wanted
    ]
    return torch.stack(terms)
