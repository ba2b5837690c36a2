"""A mechanism as a value: one choice for each slot of the formula

    O_t = post_gate_t * Norm( pre_gate_t * sum_s D_ts w(x_ts) u_s / Z_t )

with w the kernel, Z the denominator, D the decay, and u what is written: the values, or under the delta rule what is new in
them. Softmax is ``Mechanism(Exp(), Sum())``; every mechanism of the paper and of the field around it is another choice (``presets.py`` has
them by name). A mechanism is a value: frozen, compared and hashed by content, checked when made, and written to and read from plain dicts.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from typing import Any

from ..errors import MechanismError, MechanismWarning
from . import Input, Slot, build, from_dict, to_dict
from .denominators import NORMS, Denominator, Norm
from .kernels import Kernel, Near, Taylor

GATES = ("before_norm", "after_norm")
DECAYS = {"head": "Hkv", "token": "B Hkv Tk", "channel": "B Hkv Tk D"}
DECAYS_FROM = ("log_sigmoid", "softplus")
UPDATES = ("add", "delta")
_SLOTS: dict[str, type] = {"kernel": Kernel, "denominator": Denominator, "norm": Norm}


@dataclass(frozen=True)
class Mechanism:
    """An attention mechanism as a value.

    Args:
        kernel: the weight of a key, as a function of its score.
        denominator: what the weighted sum is divided by.
        input_gate: multiply the values by a gate per kv head and token.
        output_gate: None, "before_norm" or "after_norm".
        norm: None, "l2", "rms", "layer", or a ``Norm``.
        allow_signed: accept weights that can be negative under a sum.
        decay: None, "head" (one number per kv head), "token" (one per token) or "channel" (one per token and key channel).
        update: "add", or "delta": a key's value replaces what was read at that key before.
        output_gate_per: "head", or "channel" for a gate on every channel of the output.
        decay_from: how a layer makes log_decay from its input x: "log_sigmoid" of a projection, or "softplus", -exp(A) softplus(W x + b)
            with a learned rate A per head, as in Mamba-2. ``attention`` is given log_decay and does not ask.

    >>> print(Mechanism(Exp(), Sum()))  # doctest: +SKIP
    Σ exp(x) v / Σ w
    """

    kernel: Kernel
    denominator: Denominator
    input_gate: bool = False
    output_gate: str | None = None
    norm: str | Norm | None = None
    allow_signed: bool = False
    decay: str | None = None
    update: str = "add"
    output_gate_per: str = "head"
    decay_from: str = "log_sigmoid"

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise MechanismError(f"kernel must be Exp, Taylor, Power, Linear or Near, got {self.kernel!r}.")
        if not isinstance(self.denominator, Denominator):
            raise MechanismError(f"denominator must be Sum, Length or Unnormalised, got {self.denominator!r}.")
        if not isinstance(self.input_gate, bool) or not isinstance(self.allow_signed, bool):
            raise MechanismError("input_gate and allow_signed must be True or False.")
        if self.output_gate is not None and self.output_gate not in GATES:
            raise MechanismError(f"output_gate must be None, 'before_norm' or 'after_norm', got {self.output_gate!r}.")
        if self.output_gate_per not in ("head", "channel"):
            raise MechanismError(f"output_gate_per must be 'head' or 'channel', got {self.output_gate_per!r}.")
        if (
            self.norm is not None
            and not isinstance(self.norm, Norm)
            and not (isinstance(self.norm, str) and self.norm in NORMS)
        ):
            raise MechanismError(f"norm must be None or one of {', '.join(NORMS)}, got {self.norm!r}.")
        if self.decay is not None and not (isinstance(self.decay, str) and self.decay in DECAYS):
            raise MechanismError(f"decay must be None, 'head', 'token' or 'channel', got {self.decay!r}.")
        if self.decay_from not in DECAYS_FROM:
            raise MechanismError(f"decay_from must be 'log_sigmoid' or 'softplus', got {self.decay_from!r}.")
        if self.decay_from == "softplus" and self.decay not in ("token", "channel"):
            raise MechanismError(
                f"decay_from='softplus' makes a decay from each token: it needs decay='token' or 'channel', got {self.decay!r}."
            )
        if self.update not in UPDATES:
            raise MechanismError(f"update must be 'add' or 'delta', got {self.update!r}.")
        self._check_signs()
        self._check_update()
        self._check_cancelling()

    def _normed_name(self) -> str:
        """What a series under a norm is called."""
        order = self.kernel.orders[-1] if isinstance(self.kernel, Taylor) else None
        return "" if order is None else f" (taylor{order}_norm)"

    def _check_signs(self) -> None:
        if self.kernel.signed and self.denominator.needs_sum and not self.allow_signed:
            raise MechanismError(
                f"The weights of {self.kernel.text()} can be negative, so their sum can be 0 and the quotient anything: "
                f"take an even order, or a vector norm with Unnormalised(){self._normed_name()}, or say allow_signed=True."
            )

    def _check_update(self) -> None:
        if self.update == "delta" and self.denominator.needs_sum:
            raise MechanismError(
                "Under the delta rule what is written can cancel, so a sum of weights says nothing: take a vector norm or Unnormalised()."
            )
        if isinstance(self.kernel, Near) and self.update == "delta":
            raise MechanismError(
                "Near has no delta rule: near weights are kept as exponents and far ones as a series, and the rule would have to subtract "
                "one from the other. Take Exp or a series."
            )
        if isinstance(self.kernel, Near) and self.decay is not None:
            raise MechanismError(
                "Near has no decay: it is for far keys that keep their weight. Take Exp or a series, with which far keys fade."
            )

    def _check_cancelling(self) -> None:
        if self.norm is None:
            return
        name = self.norm_value.text() if self.norm_value else ""
        if self.output_gate == "before_norm" and self.output_gate_per == "head":
            warnings.warn(
                f"An output gate before the {name} norm cancels (but for its epsilon) and gets no gradient; 'after_norm' keeps it.",
                MechanismWarning,
                stacklevel=4,
            )
        if self.denominator.inputs and not self.denominator.needs_sum:
            warnings.warn(
                f"A learned length exponent before the {name} norm cancels and gets no gradient.",
                MechanismWarning,
                stacklevel=4,
            )

    @property
    def norm_value(self) -> Norm | None:
        """The norm as a value."""
        return NORMS[self.norm] if isinstance(self.norm, str) else self.norm

    @property
    def cancels_scale(self) -> bool:
        """True if a common factor on all weights of a query changes nothing: any vector norm, or a plain sum."""
        return self.norm is not None or self.denominator.cancels_scale

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Every tensor that the slots want beside q, k and v."""
        own = [slot.inputs for slot in (self.kernel, self.denominator, self.norm_value) if slot is not None]
        return (*_gates(self), *_decay(self), *_update(self), *(x for inputs in own for x in inputs))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the tensors that a call must give: gates, decay, a length exponent, ..."""
        return tuple(x.name for x in self.inputs if not x.optional)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON and YAML can hold; ``from_dict`` gives an equal mechanism back."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        new = (
            "decay",
            "update",
            "output_gate_per",
            "decay_from",
        )  # left out where they say nothing, as in files of the first edition
        default = {f.name: f.default for f in fields(self)}
        return {
            name: to_dict(x) if isinstance(x, Slot) else x
            for name, x in values.items()
            if name not in new or x != default[name]
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Mechanism:
        """The inverse of ``to_dict``; unknown keys and types are refused by name."""
        if not isinstance(data, dict):
            raise MechanismError(f"A mechanism is read from a dict, got {type(data).__name__}.")
        data = dict(data)
        for slot in ("kernel", "denominator"):
            if slot not in data:
                raise MechanismError(f"A mechanism needs a {slot}; the keys given are {sorted(map(str, data))}.")
        for slot, base in _SLOTS.items():
            if slot != "norm" or isinstance(data.get(slot), dict):
                data[slot] = from_dict(base, data[slot], slot)
        return build(cls, data, "mechanism")

    def __str__(self) -> str:
        written = "g_in·v" if self.input_gate else "v"
        written = f"Δ({written})" if self.update == "delta" else written
        decay = {None: "", "head": "γ^(t-s) ", "token": "D ", "channel": ""}[self.decay]
        weight = self.kernel.text()
        weight = f"{weight}[x·D]" if self.decay == "channel" else weight
        weight = f"({weight})" if " else " in weight else weight
        text = f"Σ {decay}{weight} {written}"
        divisor = self.denominator.text()
        if divisor:
            divisor = divisor.replace("Σ w", "Σ D w") if decay else divisor
            bare = " + " in divisor and not divisor.startswith(("(", "stopgrad("))
            text += f" / ({divisor})" if bare else f" / {divisor}"
        gate = "G_out ⊙ " if self.output_gate_per == "channel" else "g_out · "
        if self.output_gate == "before_norm":
            text = f"{gate}{text}"
        if self.norm_value is not None:
            text = f"{self.norm_value.text()}( {text} )"
        if self.output_gate == "after_norm":
            text = f"{gate}{text}"
        return text


def _gates(m: Mechanism) -> list[Input]:
    found = []
    if m.input_gate:
        found.append(
            Input("input_gate", "B Hkv Tk", "on the values", 0, 1, activation="sigmoid", module="in_gate_proj")
        )
    if m.output_gate:
        shape = "B H Tq" if m.output_gate_per == "head" else "B H Tq E"
        found.append(Input("output_gate", shape, "on the output", 0, 1, activation="sigmoid", module="out_gate_proj"))
    return found


def _decay(m: Mechanism) -> list[Input]:
    if m.decay is None:
        return []
    what = "the logarithm of what a step leaves of the past"
    shape, low = DECAYS[m.decay], -float("inf")
    if m.decay_from == "softplus":
        return [Input("log_decay", shape, what, low, 0, 0.0, "softplus", "decay_rate", "decay_proj")]
    # A fresh layer forgets slowly: log sigmoid(4) = -0.018 a token.
    return [Input("log_decay", shape, what, low, 0, start=4.0, activation="log_sigmoid", module="decay_proj")]


def _update(m: Mechanism) -> list[Input]:
    if m.update == "add":
        return []
    return [Input("beta", "B Hkv Tk", "how much of the old value a write replaces", 0, 2, activation="sigmoid")]
