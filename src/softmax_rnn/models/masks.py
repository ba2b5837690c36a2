"""Padding, packed documents and empty cache slots, between transformers and ``attention``.

transformers describes what a query may see by a function of indices, and lets each attention implementation turn it into
its own mask. Ours is never T x T: it is one tensor of shape (B, 1, 1, keys), and its dtype says what it means.

    uint8     what is at a key's place: EMPTY (a slot of a static cache not yet written), PADDING or KEY
    int64     the number of the packed document that a token belongs to
    int8, int32   the same two, and some queries do not see keys that lie a window back; the layer knows how wide it is
    None      nothing of all this

It has four axes because transformers takes such a mask for finished and hands it on as it is; one with two axes would be cut
to a window's cache a second time. (transformers looks for packed documents only where there is no padding mask, so one
tensor is enough.) Whatever cannot be said this way, such as a custom mask function, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import (
    AttentionMaskInterface,
    bidirectional_mask_function,
    causal_mask_function,
    find_packed_sequence_indices,
)
from transformers.utils.import_utils import is_tracing

from ..errors import MechanismError

NAME = "softmax_rnn"  # of our attention implementation, in AttentionInterface and AttentionMaskInterface
EMPTY, PADDING, KEY = 0, 1, 2
WINDOWED = {torch.uint8: torch.int8, torch.int64: torch.int32}


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
    **more: Any,
) -> Tensor | None:
    """The mask of one forward pass of a patched model; transformers calls this where our name is the implementation."""
    if use_vmap:
        raise MechanismError(
            "A custom mask function cannot be combined with a mechanism: mechanisms know padding and packed documents only."
        )
    bidirectional = "allow_is_bidirectional_skip" in more or mask_function is bidirectional_mask_function
    # A static cache has room for more keys than there are: those in use end with the last query.
    keys = kv_length if bidirectional else q_offset + q_length - kv_offset
    if isinstance(keys, Tensor) and not is_tracing():
        keys = int(keys)
    keep = None if attention_mask is None else columns(attention_mask.to(torch.bool), kv_offset, kv_length)
    windowed = local_size is not None and (isinstance(keys, Tensor) or keys > local_size)
    if windowed and q_length == 1 and not bidirectional:  # one query: what it does not see may as well not be there
        row, slot = torch.arange(batch_size, device=device)[:, None], torch.arange(kv_length, device=device) + kv_offset
        seen = mask_function(row, torch.zeros((), dtype=torch.long, device=device), q_offset, slot[None])
        keep = seen.expand(batch_size, -1) if keep is None else keep & seen
        windowed = False
    what = None
    if keep is None and not bidirectional and mask_function is not causal_mask_function and q_length == kv_length:
        what = _documents(mask_function, batch_size, q_length, device)
    if what is None:
        what = places(keep, keys, kv_length, batch_size, device, always=windowed)
    if windowed and what is not None:
        what = what.to(WINDOWED[what.dtype])
    return what


def places(
    keep: Tensor | None,
    keys: int | Tensor,
    room: int,
    batch: int,
    device: torch.device | str,
    always: bool = False,
) -> Tensor | None:
    """What is at each of ``room`` places, of which the first ``keys`` are in use; None if there is a key at every one."""
    full = not isinstance(keys, Tensor) and keys >= room
    if not always and full and (keep is None or (not is_tracing() and bool(keep.all()))):
        return None
    if keep is None:
        keep = torch.ones(batch, room, dtype=torch.bool, device=device)
    what = keep.to(torch.uint8) + PADDING  # False -> PADDING, True -> KEY
    if not full:
        what = what.masked_fill(torch.arange(room, device=device) >= keys, EMPTY)
    return what[:, None, None]


def columns(keep: Tensor, begin: int | Tensor, count: int) -> Tensor:
    """``count`` columns of a padding mask (B, tokens); what the mask does not reach is not there, as in transformers."""
    if isinstance(begin, Tensor):
        index = begin + torch.arange(count, device=keep.device)
        return keep.index_select(1, index)
    keep = keep[:, begin : begin + count]
    return keep if keep.shape[1] == count else F.pad(keep, (0, count - keep.shape[1]))


def of_model(
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cache: Cache | None,
    length: int,
    batch: int,
    device: torch.device,
) -> Tensor:
    """The mask of one forward pass of our own models: all tokens so far. Each layer takes from it what its cache needs.

    Documents are looked for only where ``position_ids`` are given: those that the model makes for itself never start again,
    which nobody can see while a graph is traced. Nothing to say is a mask of no keys, so that Llama does not look again.
    """
    nothing = torch.empty(1, 1, 1, 0, dtype=torch.uint8, device=device)
    if attention_mask is None:
        if position_ids is None or cache is not None:
            return nothing
        documents = find_packed_sequence_indices(position_ids.expand(batch, -1))
        return nothing if documents is None else documents[:, None, None]
    if attention_mask.ndim != 2:
        return attention_mask  # ``read`` will say if it is not one of ours
    keep = attention_mask.to(torch.bool)
    if not is_tracing():
        keys = length + (0 if cache is None else int(cache.get_seq_length()))
        keep = columns(keep, 0, keys)
        if bool(keep.all()):
            return nothing
    return (keep.to(torch.uint8) + PADDING)[:, None, None]


def _documents(see: Callable[..., Tensor], batch: int, length: int, device: torch.device | str) -> Tensor | None:
    """A new document begins where a token does not see the one before it."""
    row, token = torch.arange(batch, device=device)[:, None], torch.arange(length, device=device)[None]
    head = torch.zeros((), dtype=torch.long, device=device)
    begins = ~see(row, head, token, (token - 1).clamp(min=0)).expand(batch, length)
    if not is_tracing():
        if bool(see(row, head, token[:, :-1], token[:, 1:]).any()):
            raise MechanismError(
                "Some tokens of this model see later ones, as with images, and no mechanism can do that."
            )
        if not bool(begins.any()):
            return None
    return begins.long().cumsum(-1)[:, None, None]


class Mask(NamedTuple):
    """A mask taken apart: ``what`` (B, keys) or ``documents`` (B, keys) or neither; and is there a window to heed?"""

    what: Tensor | None
    documents: Tensor | None
    windowed: bool = False

    @property
    def keep(self) -> Tensor | None:
        """True where there is a key."""
        return None if self.what is None else self.what == KEY


def read(attention_mask: Tensor | None) -> Mask:
    """The mask that ``mask`` or ``of_model`` made."""
    if attention_mask is None:
        return Mask(None, None)
    m, windowed = attention_mask, attention_mask.dtype in WINDOWED.values()
    if m.ndim != 4 or m.shape[1:3] != (1, 1) or not (windowed or m.dtype in WINDOWED):
        raise MechanismError(
            f"attention_mask must be (batch, tokens), got {tuple(m.shape)}: a ready-made score mask cannot be used here."
        )
    m = m[:, 0, 0]
    if m.shape[1] == 0:
        return Mask(None, None)
    return Mask(m, None, windowed) if m.dtype in (torch.uint8, torch.int8) else Mask(None, m, windowed)


def in_use(k: Tensor, v: Tensor, what: Tensor | None, queries: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """The keys and values of a cache that are there, the newest last, and which of them count.

    While a graph is traced nobody knows how many there are: then all places are kept, the empty ones first.
    """
    if what is None:
        return k, v, None
    if not is_tracing():
        used = int((what[0] != EMPTY).sum())
        keep = what[:, :used] == KEY
        return k[:, :, :used], v[:, :, :used], None if bool(keep.all()) else keep
    room = what.shape[1]
    if queries != 1 and queries != room:
        order = (torch.arange(room, device=k.device) + (what[0] != EMPTY).sum()) % room
        k, v, what = k.index_select(2, order), v.index_select(2, order), what.index_select(1, order)
    return k, v, what == KEY


AttentionMaskInterface.register(NAME, mask)
