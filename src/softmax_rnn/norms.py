"""Vector norms over the head dimension, with the authors' epsilons; the paper's replacement for G_t (eq. 6)."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor


def l2(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x / max(|x|, 1e-12); takes no weights."""
    return F.normalize(x, dim=-1)


def rms(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x / sqrt(mean(x^2) + eps), eps the smallest step of the dtype (``nn.RMSNorm`` with ``eps=None``)."""
    return F.rms_norm(x, x.shape[-1:], weight)


def layer(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """(x - mean) / sqrt(var + 1e-5), as ``nn.LayerNorm``."""
    return F.layer_norm(x, x.shape[-1:], weight, bias)


NORMS: dict[str, Callable[[Tensor, Tensor | None, Tensor | None], Tensor]] = {"l2": l2, "rms": rms, "layer": layer}

# What each norm can learn, so that a layer can make the parameters and the API can check them.
LEARNED: dict[str, tuple[str, ...]] = {"l2": (), "rms": ("weight",), "layer": ("weight", "bias")}
