"""The equivalent ways to compute a mechanism. A form says what it refuses, what it costs, and runs; nothing else knows.

    reference.py   what a form is; dense, as the formula reads: the specification
    parallel.py    all queries at once, O(T) memory, everything; what the delta rule writes
    chunked.py     linear time through a state of constant size
    recurrent.py   one token after another

``form="auto"`` takes the cheapest that does not refuse, by a stated estimate: operations in matrix products, plus 8 times the elementwise
ones, plus a fixed cost for every small step, all of it less where the loops are in C. ``explain`` prints it all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..backends import BACKENDS, SOFTMAX_LSE, WEIGHTED_SUM, SoftmaxCall, WeightedCall, native, triton
from ..context import Context
from ..errors import MechanismError
from ..problem import Dims, Setting
from ..slots.kernels import Near
from ..slots.mechanism import Mechanism
from ..slots.presets import mechanism as resolve
from ..state import KVState, readable_bytes, state_rows
from .chunked import Chunked
from .parallel import Parallel, needs_lse
from .recurrent import Recurrent
from .reference import Cost, Form, Reference, constant_state, fits

EXPORTED_ROWS = 2**13  # of a state: above, an exported program keeps to the parallel form
FORMS: dict[str, Form] = {form.name: form for form in (Parallel(), Chunked(), Recurrent(), Reference())}


def find_form(name: object, s: Setting, wants_state: bool) -> Form:
    """The form of that name, if it can compute this; for ``auto`` the cheapest that can."""
    if name == "auto":
        return _cheapest(s, wants_state)
    if not isinstance(name, str) or name not in FORMS:
        raise MechanismError(f"form must be one of auto, {', '.join(FORMS)}, got {name!r}.")
    reason = FORMS[name].refuses(s)
    if reason is not None:
        raise MechanismError(reason)
    return FORMS[name]


def _cheapest(s: Setting, wants_state: bool) -> Form:
    constant = constant_state(s)
    if constant is None or s.state is KVState:
        return FORMS["parallel"]
    if s.state is not None or wants_state:  # what will be continued should stay small
        return FORMS["recurrent" if s.dims.keys <= 1 else "chunked"]
    if torch.compiler.is_exporting():  # one program for every length: what is best at great length
        kernel = s.mechanism.kernel
        rows = state_rows(kernel.far if isinstance(kernel, Near) else kernel, kernel.width(s.dims.key_dim))
        return FORMS["chunked" if rows <= EXPORTED_ROWS else "parallel"]
    best, least = FORMS["parallel"], FORMS["parallel"].cost(s).estimate
    for name in ("chunked", "recurrent"):  # min(..., key=...) says the same, but torch.compile cannot trace it
        form = FORMS[name]
        if form.refuses(s) is None and fits(s) and form.cost(s).estimate < least:
            best, least = form, form.cost(s).estimate
    return best


@dataclass(frozen=True)
class Explanation:
    """What ``explain`` found; prints as a table."""

    mechanism: Mechanism
    sizes: tuple[int, int, int, int, int]
    costs: tuple[Cost, ...]
    refusals: dict[str, str]
    choice: str  # what form="auto" takes
    break_even: int | None

    def __str__(self) -> str:
        B, H, T, D, E = self.sizes
        kernel = self.mechanism.kernel
        head = f"{self.mechanism}   B={B} H={H} T={T} D={D} E={E}, causal, forward"
        lines = [head, f"{'form':<10} {'matmul FLOPs':>13} {'elementwise':>12} {'working set':>12} {'state':>10}"]
        for c in self.costs:
            sizes = f"{readable_bytes(c.working_bytes):>12} {readable_bytes(c.state_bytes):>10}"
            mark = "   <- auto" if c.form == self.choice else ""
            lines.append(f"{c.form:<10} {c.matmul:>13.3g} {c.elementwise:>12.3g} {sizes}{mark}")
        lines += [f"{name:<10} {reason}" for name, reason in self.refusals.items()]
        if isinstance(kernel, Near) or kernel.finite:
            far = kernel.far if isinstance(kernel, Near) else kernel
            rows = state_rows(far, kernel.width(D))
            lines.append(
                f"chunked never overtakes parallel below T = {2**30:,} (state rows: {rows:,})"
                if self.break_even is None
                else f"chunked overtakes parallel from T = {self.break_even:,}; orders {far.orders}"
            )
        else:
            lines.append("no recurrent state of constant size: only the parallel form computes it")
        lines += self._implementations()
        lines.append(f"tiles and chunks of order 1: {native.describe()}")
        lines.append(triton.describe(kernel.width(D), E))
        return "\n".join(lines)

    def _implementations(self) -> list[str]:
        """What of torch's backends would compute the parallel form here, and why those before it would not."""
        (B, H, T, D, E), m = self.sizes, self.mechanism
        kernel = m.kernel.near if isinstance(m.kernel, Near) else m.kernel
        number = torch.zeros((), device="cuda" if torch.cuda.is_available() else "cpu")
        q, k, v = (number.expand(B, H, T, n) for n in (kernel.width(D), kernel.width(D), E))  # takes no memory
        clock = number.expand(B, H, T) if m.decay in ("head", "token") else None
        channels = number.expand(B, H, T, D) if m.decay == "channel" else None
        bias = number.expand(B, H, T) if m.update == "delta" and kernel.exponential else None
        context = Context(T, T, True, number.device, clock=clock, channels=channels, bias=bias)
        call: Any = WeightedCall(q, k, v, context, 1.0, kernel.coefficients or (), kernel.limit, True)
        if kernel.exponential:
            call = SoftmaxCall(q, k, v, context, 1.0, kernel.softcap, isinstance(m.kernel, Near) or needs_lse(m))
        lines: list[str] = []
        for x in SOFTMAX_LSE if kernel.exponential else WEIGHTED_SUM:
            if x.backend == "triton":  # has its own line
                continue
            reason = x.refuses(call)
            if reason is None:
                choice = f"backend= chooses among {', '.join(BACKENDS)}"
                return [*lines, f"parallel is computed by {x.name} ({x.backend}); {choice}"]
            lines.append(f"{x.name} ({x.backend}) is not used: {reason}")
        return lines


def explain(mechanism: str | Mechanism, B: int, H: int, T: int, D: int, E: int) -> Explanation:
    """FLOPs, bytes and state per form, the length from which chunks win, what ``form="auto"`` takes, and what is refused and why.

    >>> import softmax_rnn as sr
    >>> print(sr.explain("taylor2", 1, 8, 16384, 16, 64))  # doctest: +SKIP
    """
    m = resolve(mechanism)
    if not all(isinstance(n, int) and n >= 1 for n in (B, H, T, D, E)):
        raise MechanismError(f"explain needs whole sizes >= 1, got B={B}, H={H}, T={T}, D={D}, E={E}.")
    setting = Setting(m, Dims(B, H, H, T, T, D, E))
    names = [name for name in FORMS if name != "reference"]
    reasons = {name: FORMS[name].refuses(setting) or _too_large(name, setting) for name in names}
    stepwise = (
        constant_state(setting) is not None
    )  # without such a state, step by step is the parallel form again and again
    shown = [n for n in names if FORMS[n].refuses(setting) is None and (stepwise or n != "recurrent")]
    costs = tuple(FORMS[name].cost(setting) for name in shown)
    refusals = {name: reason for name, reason in reasons.items() if reason is not None}
    return Explanation(m, (B, H, T, D, E), costs, refusals, _cheapest(setting, False).name, _break_even(setting))


def _too_large(name: str, s: Setting) -> str | None:
    return None if name == "parallel" or constant_state(s) is None or fits(s) else "too large a state for auto"


def _break_even(s: Setting) -> int | None:
    if constant_state(s) is None:
        return None

    def wins(T: int) -> bool:
        at = replace(s, dims=s.dims._replace(queries=T, keys=T))
        return FORMS["chunked"].cost(at).estimate < FORMS["parallel"].cost(at).estimate

    low, high = 1, 2**30
    if not wins(high):
        return None
    while low < high:  # past the first chunk the advantage only grows with T
        middle = (low + high) // 2
        low, high = (low, middle) if wins(middle) else (middle + 1, high)
    return low
