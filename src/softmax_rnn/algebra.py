"""A mechanism as a value: one choice for each slot of the formula

    O_t = post_gate_t * Norm( pre_gate_t * sum_s w(x_ts) (in_gate_s v_s) / Z_t )

with w the kernel, Z the denominator. Softmax is ``Mechanism(Exp(), Sum())``; every variant of the paper is another
choice (``presets.py`` has them by name). A mechanism is a value: frozen, compared and hashed by content, checked when made,
and written to and read from plain dicts.
"""

from __future__ import annotations

import warnings
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from .denominators import Denominator, Length, Sum, Unnormalised
from .errors import MechanismError, MechanismWarning
from .kernels import Exp, Kernel, Linear, Power, Taylor
from .norms import NORMS

__all__ = ["Exp", "Length", "Linear", "Mechanism", "Power", "Sum", "Taylor", "Unnormalised"]

GATES = ("before_norm", "after_norm")


@dataclass(frozen=True)
class Mechanism:
    """An attention mechanism as a value.

    >>> print(Mechanism(Exp(), Sum()))
    Σ exp(x) v / Σ w
    >>> Mechanism.from_dict(Mechanism(Taylor(4), Sum()).to_dict()) == Mechanism(Taylor(4), Sum())
    True
    """

    kernel: Kernel
    denominator: Denominator
    input_gate: bool = False
    output_gate: str | None = None
    norm: str | None = None
    allow_signed: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise MechanismError(f"kernel must be Exp, Taylor, Power or Linear, got {self.kernel!r}.")
        if not isinstance(self.denominator, Denominator):
            raise MechanismError(f"denominator must be Sum, Length or Unnormalised, got {self.denominator!r}.")
        if not isinstance(self.input_gate, bool) or not isinstance(self.allow_signed, bool):
            raise MechanismError("input_gate and allow_signed must be True or False.")
        if self.output_gate is not None and self.output_gate not in GATES:
            raise MechanismError(f"output_gate must be None, 'before_norm' or 'after_norm', got {self.output_gate!r}.")
        if self.norm is not None and (not isinstance(self.norm, str) or self.norm not in NORMS):
            raise MechanismError(f"norm must be None or one of {', '.join(NORMS)}, got {self.norm!r}.")
        self._check_signs()
        self._check_cancelling()

    def _check_signs(self) -> None:
        if self.kernel.signed and self.denominator.needs_sum and not self.allow_signed:
            raise MechanismError(
                f"The weights of {self.kernel.text()} can be negative, so their sum can be 0 and the quotient anything: "
                "take an even order, or a vector norm with Unnormalised(), or say allow_signed=True."
            )

    def _check_cancelling(self) -> None:
        if self.norm is None:
            return
        if self.output_gate == "before_norm":
            warnings.warn(
                f"An output gate before the {self.norm} norm cancels (but for its epsilon) and gets no gradient; 'after_norm' keeps it.",
                MechanismWarning,
                stacklevel=4,
            )
        if self.denominator.needs_exponent:
            warnings.warn(
                f"A learned length exponent before the {self.norm} norm cancels and gets no gradient.",
                MechanismWarning,
                stacklevel=4,
            )

    @property
    def cancels_scale(self) -> bool:
        """True if a common factor on all weights of a query changes nothing: any vector norm, or a plain sum."""
        return self.norm is not None or self.denominator.cancels_scale

    @property
    def parameters(self) -> tuple[str, ...]:
        """Which arguments beyond q, k, v the mechanism wants: gates and a length exponent."""
        wants = {
            "input_gate": self.input_gate,
            "output_gate": self.output_gate is not None,
            "length_exponent": self.denominator.needs_exponent,
        }
        return tuple(name for name, wanted in wants.items() if wanted)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that JSON and YAML can hold; ``from_dict`` gives an equal mechanism back."""
        out: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for slot in ("kernel", "denominator"):
            value = getattr(self, slot)
            out[slot] = {"type": type(value).__name__, **asdict(value)}
        return out

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Mechanism:
        """The inverse of ``to_dict``; unknown keys and types are refused by name."""
        if not isinstance(data, dict):
            raise MechanismError(f"A mechanism is read from a dict, got {type(data).__name__}.")
        data = dict(data)
        for slot, base in (("kernel", Kernel), ("denominator", Denominator)):
            if slot not in data:
                raise MechanismError(f"A mechanism needs a {slot}; the keys given are {sorted(data)}.")
            data[slot] = _slot_from_dict(slot, base, data[slot])
        return _build(cls, data, "mechanism")

    def __str__(self) -> str:
        weight = self.kernel.text()
        text = f"Σ {weight} {'g_in·v' if self.input_gate else 'v'}"
        divisor = self.denominator.text()
        if divisor:
            text += f" / ({divisor})" if " + " in divisor and not divisor.endswith(")") else f" / {divisor}"
        if self.output_gate == "before_norm":
            text = f"g_out · {text}"
        if self.norm is not None:
            text = f"{self.norm}( {text} )"
        if self.output_gate == "after_norm":
            text = f"g_out · {text}"
        return text


def _slot_from_dict(slot: str, base: type[Kernel] | type[Denominator], data: Any) -> Any:
    if not isinstance(data, dict) or "type" not in data:
        raise MechanismError(f"The {slot} must be a dict with a 'type', got {data!r}.")
    known: dict[str, type] = {kind.__name__: kind for kind in base.__subclasses__()}
    if not isinstance(data["type"], str) or data["type"] not in known:
        raise MechanismError(f"Unknown {slot} type {data['type']!r}; known are {', '.join(sorted(known))}.")
    return _build(known[data["type"]], {k: v for k, v in data.items() if k != "type"}, slot)


def _build(cls: type, data: dict[str, Any], what: str) -> Any:
    names = {f.name for f in fields(cls)}
    unknown = sorted(set(data) - names)
    if unknown:
        raise MechanismError(f"Unknown key {unknown[0]!r} in the {what}; known are {', '.join(sorted(names))}.")
    missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in data]
    if missing:
        raise MechanismError(f"The {what} {data!r} is incomplete: it lacks {missing[0]!r}.")
    return cls(**data)
