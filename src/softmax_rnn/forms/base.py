"""What a form is: it says what it refuses, what it costs, and runs; nothing else knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..context import Context, decayed_count
from ..problem import Problem, Setting, Sums
from ..slots.kernels import Near
from ..state import STATE_LIMIT, KroneckerState, KVState, NearState, State, state_rows

ELEMENTWISE = 8  # how many operations of a matrix product one elementwise operation is worth (measured on a CPU)
STEP = 2**22  # what one small step of the recurrent form costs, in the same unit


@dataclass(frozen=True)
class Cost:
    """Forward cost of one form for a whole batch: operations in matrix products, elementwise operations, small steps, and bytes."""

    form: str
    matmul: int
    elementwise: int
    steps: int
    state_bytes: int
    working_bytes: int

    @property
    def estimate(self) -> int:
        """Operations, weighted; what ``auto`` minimises."""
        return self.matmul + ELEMENTWISE * self.elementwise + STEP * self.steps


class Form(ABC):
    """One of the equivalent ways to compute a mechanism; a subclass without ``cost`` or ``run`` cannot be made."""

    name: ClassVar[str]

    def refuses(self, s: Setting) -> str | None:
        """Why it cannot compute this, in a sentence; None if it can."""
        if s.state is not None and s.state is not self.state_of(s):
            return f"A {s.state.__name__} cannot be continued in the {self.name} form: use form='auto'."
        return None

    def state_of(self, s: Setting) -> type[State]:
        """The kind of state it keeps."""
        return KVState

    @abstractmethod
    def cost(self, s: Setting) -> Cost:
        """What it takes."""

    @abstractmethod
    def run(self, p: Problem) -> tuple[Sums, Tensor, State]:
        """The sums, how many keys each query saw, and the state after."""


def constant_state(s: Setting) -> type[State] | None:
    """The kind of state of constant size that a mechanism has, or None."""
    kernel = s.mechanism.kernel
    if s.window is not None:
        return None
    return NearState if isinstance(kernel, Near) else KroneckerState if kernel.finite else None


def no_constant_state(s: Setting) -> str | None:
    """Why there is none, in a sentence."""
    kernel = s.mechanism.kernel
    if s.window is not None:
        return "What leaves a window cannot be taken out of a recurrent state: use form='parallel', which keeps the window's keys."
    if isinstance(kernel, Near) or kernel.finite:
        return None
    if kernel.limit is not None:
        return f"With a clamp on scores ({kernel.text()}) there is no recurrent state: use form='parallel'."
    return f"{kernel.text()} has no finite recurrent state, so no chunked form: use form='parallel'."


def fits(s: Setting) -> bool:
    """Is the recurrent state one that would be allowed?"""
    return 4 * moment_bytes(s) <= STATE_LIMIT


def moment_bytes(s: Setting) -> int:
    """The size of the Kronecker state of a whole batch."""
    kernel, d = s.mechanism.kernel, s.dims
    far = kernel.far if isinstance(kernel, Near) else kernel
    columns = d.value_dim + int(s.mechanism.denominator.needs_sum or isinstance(kernel, Near))
    return d.batch * d.kv_heads * state_rows(far, kernel.width(d.key_dim)) * columns * 4


def count_keys(p: Problem, context: Context) -> Tensor:
    """How many keys each query sees, (B or 1, H or 1, Tq, 1); under decay their decayed number, where a denominator asks for it."""
    if context.clock is None or not p.mechanism.denominator.needs_count:
        return context.count()
    if context.keys == 0:
        return torch.zeros(1, 1, context.queries, 1, device=context.device)
    found = decayed_count(context.clock, context.keep, context)
    return found.repeat_interleave(p.q.shape[1] // p.k.shape[1], 1)
