"""Softmax attention as a sum of recurrent networks.

>>> import torch, softmax_rnn as sr
>>> q, k, v = torch.randn(3, 1, 2, 16, 8).unbind()
>>> out = sr.attention(q, k, v, "norm")

Every public name is imported when it is first touched: ``attention`` and the algebra need torch alone, the models Hugging Face's
transformers, and ``softmax-rnn --help`` neither.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "algebra": ["Mechanism"],
    "denominators": ["Length", "Sum", "Unnormalised"],
    "errors": ["MechanismError", "MechanismWarning", "UserError"],
    "features": ["symmetric_dim", "symmetric_power"],
    "kernels": ["Exp", "Linear", "Power", "Taylor"],
    "models": ["SoftmaxRnnConfig", "SoftmaxRnnForCausalLM", "load_authors", "patch", "unpatch"],
    "microscope.inspection": ["inspect"],
    "ops.api": ["attention"],
    "ops.cost": ["explain"],
    "ops.state": ["KVState", "KroneckerState", "State"],
    "ops.terms": ["taylor_terms"],
    "presets": ["mechanism", "mechanisms"],
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE)

if TYPE_CHECKING:
    from .algebra import Mechanism as Mechanism
    from .denominators import Length as Length
    from .denominators import Sum as Sum
    from .denominators import Unnormalised as Unnormalised
    from .errors import MechanismError as MechanismError
    from .errors import MechanismWarning as MechanismWarning
    from .errors import UserError as UserError
    from .features import symmetric_dim as symmetric_dim
    from .features import symmetric_power as symmetric_power
    from .kernels import Exp as Exp
    from .kernels import Linear as Linear
    from .kernels import Power as Power
    from .kernels import Taylor as Taylor
    from .microscope.inspection import inspect as inspect
    from .models import SoftmaxRnnConfig as SoftmaxRnnConfig
    from .models import SoftmaxRnnForCausalLM as SoftmaxRnnForCausalLM
    from .models import load_authors as load_authors
    from .models import patch as patch
    from .models import unpatch as unpatch
    from .ops.api import attention as attention
    from .ops.cost import explain as explain
    from .ops.state import KroneckerState as KroneckerState
    from .ops.state import KVState as KVState
    from .ops.state import State as State
    from .ops.terms import taylor_terms as taylor_terms
    from .presets import mechanism as mechanism
    from .presets import mechanisms as mechanisms


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'softmax_rnn' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE])
