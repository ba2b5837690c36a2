"""Tasks that show expressiveness: generated, seeded, of any size; each a data source of the lab.

    softmax-rnn train --data.source task:mqar,pairs=16 --data.length 64
    softmax-rnn recall mqar forgetting --orders 1 2 4

>>> task("mqar,pairs=16").pairs
16
"""

from __future__ import annotations

from dataclasses import fields

from ..errors import UserError, did_you_mean
from .associative import MQAR, ForgettingMQAR, FuzzyRecall, NoisyRecall
from .base import NOTHING, Task
from .sequences import Digits, NGrams, Parity, SelectiveCopy, SymmetricGroup

__all__ = ["NOTHING", "PREFIX", "TASKS", "Task", "task"]

PREFIX = "task:"
TASKS: dict[str, type[Task]] = {
    kind.name: kind
    for kind in (MQAR, ForgettingMQAR, NoisyRecall, FuzzyRecall, SelectiveCopy, Parity, SymmetricGroup, NGrams, Digits)
}


def task(text: str) -> Task:
    """The task of a name and its sizes: ``mqar``, ``mqar,pairs=16,vocab=512``, with or without ``task:`` in front.

    >>> task("task:parity").vocabulary
    2
    """
    name, *sizes = text.removeprefix(PREFIX).split(",")
    if name not in TASKS:
        hint = did_you_mean(name, TASKS, f"known are {', '.join(TASKS)}.")
        raise UserError(f"Unknown task {name!r}: {hint}")
    known = {f.name: float if f.type in ("float", float) else int for f in fields(TASKS[name])}
    given: dict[str, float] = {}
    for size in sizes:
        key, _, value = size.partition("=")
        if key not in known:
            raise UserError(f"task:{name} has no size {key!r}; it has {', '.join(known)}.")
        try:
            given[key] = known[key](value)
        except ValueError:
            kind = "a whole number" if known[key] is int else "a number"
            raise UserError(f"task:{name} needs {kind} for {key}, got {value!r}.") from None
    return TASKS[name](**given)  # type: ignore[arg-type]
