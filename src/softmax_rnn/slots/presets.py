"""Names for mechanisms: the paper's variants, the field around it, families by order, and the names in the authors' code.

Names are for the edges (command line, YAML, config.json); inside, a mechanism is a value. The authors' code has defects that
their names here do not copy: ``softmax_taylor_80terms`` returns the unnormalised sum, and ``linear_cosine`` normalises over
heads and scales per key. Loading their checkpoints can ask for the defects; nothing else does.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

from ..errors import MechanismError, MechanismWarning, did_you_mean
from .denominators import Length, Sum, Unnormalised
from .feature_maps import CosReweighted, RandomFeatures
from .kernels import Exp, Linear, Near, Power, Taylor
from .mechanism import Mechanism

_C5 = Exp(clamp=5.0)


def _presets() -> dict[str, Mechanism]:
    m = Mechanism
    return {
        "softmax": m(Exp(), Sum()),
        "norm": m(Exp(), Unnormalised(), norm="l2"),
        "gate": m(_C5, Length(), output_gate="before_norm"),
        "gate_nolength": m(_C5, Unnormalised(), output_gate="before_norm"),
        "undivided": m(_C5, Unnormalised()),
        "length": m(_C5, Length()),
        "clamp_sum": m(_C5, Sum(min=1.0)),
        "detach_sum": m(_C5, Sum(min=1.0, detach=True)),
        "detach_sum_gate": m(_C5, Sum(detach=True, eps=1e-4), output_gate="before_norm"),
        "in_gate": m(_C5, Length(), input_gate=True),
        "in_out_gate": m(_C5, Length(), input_gate=True, output_gate="before_norm"),
        "in_out_gate_layer": m(_C5, Length(), input_gate=True, output_gate="before_norm", norm="layer"),
        "out_gate_layer": m(_C5, Length(), output_gate="before_norm", norm="layer"),
        "in_gate_layer": m(_C5, Length(), input_gate=True, norm="layer"),
        "layer_length": m(_C5, Length(), norm="layer"),
        "layer": m(_C5, Unnormalised(), norm="layer"),
        "rms_length": m(_C5, Length(), norm="rms"),
        "rms": m(_C5, Unnormalised(), norm="rms"),
        "norm_clamp": m(_C5, Unnormalised(), norm="l2"),
        "norm_length": m(Exp(), Length(), norm="l2"),
        "norm_pre_gate": m(Exp(), Length(), output_gate="before_norm", norm="l2"),
        "norm_post_gate": m(Exp(), Length(), output_gate="after_norm", norm="l2"),
        "relu_norm": m(Linear("relu", scaled=True), Unnormalised(), norm="l2"),
        "relu_gate": m(Linear("relu", scaled=True, clamp=5.0), Length(), output_gate="before_norm"),
        "linear_elu": m(Linear("elu"), Sum()),
        "linear_relu": m(Linear("relu"), Sum(eps=1e-8)),
        "linear_cosine": m(Linear("cosine"), Length(learned=True)),
        "linear": m(Power(1), Unnormalised()),
    }


def _field() -> dict[str, Mechanism]:
    """Systems of the field around the paper; docs/mechanisms.md has their formulas and sources."""
    m = Mechanism
    return {
        # Beside softmax: what is added to it.
        "off_by_one": m(Exp(), Sum(eps=1.0)),
        "sink": m(Exp(), Sum(sink=True)),
        "gated_attention": m(Exp(), Sum(), output_gate="after_norm", output_gate_per="channel"),
        "near2": m(Near(Exp(), Taylor(2), window=64), Sum()),
        # Forgetting: token decay outside the kernel, channel decay inside the score.
        "fox": m(Exp(), Sum(), decay="token"),
        "wall": m(Exp(), Sum(), decay="channel"),
        "norm_decay": m(Exp(), Unnormalised(), norm="l2", decay="token"),
        "mamba2": m(Linear("identity"), Unnormalised(), decay="token", decay_from="softplus"),
        "mamba2_squared": m(Power(2), Sum(), decay="token", decay_from="softplus"),
        "retnet": m(Power(1), Unnormalised(), norm="rms", decay="head"),
        "gla": m(Power(1), Unnormalised(), norm="rms", decay="channel"),
        # The delta rule: a key's value replaces what was read at that key.
        "deltanet": m(Power(1), Unnormalised(), update="delta"),
        "gated_deltanet": m(Power(1), Unnormalised(), decay="token", update="delta"),
        "kda": m(Power(1), Unnormalised(), decay="channel", update="delta"),
        "delta_softmax": m(Exp(), Unnormalised(), norm="l2", update="delta"),
        # Other kernels and feature maps.
        "power2": m(Power(2), Sum()),
        "taylorshift": m(Linear("cosine", order=2, temperature=True), Sum()),
        "performer": m(Linear(RandomFeatures(64, "positive")), Sum()),
        "rfa": m(Linear(RandomFeatures(64, "trigonometric")), Sum(), allow_signed=True),
        "cosformer": m(Linear(CosReweighted(4096)), Sum()),
    }


with warnings.catch_warnings():
    # Some of the paper's variants contain a gate that cancels: that is what they are for.
    warnings.simplefilter("ignore", MechanismWarning)
    PRESETS = _presets() | _field()
REGISTERED: dict[str, Mechanism] = {}  # by users, with ``register``

# taylor{N}, elu{N}, relu{N}, cosine{N}: the series to order N over its sum; with _norm, under an l2 norm; with _decay, token decay;
# with _delta (which a norm must come before), the delta rule.
FAMILIES: dict[str, Callable[[int], Taylor | Linear]] = {
    "taylor": Taylor,
    "elu": lambda n: Linear("elu", order=n),
    "relu": lambda n: Linear("relu", order=n),
    "cosine": lambda n: Linear("cosine", order=n),
}

AUTHORS = {
    "gated_softmax_no_gate_L2norm_nodivS_noclamp": "norm",
    "softmax_divS_gate": "gate",
    "softmax_divS_gatev2": "gate",
    "gated_softmax_no_in_gate_no_norm": "gate",
    "softmax_gate": "gate_nolength",
    "softmax_divs": "length",
    "gated_softmax_no_gate_no_norm": "length",
    "softmax_clamp_denom": "clamp_sum",
    "softmax_detach_denom": "detach_sum",
    "softmax_detach_denom_gate": "detach_sum_gate",
    "gated_softmax_no_out_gate_no_norm": "in_gate",
    "gated_softmax_no_norm": "in_out_gate",
    "gated_softmax": "in_out_gate_layer",
    "gated_softmax_no_in_gate": "out_gate_layer",
    "gated_softmax_no_out_gate": "in_gate_layer",
    "gated_softmax_no_gate": "layer_length",
    "gated_softmax_no_gate_rmsnorm": "rms_length",
    "softmax_divS_norm": "rms_length",
    "gated_softmax_no_gate_rmsnorm_nodivS": "rms",
    "gated_softmax_no_gate_L2norm_nodivS": "norm_clamp",
    "gated_softmax_out_gate_L2norm_nodivS_noclamp": "norm_pre_gate",
    "gated_softmax_post_out_gate_L2norm_nodivS_noclamp": "norm_post_gate",
    "gated_ReLU_no_gate_L2norm_nodivS_noclamp": "relu_norm",
    "gated_relu_no_in_gate_no_norm": "relu_gate",
}

_FAMILY = re.compile(rf"({'|'.join(FAMILIES)})(\d{{1,3}})(_norm)?(_decay)?(_delta)?")


def mechanism(name: str | Mechanism) -> Mechanism:
    """The mechanism of that name, ours or the authors'; a ``Mechanism`` is passed through.

    >>> print(mechanism("norm"))
    l2( Σ exp(x) v )
    >>> mechanism("taylor4") == Mechanism(Taylor(4), Sum())
    True
    """
    if isinstance(name, Mechanism):
        return name
    if not isinstance(name, str):
        raise MechanismError(f"A mechanism is a name or a Mechanism, got {type(name).__name__}.")
    if name == "softmax_taylor_80terms":  # order 79 is odd, but its root lies near -22, beyond any score it is used for
        return Mechanism(Taylor(79), Sum(), allow_signed=True)
    name = AUTHORS.get(name, name)
    if name in PRESETS or name in REGISTERED:
        return PRESETS[name] if name in PRESETS else REGISTERED[name]
    family = _FAMILY.fullmatch(name)
    if family:
        kernel = FAMILIES[family[1]](int(family[2]))
        denominator, norm = (Unnormalised(), "l2") if family[3] else (Sum(), None)
        decay, update = "token" if family[4] else None, "delta" if family[5] else "add"
        return Mechanism(kernel, denominator, norm=norm, decay=decay, update=update)
    raise MechanismError(_unknown(name))


def register(name: str, value: Mechanism) -> Mechanism:
    """Give a mechanism of your own a name, for ``attention``, configurations and the command line (with ``--plugins``).

    >>> register("mine", Mechanism(Taylor(2), Sum(eps=1.0))) == mechanism("mine")
    True
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z]\w*", name):
        raise MechanismError(f"A mechanism's name is lower-case letters, digits and _, got {name!r}.")
    if not isinstance(value, Mechanism):
        raise MechanismError(f"register takes a Mechanism, got {type(value).__name__}.")
    if mechanisms().get(name, value) != value or (name not in mechanisms() and _FAMILY.fullmatch(name)):
        raise MechanismError(f"The name {name!r} is taken by '{mechanism(name)}'.")
    REGISTERED[name] = value
    return value


def mechanisms() -> dict[str, Mechanism]:
    """Every preset by name; the families ``taylor{N}``, ``elu{N}``, ``relu{N}``, ``cosine{N}`` are not enumerated."""
    return PRESETS | REGISTERED


def _unknown(name: str) -> str:
    examples = [f"{f}{n}{suffix}" for f in FAMILIES for n in (2, 4, 10) for suffix in ("", "_norm")]
    known = f"known are {', '.join(PRESETS)} and taylor{{N}}, elu{{N}}, ..."
    hint = did_you_mean(name, [*mechanisms(), *examples, *AUTHORS], known, most=3, cutoff=0.5)
    return f"Unknown mechanism {name!r}: {hint}"
