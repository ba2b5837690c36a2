"""What attention remembers of the past: an argument and a result, never hidden on an object.

    KVState         all keys and values, or with a window the newest; grows with the context. Any kernel (in the parallel form).
    KroneckerState  H^n = sum_s D k_s^{(x)n} u_s^T for each order n (sec. 3.1), in symmetric form; constant size. Finite kernels.
    NearState       a ring of the newest keys and values, and the Kronecker state of those that have left it; constant size. ``Near``.

Keys are kept after centring and the feature map, values after the input gate and the delta rule. With a sum denominator the Kronecker state
has one more value column, of ones, whose moments give the sum of weights. States accumulate in float32 (float64 for float64 input).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from .backends.powers import symmetric_dim
from .errors import MechanismError
from .slots.kernels import Kernel
from .slots.mechanism import Mechanism

S = TypeVar("S", bound="State")


def state_rows(kernel: Kernel, d: int) -> int:
    """Rows of a Kronecker state for d channels after the feature map: the symmetric powers of all orders, one below the other."""
    return sum(symmetric_dim(d, n) for n in kernel.orders)


STATE_LIMIT = 2**33  # bytes


COPIES = 4  # of a state while it moves on: before, what is added, after, and weighted; and so many tokens' features, at the least


def check_state_size(
    kernel: Kernel,
    d: int,
    columns: int,
    copies: int,
    itemsize: int = 4,
    otherwise: str = "form='parallel' keeps keys and values instead",
) -> None:
    """Refuse a Kronecker state that with the features it is made from takes more than ``STATE_LIMIT``, and say what would fit.

    ``otherwise`` is the caller's way out.
    """

    def size(rows: int) -> int:
        return rows * itemsize * COPIES * (columns * copies + 1)

    needed = size(state_rows(kernel, d))
    if needed <= STATE_LIMIT:
        return
    top, single = max(kernel.orders), len(kernel.orders) == 1

    def fits(d: int, order: int) -> bool:
        return (
            size(symmetric_dim(d, order) if single else sum(symmetric_dim(d, n) for n in range(order + 1)))
            <= STATE_LIMIT
        )

    order = max((n for n in range(top) if fits(d, n)), default=None)
    head = max((h for h in range(1, d) if fits(h, top)), default=None)
    ways = [
        f"order {order} would fit" if order is not None else None,
        f"a head size of {head} would fit" if head is not None else None,
        otherwise,
    ]
    raise MechanismError(
        f"The recurrent state of {kernel.text()} at head size {d} would take {readable_bytes(needed)} to make, "
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
    tokens: int  # how many tokens went in, padding included

    def _tensors(self) -> dict[str, Tensor]:
        """Those with a batch axis."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "center"}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def _parts(self) -> dict[str, State]:
        """The states that it is made of."""
        return {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), State)}

    def _map(self: S, change: Callable[[Tensor], Tensor]) -> S:
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self._tensors().items()}
        changed |= {name: part._map(change) for name, part in self._parts().items()}
        return replace(self, **changed)

    @property
    def nbytes(self) -> int:
        """Memory held by the tensors of the state."""
        own = sum(t.numel() * t.element_size() for t in self._tensors().values())
        return own + sum(part.nbytes for part in self._parts().values())

    @property
    def device(self) -> torch.device:
        """Where it is."""
        own = list(self._tensors().values())
        return own[0].device if own else next(iter(self._parts().values())).device

    def detach(self: S) -> S:
        """The same state, cut from the graph (truncated backpropagation through time)."""
        return self._map(lambda t: t.detach())

    def to(self: S, device: Any) -> S:
        """The same state on another device."""
        if isinstance(device, torch.dtype):
            raise MechanismError("A state keeps its precision: to() takes a device.")
        moved = self._map(lambda t: t.to(device))
        changed: dict[str, Any] = {name: part.to(device) for name, part in self._parts().items()}
        if moved.center is not None:
            changed["center"] = moved.center.to(device)
        return replace(moved, **changed)

    def index_select(self: S, batch: Tensor) -> S:
        """The states of the given batch entries, in that order, repeats allowed: beam search.

        >>> state = state.index_select(torch.tensor([0, 0, 2]))  # doctest: +SKIP
        """
        return self._map(lambda t: t.index_select(0, batch))

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return len(next(iter(self._tensors().values())))


@dataclass(frozen=True, eq=False)
class KVState(State):
    """Keys (B, Hkv, T, D) and values (B, Hkv, T, E), which of them count, their document number, and the clock of their decay.

    The first call keeps the tensors it was given, without a copy.
    """

    key: Tensor
    value: Tensor
    keep: Tensor | None = None
    documents: Tensor | None = None
    clock: Tensor | None = None
    channels: Tensor | None = None

    def newest(self, count: int) -> KVState:
        """The same with the newest tokens only."""
        extra = self.key.shape[2] - count
        if extra <= 0:
            return self

        def cut(x: Tensor | None, axis: int) -> Tensor | None:
            return None if x is None else x.narrow(axis, extra, count)

        return replace(
            self,
            key=self.key[:, :, extra:],
            value=self.value[:, :, extra:],
            keep=cut(self.keep, 1),
            documents=cut(self.documents, 1),
            clock=cut(self.clock, 2),
            channels=cut(self.channels, 2),
        )

    def padded(self, room: int) -> KVState:
        """The newest ``room`` tokens, behind as many that do not count as are missing: always the same size."""
        state = self.newest(room)
        tokens, missing = state.key.shape[2], room - state.key.shape[2]
        keep = state.keep
        if keep is None:
            keep = torch.ones(len(state.key), tokens, dtype=torch.bool, device=state.key.device)

        def pad(x: Tensor, axis: int) -> Tensor:
            return torch.cat([x.new_zeros([missing if i == axis else n for i, n in enumerate(x.shape)]), x], axis)

        return replace(
            state,
            key=pad(state.key, 2),
            value=pad(state.value, 2),
            keep=pad(keep, 1),
            documents=None if state.documents is None else pad(state.documents, 1),
            clock=None if state.clock is None else pad(state.clock, 2),
            channels=None if state.channels is None else pad(state.channels, 2),
        )


@dataclass(frozen=True, eq=False)
class KroneckerState(State):
    """``moments`` (B, Hkv, rows, E or E + 1); ``count`` (B,), under decay (B, Hkv): the keys of the current document."""

    moments: Tensor
    count: Tensor
    head_dim: int  # channels of the keys after the feature map

    def hidden(self, n: int) -> Tensor:
        """H^n, the hidden state of the n-th recurrent network: (B, Hkv, C(d + n - 1, n), E)."""
        present = self.mechanism.kernel.orders
        if n not in present:
            raise MechanismError(f"{self.mechanism.kernel.text()} has no order {n}; it has {present}.")
        begin = sum(symmetric_dim(self.head_dim, m) for m in present if m < n)
        columns = self.moments.shape[-1] - int(self.mechanism.denominator.needs_sum)
        return self.moments[..., begin : begin + symmetric_dim(self.head_dim, n), :columns]


@dataclass(frozen=True, eq=False)
class NearState(State):
    """The newest keys and values, and the Kronecker state of what came before them."""

    near: KVState
    far: KroneckerState

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.near.batch
