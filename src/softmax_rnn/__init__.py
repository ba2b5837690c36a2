"""Softmax attention as a sum of recurrent networks.

>>> import torch, softmax_rnn as sr
>>> q, k, v = torch.randn(3, 1, 2, 16, 8).unbind()
>>> out = sr.attention(q, k, v, "norm")
"""

import importlib
from typing import Any

from .errors import MechanismError, MechanismWarning
from .features import symmetric_dim, symmetric_power
from .mechanism import Exp, Length, Linear, Mechanism, Power, Sum, Taylor, Unnormalised
from .ops.api import attention
from .ops.cost import explain
from .ops.state import KroneckerState, KVState, State
from .ops.terms import taylor_terms
from .presets import mechanism, mechanisms

__version__ = "0.1.0"

# Names that need Hugging Face: imported when touched, so that `import softmax_rnn` needs torch alone.
_LAZY: dict[str, str] = {}

__all__ = [
    "Exp", "KVState", "KroneckerState", "Length", "Linear", "Mechanism", "MechanismError", "MechanismWarning", "Power", "State", "Sum",
    "Taylor", "Unnormalised", "attention", "explain", "mechanism", "mechanisms", "symmetric_dim", "symmetric_power", "taylor_terms",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'softmax_rnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
