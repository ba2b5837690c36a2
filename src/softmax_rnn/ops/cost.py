"""What each form costs, and which one ``form="auto"`` takes.

Two numbers per form: floating-point operations in matrix products, and elementwise operations on scores and features. The estimate
is ``matmul + ELEMENTWISE * elementwise``; ELEMENTWISE is how many matrix-product operations one elementwise operation is worth (measured
on a CPU: a fused multiply-add in cache takes about as long as 8 operations in a good matrix product). Causal attention does half of the
T x T work. The recurrent form does the arithmetic of the chunked one, but T small steps cannot use the machine: ``STEP`` operations each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..algebra import Mechanism
from ..errors import MechanismError
from ..presets import mechanism as resolve
from .chunked import default_chunk
from .state import STATE_LIMIT, orders, readable_bytes, state_rows

ELEMENTWISE = 8
STEP = 2**22


@dataclass(frozen=True)
class Cost:
    """Forward cost of one form for a whole batch."""

    form: str
    matmul: int
    elementwise: int
    steps: int
    state_bytes: int
    working_bytes: int

    @property
    def fits(self) -> bool:
        """Is the recurrent state one that would be allowed?"""
        return self.form == "parallel" or self.state_bytes <= STATE_LIMIT

    @property
    def estimate(self) -> int:
        """Operations, weighted; what ``auto`` minimises."""
        return self.matmul + ELEMENTWISE * self.elementwise + STEP * self.steps


def _parallel(m: Mechanism, B: int, H: int, Tq: int, Tk: int, D: int, E: int, Hkv: int, causal: bool) -> Cost:
    pairs = B * H * Tq * Tk // (2 if causal and Tq > 1 else 1)
    passes = 3 if m.kernel.coefficients is None else max(1, len(m.kernel.coefficients))
    tile = 128 * Tk * 4 * 2
    return Cost("parallel", 2 * pairs * (D + E), pairs * passes, 0, B * Hkv * Tk * (D + E) * 4, tile)


def _moments(form: str, m: Mechanism, B: int, H: int, Tq: int, Tk: int, D: int, E: int, Hkv: int, causal: bool) -> Cost:
    rows = state_rows(m.kernel, D)
    columns = E + int(m.denominator.needs_sum)
    chunk = min(default_chunk(rows), max(Tq, 1)) if causal else 0
    reads, writes = B * H * Tq, B * Hkv * Tk
    products = 2 * rows * columns * (reads + writes)
    within = 2 * reads * chunk * (D + columns) if form == "chunked" else 0
    passes = len(m.kernel.coefficients or ())
    elementwise = rows * (reads + writes) + (reads * chunk * passes if form == "chunked" else 0)
    traffic = B * Hkv * rows * columns * 3 * (-(-Tk // chunk) if chunk else 1)
    state = B * Hkv * rows * columns * 4
    steps = Tq if form == "recurrent" else 0
    return Cost(form, products + within, elementwise + traffic, steps, state, 4 * rows * max(chunk, 128) * B * H)


def costs(
    m: Mechanism,
    B: int,
    H: int,
    Tq: int,
    D: int,
    E: int,
    Hkv: int | None = None,
    Tk: int | None = None,
    causal: bool = True,
) -> list[Cost]:
    """The forms that can compute ``m`` at these sizes, and what they cost."""
    Hkv, Tk = Hkv or H, Tq if Tk is None else Tk
    found = [_parallel(m, B, H, Tq, Tk, D, E, Hkv, causal)]
    if m.kernel.finite:
        found.append(_moments("chunked", m, B, H, Tq, Tk, D, E, Hkv, causal))
        if causal:
            found.append(_moments("recurrent", m, B, H, Tq, Tk, D, E, Hkv, causal))
    return found


def cheapest(m: Mechanism, B: int, H: int, Tq: int, D: int, E: int, Hkv: int, Tk: int, causal: bool) -> str:
    """The form with the smallest estimate."""
    return _best(costs(m, B, H, Tq, D, E, Hkv, Tk, causal)).form


def _best(found: Sequence[Cost]) -> Cost:
    best = found[0]
    for cost in found[1:]:  # min(..., key=...) says the same, but torch.compile cannot trace it
        best = cost if cost.fits and cost.estimate < best.estimate else best
    return best


@dataclass(frozen=True)
class Explanation:
    """What ``explain`` found; prints as a table."""

    mechanism: Mechanism
    sizes: tuple[int, int, int, int, int]
    costs: tuple[Cost, ...]
    break_even: int | None

    @property
    def choice(self) -> str:
        """What ``form="auto"`` takes."""
        return _best(self.costs).form

    def __str__(self) -> str:
        B, H, T, D, E = self.sizes
        kernel = self.mechanism.kernel
        head = f"{self.mechanism}   B={B} H={H} T={T} D={D} E={E}, causal, forward"
        lines = [head, f"{'form':<10} {'matmul FLOPs':>13} {'elementwise':>12} {'working set':>12} {'state':>10}"]
        for c in self.costs:
            sizes = f"{readable_bytes(c.working_bytes):>12} {readable_bytes(c.state_bytes):>10}"
            row = f"{c.form:<10} {c.matmul:>13.3g} {c.elementwise:>12.3g} {sizes}"
            mark = "   <- auto" if c.form == self.choice else "" if c.fits else "   too large"
            lines.append(row + mark)
        if not kernel.finite:
            lines.append("no recurrent state of constant size: the parallel form it is")
        elif self.break_even is None:
            lines.append(
                f"chunked never overtakes parallel below T = {2**30:,} (state rows: {state_rows(kernel, D):,})"
            )
        else:
            lines.append(f"chunked overtakes parallel from T = {self.break_even:,}; orders {orders(kernel)}")
        return "\n".join(lines)


def explain(mechanism: str | Mechanism, B: int, H: int, T: int, D: int, E: int) -> Explanation:
    """FLOPs, bytes and state per form, the length from which chunks win, and what ``form="auto"`` takes.

    >>> import softmax_rnn as sr
    >>> print(sr.explain("taylor2", 1, 8, 16384, 16, 64))  # doctest: +SKIP
    """
    m = resolve(mechanism)
    if not all(isinstance(n, int) and n >= 1 for n in (B, H, T, D, E)):
        raise MechanismError(f"explain needs whole sizes >= 1, got B={B}, H={H}, T={T}, D={D}, E={E}.")
    return Explanation(m, (B, H, T, D, E), tuple(costs(m, B, H, T, D, E)), _break_even(m, B, H, D, E))


def _break_even(m: Mechanism, B: int, H: int, D: int, E: int) -> int | None:
    if not m.kernel.finite:
        return None

    def wins(T: int) -> bool:
        found = {c.form: c.estimate for c in costs(m, B, H, T, D, E)}
        return found["chunked"] < found["parallel"]

    low, high = 1, 2**30
    if not wins(high):
        return None
    while low < high:  # past the first chunk the advantage only grows with T
        middle = (low + high) // 2
        low, high = (low, middle) if wins(middle) else (middle + 1, high)
    return low
