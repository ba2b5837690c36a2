"""The slots of the formula: what a mechanism is made of. Here is what they share, and each kind of slot is one file.

    mechanism.py      one choice per slot, and the gates, the decay and the update
    kernels.py        the weight of a key as a function of its score
    feature_maps.py   what linear attention does to queries and keys
    denominators.py   what the weighted sum is divided by, and the vector norms that take its place
    presets.py        names

A slot is a frozen value, and it declares once which tensors it wants beside q, k and v:

    Input("sink", "H", "the logit of the sink")        one number per query head: a parameter of the model's layer
    Input("beta", "B Hkv Tk", ..., activation="sigmoid")      one per token: the layer projects its input and applies the activation

From this declaration follow the checks of ``attention``, the parameters of the model's layer, the arguments that tests draw, and
the table in docs/mechanisms.md. Sizes are B, H and Hkv (query and key/value heads), Tq and Tk (queries and keys), D and E (channels of
keys and values).
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from typing import Any

from ..errors import MechanismError

ACTIVATIONS = ("sigmoid", "twice_sigmoid", "log_sigmoid", "softplus")


@dataclass(frozen=True)
class Input:
    """A tensor that a slot wants.

    Args:
        name: the argument of ``attention``.
        shape: its sizes, such as ``"B Hkv Tk"``.
        what: what it is, in a few words.
        low, high: the range of allowed values.
        start: what a layer's parameter begins with; for a projection the value of its bias.
        activation: what a layer applies to its projection; one of ``ACTIVATIONS``.
        rate: the name of a further parameter of the layer, one number A per head: the result is multiplied by -exp(A), as in Mamba-2.
        module: the name of the parameter or projection in a layer, if not ``name`` or ``name_proj``.
        optional: may be left out of a call.
    """

    name: str
    shape: str
    what: str
    low: float = -float("inf")
    high: float = float("inf")
    start: float = 0.0
    activation: str | None = None
    rate: str | None = None
    module: str | None = None
    optional: bool = False

    @property
    def sizes(self) -> tuple[str, ...]:
        """The sizes by name."""
        return tuple(self.shape.split())

    @property
    def per_token(self) -> bool:
        """Does it change from token to token? Then a layer makes it from its input; otherwise it is a parameter."""
        return "Tq" in self.sizes or "Tk" in self.sizes

    @property
    def in_layer(self) -> str:
        """Its name in a model's layer."""
        return self.module or (f"{self.name}_proj" if self.per_token else self.name)


@dataclass(frozen=True)
class Slot(ABC):
    """A value in one slot of the formula: compared by content, written to and read from plain dicts; incomplete classes are refused."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The tensors it wants; a subclass lists its own."""
        return ()

    @abstractmethod
    def text(self) -> str:
        """Its part of the formula."""


def to_dict(slot: Slot) -> dict[str, Any]:
    """Plain data: the class (with its import path, unless it is one of ours) and its fields."""
    kind = type(slot)
    ours = kind.__module__.startswith(f"{__package__}.")
    values = {f.name: getattr(slot, f.name) for f in fields(slot)}
    plain = {name: to_dict(x) if isinstance(x, Slot) else x for name, x in values.items()}
    return {"type": kind.__name__ if ours else f"{kind.__module__}.{kind.__qualname__}", **plain}


def from_dict(base: type, data: Any, what: str) -> Any:
    """The inverse of ``to_dict``; ``base`` is the class that the slot holds, ``what`` its name in messages."""
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise MechanismError(f"The {what} must be a dict with a 'type', got {data!r}.")
    kind = _find(base, data["type"], what)
    values = {k: v for k, v in data.items() if k != "type"}
    return build(kind, {k: _nested(v, what) for k, v in values.items()}, what)


def _nested(value: Any, what: str) -> Any:
    return from_dict(Slot, value, what) if isinstance(value, dict) and "type" in value else value


def _find(base: type, name: str, what: str) -> type:
    known = {kind.__name__: kind for kind in _subclasses(base) if kind.__module__.startswith(f"{__package__}.")}
    if name in known:
        return known[name]
    module, _, attribute = name.replace(":", ".").rpartition(".")
    if not module:
        raise MechanismError(
            f"Unknown {what} type {name!r}; known are {', '.join(sorted(known))}, or the import path of a class such as my_module.MyClass."
        )
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise MechanismError(
            f"The {what} type {name!r} cannot be imported ({error}): put its module on Python's path, "
            f"or say --plugins {module} on the command line."
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise MechanismError(f"{name} is not a {what}: it must be a subclass of {base.__name__}.")
    return kind


def _subclasses(base: type[Any]) -> list[type[Any]]:
    return [kind for child in base.__subclasses__() for kind in (child, *_subclasses(child))]


def build(kind: type, values: dict[str, Any], what: str) -> Any:
    """A dataclass from its fields; unknown and missing ones are refused by name."""
    names = {f.name for f in fields(kind)}
    unknown = sorted(str(k) for k in set(values) - names)
    if unknown:
        raise MechanismError(f"Unknown key {unknown[0]!r} in the {what}; known are {', '.join(sorted(names))}.")
    missing = [f.name for f in fields(kind) if f.default is MISSING and f.name not in values]
    if missing:
        raise MechanismError(f"The {what} {values!r} is incomplete: it lacks {missing[0]!r}.")
    lacking = sorted(getattr(kind, "__abstractmethods__", ()))
    if lacking:
        raise MechanismError(f"The class {kind.__name__} is incomplete: a {what} needs the method {lacking[0]}.")
    return kind(**values)


__all__ = ["ACTIVATIONS", "Input", "Slot", "build", "from_dict", "to_dict"]
