"""Timing on a noisy machine: competitors take turns, and the fastest turn of each counts.

Only ratios within one call of ``interleave`` mean anything. The rate of a plain matrix product is measured in the same turns: it is the
physical limit, and times are also reported as a share of it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .. import Mechanism, attention

Work = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Seconds: the fastest repetition, the median, and how far the slowest quarter lies above the fastest, as a share."""

    best: float
    median: float
    spread: float


def interleave(work: dict[str, Work], repetitions: int) -> dict[str, Timing]:
    """Run all once to warm up, then take turns."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(repetitions + 1):
        for name, function in work.items():
            begin = time.perf_counter()
            function()
            if turn:
                times[name].append(time.perf_counter() - begin)
    return {name: _timing(found) for name, found in times.items()}


def _timing(found: list[float]) -> Timing:
    found = sorted(found)
    upper = found[(3 * len(found)) // 4 :]
    return Timing(found[0], statistics.median(found), statistics.mean(upper) / found[0] - 1)


def matmul_work(dtype: torch.dtype, size: int = 1024) -> tuple[Work, int]:
    """A square matrix product, and its number of operations."""
    a, b = torch.randn(2, size, size).to(dtype).unbind()
    return (lambda: a @ b), 2 * size**3


def inputs(B: int, H: int, T: int, D: int, E: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Random q, k, v that want gradients."""
    return [torch.randn(B, H, T, n).to(dtype).requires_grad_() for n in (D, D, E)]


def forward(function: Callable[..., Tensor], args: list[Tensor]) -> Work:
    """The forward pass alone."""

    def run() -> None:
        with torch.no_grad():
            function(*args)

    return run


def both(function: Callable[..., Tensor], args: list[Tensor]) -> Work:
    """Forward and backward."""
    with torch.no_grad():
        direction = torch.randn_like(function(*args))
    return lambda: torch.autograd.grad(function(*args), args, direction)


def ours(name: str | Mechanism, form: str) -> Callable[..., Tensor]:
    """Our attention as a function of q, k, v."""
    return lambda q, k, v: attention(q, k, v, name, form=form)


@dataclass(frozen=True)
class Comparison:
    """One measurement of ours beside one of something else, the anchor.

    ``ratio`` is ours / anchor, of times or of bytes: smaller is better. The target is the largest ratio allowed.
    """

    name: str
    shape: str
    anchor_name: str
    ours: float
    anchor: float
    target: float | None = None
    unit: str = "s"
    dtype: str = "float32"
    spread: float = 0.0
    share_of_matmul: float | None = None
    note: str = ""
    curve: str = ""  # the line of a picture that this is a point of
    length: int = 0

    @classmethod
    def of_times(
        cls, name: str, shape: str, anchor_name: str, ours: Timing, anchor: Timing, target: float | None, **more: Any
    ) -> Comparison:
        """The fastest turns of both."""
        return cls(name, shape, anchor_name, ours.best, anchor.best, target, spread=ours.spread, **more)

    @property
    def ratio(self) -> float:
        """Ours over the anchor."""
        return self.ours / self.anchor

    @property
    def met(self) -> bool | None:
        """Is the target met? None if there is none."""
        return None if self.target is None else self.ratio <= self.target

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with the computed fields."""
        return asdict(self) | {"ratio": self.ratio, "met": self.met}

    def __str__(self) -> str:
        value = f"{self.ours * 1e3:10.2f} ms" if self.unit == "s" else f"{self.ours:10.1f} {self.unit}"
        goal = "" if self.target is None else f"<= {self.target:.2f}  {'met' if self.met else 'MISSED'}"
        share = "" if self.share_of_matmul is None else f"{self.share_of_matmul:4.0%} of matmul"
        name = f"{self.name:<40} {self.shape:<44} {self.dtype:<9}"
        return f"{name} {value}   {self.ratio:6.2f}x {self.anchor_name:<28} {goal:<16} {share}".rstrip()


@dataclass(frozen=True)
class Contest:
    """Some works against one anchor, in one interleaved run. ``targets`` and ``flops`` by name of the work."""

    shape: str
    anchor_name: str
    anchor: Work
    ours: dict[str, Work]
    targets: dict[str, float]
    repetitions: int
    dtype: torch.dtype = torch.float32
    flops: dict[str, int] | None = None

    def run(self) -> list[Comparison]:
        """Everything in turns, and a comparison for each."""
        # The limit is the faster of the two: without hardware for it, a product in bfloat16 is slower than in float32.
        products = {str(dtype): matmul_work(dtype) for dtype in (torch.float32, self.dtype)}
        limits = {name: work for name, (work, _) in products.items()}
        timings = interleave({"anchor": self.anchor, **limits, **self.ours}, self.repetitions)
        rate = max(operations / timings[name].best for name, (_, operations) in products.items())
        flops, dtype = self.flops or {}, str(self.dtype).removeprefix("torch.")
        found = []
        for name in self.ours:
            t, target = timings[name], self.targets.get(name)
            share = flops[name] / t.best / rate if name in flops else None
            found.append(
                Comparison.of_times(
                    name, self.shape, self.anchor_name, t, timings["anchor"], target, dtype=dtype, share_of_matmul=share
                )
            )
        return found
