"""Padding and packed documents between transformers and ``attention``.

transformers describes what a query may see by a function of indices, and lets each attention implementation turn it into
its own mask. Ours is never T x T: it is one tensor of shape (B, keys), and its dtype says what it means.

    bool      False = padding
    integers  the number of the packed document that a token belongs to
    None      neither

(transformers looks for packed documents only where there is no padding mask, so one tensor is enough.) Whatever cannot be
said this way, such as a window that is shorter than the sequence, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface, bidirectional_mask_function, causal_mask_function

from ..errors import MechanismError

NAME = "softmax_rnn"  # of our attention implementation, in AttentionInterface and AttentionMaskInterface


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor | None:
    """The mask of one forward pass, in the form above; transformers calls this where our name is the implementation."""
    if use_vmap:
        raise MechanismError(
            "A custom mask function cannot be combined with a mechanism: padding and packing are what it knows."
        )
    bidirectional = mask_function is bidirectional_mask_function
    # A static cache has room for more keys than there are: those in use end with the last query.
    keys = kv_length if bidirectional else int(q_offset) + q_length - kv_offset
    if local_size is not None and keys > local_size:
        raise MechanismError(
            f"The model's sliding window is {local_size} tokens and this sequence has {keys}: mechanisms have no window, so "
            "stay within it, or set config.sliding_window = None if the model may look further."
        )
    if attention_mask is not None:
        return _padding(attention_mask, keys, kv_offset, always=kv_length > keys)
    if kv_length > keys:
        return torch.ones(batch_size, keys, dtype=torch.bool, device=device)
    if bidirectional or mask_function is causal_mask_function:
        return None
    return _documents(mask_function, batch_size, q_length, device)


def _padding(attention_mask: Tensor, keys: int, offset: int, always: bool) -> Tensor | None:
    keep = attention_mask[:, offset : offset + keys].to(torch.bool)
    keep = F.pad(keep, (0, keys - keep.shape[1]))  # as transformers does: what the mask does not reach is not there
    if not always and not torch.compiler.is_compiling() and bool(keep.all()):
        return None
    return keep


def _documents(see: Callable[..., Tensor], batch: int, length: int, device: torch.device | str) -> Tensor | None:
    """A new document begins where a token does not see the one before it."""
    row, token = torch.arange(batch, device=device)[:, None], torch.arange(length, device=device)[None]
    head = torch.zeros((), dtype=torch.long, device=device)
    begins = ~see(row, head, token, (token - 1).clamp(min=0)).expand(batch, length)
    if not torch.compiler.is_compiling() and not bool(begins.any()):
        return None
    return begins.long().cumsum(-1)


def read(attention_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The two meanings of a mask: (key_padding_mask, segment_ids)."""
    if attention_mask is None:
        return None, None
    if attention_mask.ndim != 2:
        raise MechanismError(
            f"attention_mask must be (batch, tokens), got {tuple(attention_mask.shape)}: "
            "a ready-made score mask cannot be used here."
        )
    return (attention_mask, None) if attention_mask.dtype == torch.bool else (None, attention_mask)


AttentionMaskInterface.register(NAME, mask)
