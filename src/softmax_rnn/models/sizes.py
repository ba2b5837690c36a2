"""Named sizes: the paper's two (App. D) and smaller ones that train on a laptop.

>>> from softmax_rnn import SoftmaxRnnConfig
>>> config = SoftmaxRnnConfig(**SIZES["micro"], vocab_size=4096, mechanism="norm")
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UserError


def _size(hidden: int, mlp: int, heads: int, layers: int) -> dict[str, Any]:
    return {"hidden_size": hidden, "intermediate_size": mlp, "num_attention_heads": heads, "num_hidden_layers": layers}


SIZES: dict[str, dict[str, Any]] = {
    "nano": _size(128, 256, 8, 4),  # minutes on a CPU; head size 16, so that Kronecker states stay small
    "micro": _size(256, 512, 8, 6),
    "mini": _size(512, 1024, 8, 8),
    "small": _size(1024, 2048, 16, 20),  # the paper's models
    "large": _size(3072, 6144, 16, 20),  # the paper's large model
}


def parameter_count(size: str, vocab_size: int = 32000, mechanism: Any = "softmax") -> int:
    """How many parameters a model of this size has; nothing is allocated.

    >>> f"{parameter_count('small'):,}"
    '275,293,184'
    """
    from .llama import SoftmaxRnnConfig, SoftmaxRnnForCausalLM

    if size not in SIZES:
        raise UserError(f"Unknown size {size!r}; sizes are {', '.join(SIZES)}.")
    with torch.device("meta"):
        model = SoftmaxRnnForCausalLM(SoftmaxRnnConfig(**SIZES[size], vocab_size=vocab_size, mechanism=mechanism))
    return sum(p.numel() for p in model.parameters())
