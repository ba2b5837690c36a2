"""What the kernels share: loading, masks, decay, polynomials, the sizes of tiles, and one way to launch.

    load_rows      a tile of a matrix, 0 outside
    load_clock     a clock in float64 as two float32 numbers, so that differences are exact without float64 arithmetic on tiles
    log_decay      log D_ts = c_t - c_s from two of them
    seen           who sees whom in a tile: key in [lo, hi) of the query
    polynomial     sum_n c_n x^n by Horner, from neighbouring ratios (see ``runs``)

A kernel is launched through ``launch``. Inside ``recording()`` nothing runs: the launches are collected, so that what is compiled ahead of
time is what would have run, with the same tiles and the same options.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import INTERPRETED

GONE = 110.0  # exp(-110) is 0 in float32: keys that have faded so far are not visited
WIDEN = tl.constexpr(INTERPRETED)
Run = tuple[int, float, float, tuple[float, ...]]


@triton.jit
def load_rows(base, rows, columns, T, WIDTH: tl.constexpr):
    """The tile (rows, columns) of the matrix (T, WIDTH) at ``base``; 0 outside."""
    inside = (rows[:, None] < T) & (columns[None, :] < WIDTH)
    return tl.load(base + rows[:, None] * WIDTH + columns[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(base, rows, columns, x, T, WIDTH: tl.constexpr):
    """The inverse of ``load_rows``, in the dtype of what is there."""
    inside = (rows[:, None] < T) & (columns[None, :] < WIDTH)
    tl.store(base + rows[:, None] * WIDTH + columns[None, :], x.to(base.dtype.element_ty), mask=inside)


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """a b, summed in float32; of unequal dtypes in float32. The interpreter multiplies bfloat16 as if it were integers, so it widens."""
    if a.dtype != b.dtype or WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def cast(x, dtype: tl.constexpr):
    """Weights for a product with something of that dtype: in bfloat16, which has the range, or left in float32."""
    return x.to(tl.bfloat16) if dtype == tl.bfloat16 else x


@triton.jit
def load_clock(base, start, rows, T, DECAY: tl.constexpr):
    """A clock (T,) in float64, that begins at ``start``, as the sum of two float32 vectors; without decay, any."""
    if DECAY:
        c = tl.load(base + start + rows, mask=rows < T, other=0.0)
        high = c.to(tl.float32)
        low = (c - high.to(tl.float64)).to(tl.float32)
    else:
        high = rows.to(tl.float32)
        low = high
    return high, low


@triton.jit
def log_decay(now_high, now_low, then_high, then_low):
    """log D (queries, keys), never above 0: the error is that of the difference, not of the clocks."""
    difference = (now_high[:, None] - then_high[None, :]) + (now_low[:, None] - then_low[None, :])
    return tl.minimum(difference, 0.0)


@triton.jit
def load_bounds(LO, HI, start, rows, Tq, Tk, offset, CAUSAL: tl.constexpr, CUT: tl.constexpr):
    """First and last-plus-one key that each query sees; nothing for rows beyond the last query."""
    if CUT:
        lo = tl.load(LO + start + rows, mask=rows < Tq, other=0)
        hi = tl.load(HI + start + rows, mask=rows < Tq, other=0)
    else:
        lo = tl.zeros_like(rows)
        hi = rows + offset + 1 if CAUSAL else lo + Tk
        hi = tl.where(rows < Tq, hi, 0)
    return lo, hi


@triton.jit
def seen(keys, lo, hi):
    """(queries, keys): True where the query sees the key."""
    return (keys[None, :] >= lo[:, None]) & (keys[None, :] < hi[:, None])


@triton.jit
def keys_of(
    RANGES, n, i, offset, Tk, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr, CUT: tl.constexpr
):
    """The keys that block i of queries visits, from the beginning of a tile: begin, until where tiles are whole, end."""
    if RANGES is not None:
        at = RANGES + (n * tl.num_programs(0) + i) * 2
        begin = tl.load(at) // BN * BN
        end = tl.load(at + 1)
    else:
        begin = 0
        end = tl.minimum((i + 1) * BM + offset, Tk) if CAUSAL else Tk
    if CUT:
        whole = begin
    else:
        whole = (tl.minimum(i * BM + offset + 1, Tk) if CAUSAL else Tk) // BN * BN
        whole = tl.maximum(tl.minimum(whole, end // BN * BN), begin)
    return begin, whole, end


@triton.jit
def queries_of(RANGES, n, j, offset, Tq, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    """The queries that visit block j of keys, from the beginning of a tile."""
    if RANGES is not None:
        at = RANGES + (n * tl.num_programs(0) + j) * 2
        begin = tl.load(at) // BM * BM
        end = tl.load(at + 1)
    else:
        begin = tl.maximum(j * BN - offset, 0) // BM * BM if CAUSAL else 0
        end = Tq
    return begin, end


@triton.jit
def chunk_times(CK, n, c, T, C: tl.constexpr, DECAY: tl.constexpr):
    """The clock at the beginning and at the end of chunk c, float64 scalars."""
    begin = tl.zeros((), tl.float64)
    end = tl.zeros((), tl.float64)
    if DECAY:
        end = tl.load(CK + n * T + tl.minimum((c + 1) * C, T) - 1)
        begin = tl.load(CK + n * T + tl.maximum(c * C - 1, 0))
        begin = tl.where(c == 0, 0.0, begin)
    return begin, end


@triton.jit
def fade(CLOCK, n, rows, T, begin, end, READ: tl.constexpr, DECAY: tl.constexpr):
    """What has faded between the state and a query (``READ``), or will have at the end of the chunk; (C,)."""
    if DECAY:
        c = tl.load(CLOCK + n * T + rows, mask=rows < T, other=0.0)
        log = (c - begin if READ else end - c).to(tl.float32)
        factor = tl.where(rows < T, tl.exp(tl.minimum(log, 0.0)), 0.0)
    else:
        factor = tl.where(rows < T, 1.0, 0.0)
    return factor


@triton.jit
def power(x, N: tl.constexpr):
    """x^N by squaring, N >= 1; nothing on the way is larger than the result, or than 1."""
    result = x
    for bit in tl.static_range(N.bit_length() - 2, -1, -1):
        result = result * result
        if (N >> bit) & 1:
            result = result * x
    return result


@triton.jit
def polynomial(x, RUNS: tl.constexpr):
    """sum_n c_n x^n in float32, its coefficients as ``runs`` gives them."""
    total = tl.zeros_like(x)
    for i in tl.static_range(len(RUNS)):
        nested = tl.full(x.shape, 1.0, tl.float32)
        for j in tl.static_range(len(RUNS[i][3])):
            nested = 1.0 + RUNS[i][3][j] * x * nested
        if RUNS[i][0] > 0:
            nested = nested * power(RUNS[i][1] * x, RUNS[i][0])
        total += RUNS[i][2] * nested
    return total


def runs(coefficients: Sequence[float]) -> tuple[Run, ...]:
    """A polynomial without numbers that leave the range of float32, as 1/35! does: unbroken runs of coefficients, each
    sign (root x)^low (1 + r x (1 + r' x (...))), where the r are ratios of neighbours, from the last to the first.

    >>> runs((1.0, 1.0, 0.5))
    ((0, 1.0, 1.0, (0.5, 1.0)),)
    """
    found: list[Run] = []
    n = 0
    while n < len(coefficients):
        low = n
        while n < len(coefficients) and coefficients[n] != 0:
            n += 1
        if n > low:
            c = coefficients[low]
            ratios = tuple(coefficients[i] / coefficients[i - 1] for i in range(n - 1, low, -1))
            root = abs(c) ** (1 / low) if low else 1.0
            found.append((low, root, c if low == 0 else math.copysign(1.0, c), ratios))
        n += 1
    return tuple(found)


def slope_and_rest(coefficients: Sequence[float]) -> tuple[tuple[Run, ...], tuple[Run, ...], bool]:
    """w' and what gives w: of a Taylor series only its last term, to be added to w'; else all of w."""
    derived = [n * c for n, c in enumerate(coefficients)][1:]
    if derived and all(map(math.isclose, derived, coefficients)):
        return runs(derived), runs([0.0] * len(derived) + [coefficients[-1]]), True
    return runs(derived), runs(coefficients), False


def padded(width: int) -> int:
    """The width of a tile for a head size: a power of two, at least the 16 that matrix units want."""
    return max(16, 1 << (width - 1).bit_length())


def precision(dtype: torch.dtype) -> str:
    """How float32 products are made: three passes of tf32 keep float32's accuracy; one pass if torch is told to be content with it,
    or if the inputs are in half precision, of which it loses nothing.
    """
    exact = dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return "tf32x3" if exact else "tf32"


@dataclass(frozen=True)
class Tile:
    """Queries and keys of a tile, and how many warps and pipeline stages work on it."""

    queries: int
    keys: int
    warps: int = 4
    stages: int = 2


def sized(tiles: dict[int, Tile], width: int) -> Tile:
    """The tile for the smallest size that is wide enough."""
    return tiles[min(w for w in tiles if w >= width)]


@dataclass(frozen=True)
class Launch:
    """One kernel with all its arguments, as it would run."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    tile: Tile


_records: list[list[Launch]] = []


@contextlib.contextmanager
def recording() -> Iterator[list[Launch]]:
    """Collect launches instead of running them; tensors may be on torch's meta device."""
    found: list[Launch] = []
    _records.append(found)
    try:
        yield found
    finally:
        _records.remove(found)


def options(tile: Tile) -> dict[str, Any]:
    """What the compiler is told. All registers may be used: left alone, it spills a few to have more programs at a time."""
    return {"num_warps": tile.warps, "num_stages": tile.stages, "maxnreg": 255, "enable_fp_fusion": True}


def launch(kernel: Any, grid: tuple[int, ...], tile: Tile, **arguments: Any) -> None:
    """Run a kernel, or record it."""
    if _records:
        _records[-1].append(Launch(kernel, grid, arguments, tile))
        return
    first = next(x for x in arguments.values() if isinstance(x, Tensor))
    with torch.cuda.device(first.device) if first.device.type == "cuda" else contextlib.nullcontext():
        kernel[grid](**arguments, **options(tile))


def ranges(
    cq: Tensor | None, ck: Tensor | None, lo: Tensor | None, hi: Tensor | None, Tq: int, Tk: int, causal: bool, tile: Tile
) -> tuple[Tensor | None, Tensor | None]:
    """Which keys each block of queries visits, (N, blocks, 2), and which queries each block of keys; None for all that causality leaves.

    Bounds and clocks move one way only, so that the first and the last of a block decide.
    """
    some = next((x for x in (ck, lo) if x is not None), None)
    if some is None:
        return None, None
    N, offset = len(some), Tk - Tq if causal else 0
    first_query = torch.arange(0, Tq, tile.queries, device=some.device)
    last_query = (first_query + tile.queries).clamp(max=Tq) - 1
    first_key = torch.arange(0, Tk, tile.keys, device=some.device)
    last_key = (first_key + tile.keys).clamp(max=Tk) - 1
    if lo is not None and hi is not None:
        from_key, to_key = lo[:, first_query], hi[:, last_query]
        from_query = torch.searchsorted(hi, first_key.to(hi).expand(N, -1).contiguous(), right=True)
        to_query = torch.searchsorted(lo, last_key.to(lo).expand(N, -1).contiguous(), right=True)
    else:
        from_key = torch.zeros(N, len(first_query), dtype=torch.long, device=some.device)
        to_key = ((last_query + offset + 1) if causal else torch.full_like(last_query, Tk)).expand(N, -1)
        from_query = ((first_key - offset).clamp(min=0) if causal else torch.zeros_like(first_key)).expand(N, -1)
        to_query = torch.full_like(from_query, Tq)
    if cq is not None and ck is not None:
        alive = torch.searchsorted(-ck, -(cq[:, first_query] + GONE))
        dead = torch.searchsorted(-cq, -(ck[:, last_key] - GONE), right=True)
        from_key, to_query = torch.maximum(from_key, alive), torch.minimum(to_query, dead)
    pairs = (from_key, to_key), (from_query, to_query)
    by_query, by_key = (torch.stack([x.expand(N, -1).int() for x in pair], -1).contiguous() for pair in pairs)
    return by_query, by_key


@dataclass(frozen=True)
class Plan:
    """A kernel over pairs of queries and keys: its tile, its arguments, and what each block of queries and of keys visits."""

    tile: Tile
    arguments: dict[str, Any]
    by_query: Tensor | None
    by_key: Tensor | None

    @classmethod
    def of(
        cls, t: Tile, q: Tensor, k: Tensor, v: Tensor, cq: Tensor | None, ck: Tensor | None, lo: Tensor | None,
        hi: Tensor | None, keep: Tensor | None, causal: bool, scale: float, **own: Any,
    ) -> Plan:
        """What every such kernel is given; ``own`` is for this one."""
        D, E, Tq, Tk = q.shape[-1], v.shape[-1], q.shape[2], k.shape[1]
        shared = {
            "Q": q, "K": k, "V": v, "CQ": cq, "CK": ck, "LO": lo, "HI": hi, "KEEP": keep, "G": q.shape[1], "Tq": Tq, "Tk": Tk,
            "offset": Tk - Tq if causal else 0, "scale": scale, "D": D, "E": E, "BM": t.queries, "BN": t.keys, "BD": padded(D),
            "BE": padded(E), "CAUSAL": causal, "CUT": lo is not None, "DECAY": cq is not None, "PRECISION": precision(q.dtype),
        }
        return cls(t, shared | own, *ranges(cq, ck, lo, hi, Tq, Tk, causal, t))

    def over_queries(self, kernel: Any, **more: Any) -> None:
        """A program for each block of queries of each head."""
        q = self.arguments["Q"]
        grid = (triton.cdiv(q.shape[2], self.tile.queries), q.shape[0] * q.shape[1])
        launch(kernel, grid, self.tile, **self.arguments, **more, RANGES=self.by_query)

    def over_keys(self, kernel: Any, **more: Any) -> None:
        """A program for each block of keys."""
        k = self.arguments["K"]
        launch(kernel, (triton.cdiv(k.shape[1], self.tile.keys), len(k)), self.tile, **self.arguments, **more, RANGES=self.by_key)
