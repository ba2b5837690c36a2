"""Softmax attention as a sum of recurrent networks.

>>> import torch, softmax_rnn as sr
>>> q, k, v = torch.randn(3, 1, 2, 16, 8).unbind()
>>> out = sr.attention(q, k, v, "norm")

Every public name is imported when it is first touched: ``attention`` and the algebra need torch alone, the models Hugging Face's
transformers, and ``softmax-rnn --help`` neither.
"""

from typing import TYPE_CHECKING

from . import _imports

__version__ = "0.2.0"

_HOME = {
    "api": ["attention", "sdpa", "taylor_terms"],
    "backends.powers": ["symmetric_dim", "symmetric_power"],
    "errors": ["MechanismError", "MechanismWarning", "UserError"],
    "forms": ["explain"],
    "microscope.inspection": ["inspect"],
    "models": [
        "SoftmaxRnnConfig",
        "SoftmaxRnnForCausalLM",
        "SoftmaxRnnForMaskedLM",
        "SoftmaxRnnForSequenceClassification",
        "SoftmaxRnnForTokenClassification",
        "SoftmaxRnnModel",
        "load_authors",
        "patch",
        "unpatch",
    ],
    "slots": ["Input"],
    "slots.denominators": ["Denominator", "Length", "Norm", "Sum", "Unnormalised"],
    "slots.feature_maps": ["CosReweighted", "FeatureMap", "RandomFeatures"],
    "slots.kernels": ["Exp", "Kernel", "Linear", "Near", "Power", "Taylor"],
    "slots.mechanism": ["Mechanism"],
    "slots.presets": ["mechanism", "mechanisms", "register"],
    "state": ["KVState", "KroneckerState", "NearState", "State"],
}
__all__, __getattr__, __dir__ = _imports.lazy_names(__name__, _HOME)

if TYPE_CHECKING:
    from .api import attention as attention
    from .api import sdpa as sdpa
    from .api import taylor_terms as taylor_terms
    from .backends.powers import symmetric_dim as symmetric_dim
    from .backends.powers import symmetric_power as symmetric_power
    from .errors import MechanismError as MechanismError
    from .errors import MechanismWarning as MechanismWarning
    from .errors import UserError as UserError
    from .forms import explain as explain
    from .microscope.inspection import inspect as inspect
    from .models import SoftmaxRnnConfig as SoftmaxRnnConfig
    from .models import SoftmaxRnnForCausalLM as SoftmaxRnnForCausalLM
    from .models import SoftmaxRnnForMaskedLM as SoftmaxRnnForMaskedLM
    from .models import SoftmaxRnnForSequenceClassification as SoftmaxRnnForSequenceClassification
    from .models import SoftmaxRnnForTokenClassification as SoftmaxRnnForTokenClassification
    from .models import SoftmaxRnnModel as SoftmaxRnnModel
    from .models import load_authors as load_authors
    from .models import patch as patch
    from .models import unpatch as unpatch
    from .slots import Input as Input
    from .slots.denominators import Denominator as Denominator
    from .slots.denominators import Length as Length
    from .slots.denominators import Norm as Norm
    from .slots.denominators import Sum as Sum
    from .slots.denominators import Unnormalised as Unnormalised
    from .slots.feature_maps import CosReweighted as CosReweighted
    from .slots.feature_maps import FeatureMap as FeatureMap
    from .slots.feature_maps import RandomFeatures as RandomFeatures
    from .slots.kernels import Exp as Exp
    from .slots.kernels import Kernel as Kernel
    from .slots.kernels import Linear as Linear
    from .slots.kernels import Near as Near
    from .slots.kernels import Power as Power
    from .slots.kernels import Taylor as Taylor
    from .slots.mechanism import Mechanism as Mechanism
    from .slots.presets import mechanism as mechanism
    from .slots.presets import mechanisms as mechanisms
    from .slots.presets import register as register
    from .state import KroneckerState as KroneckerState
    from .state import KVState as KVState
    from .state import NearState as NearState
    from .state import State as State


_imports.install()
