"""Autocast ends at the door of ``attention``: inside, the dtype of every step is chosen on purpose.

Without this, autocast would turn the float32 matrix products of states and denominators back into bfloat16 ones.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor


def chosen_precision(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """A context in which autocast does not touch operations on the device of ``x``."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """float32 tensors in autocast's dtype where it is on, as for torch's own attention; others as they are."""
    if not all(isinstance(x, Tensor) for x in tensors):
        return tensors  # the checks that follow say what is wrong
    device = tensors[0].device.type
    if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
        return tensors
    low = torch.get_autocast_dtype(device)
    return tuple(x.to(low) if x.dtype == torch.float32 else x for x in tensors)
