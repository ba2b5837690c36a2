"""What attention remembers of the past: an argument and a result, never hidden on an object.

    KVState         all keys and values; grows with the context. Any kernel (the parallel form), and exp always.
    KroneckerState  H^n = sum_s k_s^{(x)n} v_s^T for each order n (sec. 3.1), in symmetric form; constant size. Finite kernels.

Keys are kept after centring and the feature map, values after the input gate. With a sum denominator the Kronecker state has
one more value column, of ones, whose moments give the sum of weights. States accumulate in float32 (float64 for float64 input).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..algebra import Mechanism
from ..errors import MechanismError
from ..features import symmetric_dim
from ..kernels import Kernel

S = TypeVar("S", bound="State")


def orders(kernel: Kernel) -> list[int]:
    """The orders n with a non-zero coefficient: those that have a hidden state."""
    return [n for n, c in enumerate(kernel.coefficients or ()) if c != 0]


def state_rows(kernel: Kernel, d: int) -> int:
    """Rows of a Kronecker state: the symmetric powers of all orders, one below the other."""
    return sum(symmetric_dim(d, n) for n in orders(kernel))


STATE_LIMIT = 2**33  # bytes


def check_state_size(
    kernel: Kernel, d: int, columns: int, copies: int, itemsize: int = 4,
    otherwise: str = "form='parallel' keeps keys and values instead",
) -> None:  # fmt: skip
    """Refuse a Kronecker state of more than ``STATE_LIMIT``, and say what would fit; ``otherwise`` is the caller's way out."""
    size = state_rows(kernel, d) * columns * itemsize * copies
    if size <= STATE_LIMIT:
        return
    top, single = max(orders(kernel)), len(orders(kernel)) == 1

    def fits(d: int, order: int) -> bool:
        rows = symmetric_dim(d, order) if single else sum(symmetric_dim(d, n) for n in range(order + 1))
        return rows * columns * itemsize * copies <= STATE_LIMIT

    order = max((n for n in range(top) if fits(d, n)), default=None)
    head = max((h for h in range(1, d) if fits(h, top)), default=None)
    ways = [
        f"order {order} would fit" if order is not None else None,
        f"a head size of {head} would fit" if head is not None else None,
        otherwise,
    ]
    raise MechanismError(
        f"The recurrent state of {kernel.text()} at head size {d} would take {readable_bytes(size)}, "
        f"more than {readable_bytes(STATE_LIMIT)}: " + ", ".join(w for w in ways if w) + "."
    )


def readable_bytes(n: float) -> str:
    """1536 -> '1.5 KB'.

    >>> readable_bytes(1536)
    '1.5 KB'
    """
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if n < 1024:
            return f"{n:.4g} {unit}"
        n /= 1024
    return f"{n:.4g} PB"


@dataclass(frozen=True, eq=False)
class State:
    """What both kinds share."""

    mechanism: Mechanism
    center: Tensor | None  # (Hkv, D) what was subtracted from the keys; the same for all sequences
    segment: Tensor | None  # (B,) the segment id of the last token

    def _tensors(self) -> dict[str, Tensor]:
        """Those with a batch axis."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "center"}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def _map(self: S, change: Callable[[Tensor], Tensor]) -> S:
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self._tensors().items()}
        return replace(self, **changed)

    @property
    def nbytes(self) -> int:
        """Memory held by the tensors of the state."""
        return sum(t.numel() * t.element_size() for t in self._tensors().values())

    def detach(self: S) -> S:
        """The same state, cut from the graph (truncated backpropagation through time)."""
        return self._map(lambda t: t.detach())

    def to(self: S, device: Any) -> S:
        """The same state on another device."""
        if isinstance(device, torch.dtype):
            raise MechanismError("A state keeps its precision: to() takes a device.")
        moved = self._map(lambda t: t.to(device))
        return moved if moved.center is None else replace(moved, center=moved.center.to(device))

    def index_select(self: S, batch: Tensor) -> S:
        """The states of the given batch entries, in that order, repeats allowed: beam search.

        >>> state = state.index_select(torch.tensor([0, 0, 2]))  # doctest: +SKIP
        """
        return self._map(lambda t: t.index_select(0, batch))

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return len(next(iter(self._tensors().values())))

    @property
    def tokens(self) -> int:
        """How many tokens went in, padding included."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class KVState(State):
    """All keys (B, Hkv, T, D) and values (B, Hkv, T, E), which of them count, and their document number.

    The first call keeps the tensors it was given, without a copy.
    """

    key: Tensor
    value: Tensor
    keep: Tensor | None
    runs: Tensor | None

    @property
    def tokens(self) -> int:
        """How many tokens went in, padding included."""
        return self.key.shape[2]


@dataclass(frozen=True, eq=False)
class KroneckerState(State):
    """``moments`` (B, Hkv, rows, E or E + 1); ``count`` (B,): the keys of the current document."""

    moments: Tensor
    count: Tensor
    head_dim: int
    seen: int

    @property
    def tokens(self) -> int:
        """How many tokens went in, padding included."""
        return self.seen

    def hidden(self, n: int) -> Tensor:
        """H^n, the hidden state of the n-th recurrent network: (B, Hkv, C(d + n - 1, n), E)."""
        present = orders(self.mechanism.kernel)
        if n not in present:
            raise MechanismError(f"{self.mechanism.kernel.text()} has no order {n}; it has {present}.")
        begin = sum(symmetric_dim(self.head_dim, m) for m in present if m < n)
        columns = self.moments.shape[-1] - int(self.mechanism.denominator.needs_sum)
        return self.moments[..., begin : begin + symmetric_dim(self.head_dim, n), :columns]
