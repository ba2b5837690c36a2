"""The inner loops in C: built once for this machine by its C compiler, kept in a cache, called without Python's lock.

    tiles.h      the loops of ``tiles.py``: weighted sums and softmax, forward and backward
    scan.h       the loops of ``linear.py``: order 1 in chunks
    products.h   matrix products for small heads

Between two matrix products Python would make one pass over a tile for each operation; C makes one for all of them. The products
themselves are those of the BLAS that torch brings, except where heads are too small for it. Where there is no compiler with OpenMP,
or no such BLAS, or where ``SOFTMAX_RNN_NATIVE=0`` is set, the loops in Python compute the same; ``why_not()`` says which.

The library lies in ``$XDG_CACHE_HOME/softmax-rnn`` (``~/.cache/softmax-rnn``) under a name made of the source, the flags and the
processor, so that another machine, or another version, builds its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..threads import workers

SOURCES = [Path(__file__).parent / name for name in ("loops.c", "products.h", "tiles.h", "scan.h")]
FLAGS = [
    *("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    *("-fopenmp", "-shared", "-fPIC"),
]
LEAST = 2**20  # multiplications that are worth more than one thread; torch's wake sooner than Python's
RATE = 1.75  # how many times as fast as torch's batched products these loops multiply, for the estimates of forms
TYPES = {torch.float32: "float", torch.float64: "double"}


class Missing(Exception):
    """Why there is no library: a sentence."""


class _Series(ctypes.Structure):
    """As in loops.c."""

    _fields_ = [
        ("low", ctypes.c_int64),
        ("terms", ctypes.c_int64),
        ("first", ctypes.c_double),
        ("root", ctypes.c_double),
        ("ratios", ctypes.c_void_p),
    ]


def _pointers(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_void_p) for name in names]


def _numbers(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_int64) for name in names]


class _Tiles(ctypes.Structure):
    """As in loops.c."""

    _fields_ = [
        *_pointers("q", "k", "v", "grad", "gtotal", "bias", "cq", "ck", "lo", "hi", "keep"),
        *_pointers("out", "sums", "dq", "dk", "dv", "dones", "dcq", "dck"),
        *_numbers("group", "queries", "keys", "d", "e", "bounds", "causal"),
        ("limit", ctypes.c_double),
        ("weight", _Series),
        ("slope", _Series),
    ]


class _Scan(ctypes.Structure):
    """As in loops.c."""

    _fields_ = [
        *_pointers("q", "k", "v", "state", "grad", "carry", "first", "cq", "ck", "middle"),
        *_pointers("out", "states", "scores", "dq", "dk", "dv", "dstate", "clock_q", "clock_k"),
        *_numbers("group", "tokens", "chunk", "d", "e", "width"),
    ]


def why_not() -> str | None:
    """Why the loops are not those in C; None if they are."""
    found = _library(os.environ.get("SOFTMAX_RNN_NATIVE", "1"))
    return str(found) if isinstance(found, Missing) else None


why_not._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compile asks once instead of looking inside


def describe() -> str:
    """For ``explain``."""
    reason = why_not()
    return "loops in C" if reason is None else f"loops in Python ({reason})"


@functools.cache
def _library(wanted: str) -> ctypes.CDLL | Missing:
    """The library, built if need be."""
    if wanted == "0":
        return Missing("SOFTMAX_RNN_NATIVE=0 asks for the loops in Python")
    try:
        library = ctypes.CDLL(str(_built()))
        (torch_itself,) = (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.[sd]*")
        blas = ctypes.CDLL(str(torch_itself))
        library.products(*(ctypes.cast(getattr(blas, name), ctypes.c_void_p) for name in ("sgemm_", "dgemm_")))
    except Missing as reason:
        return reason
    except (OSError, AttributeError, ValueError) as error:
        return Missing(f"the loops in C do not find their way into torch ({error})")
    return library


def _built() -> Path:
    """Where the library is."""
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None or shutil.which(compiler) is None:
        raise Missing(f"there is no C compiler{'' if compiler is None else f' {compiler}'}")
    made_of = [*(source.read_text() for source in SOURCES), *FLAGS, compiler, _processor()]
    name = f"loops-{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:16]}.so"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softmax-rnn"
    if (folder / name).exists():
        return folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            made = Path(place) / name
            command = [compiler, *FLAGS, str(SOURCES[0]), "-o", str(made), "-lm"]
            built = subprocess.run(command, capture_output=True, text=True, check=False)
            if built.returncode:
                said = next((line for line in built.stderr.splitlines() if line.strip()), "it does not say why")
                raise Missing(f"{compiler} does not build the loops in C ({said.strip()})")
            made.replace(folder / name)  # whole or not at all: several processes may build at once
    except OSError as error:
        raise Missing(f"the loops in C cannot be kept in {folder} ({error.strerror})") from error
    return folder / name


def _processor() -> str:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


class _Polynomial(NamedTuple):
    """What C reads, and the memory that it points to."""

    value: _Series
    ratios: Any = None


def _series(coefficients: Sequence[float]) -> _Polynomial:
    """A polynomial without gaps, nested by the ratios of its neighbouring coefficients; exp without coefficients."""
    present = [n for n, c in enumerate(coefficients) if c != 0]
    if not present:
        return _Polynomial(_Series(0, 0 if coefficients else -1, 0.0, 1.0, None))
    low, high = present[0], present[-1]
    ratios = [coefficients[n] / coefficients[n - 1] for n in range(low + 1, high + 1)]
    memory = (ctypes.c_double * (len(ratios) + 1))(*ratios)
    first, root = coefficients[low], 1.0
    if low:  # (|c|^(1/n) x)^n: nothing on the way is larger than the result, or than 1
        first, root = (1.0 if first > 0 else -1.0), abs(first) ** (1 / low)
    return _Polynomial(_Series(low, len(ratios), first, root, ctypes.addressof(memory)), memory)


def _gaps(coefficients: Sequence[float]) -> bool:
    present = [n for n, c in enumerate(coefficients) if c != 0]
    return bool(present) and len(present) < present[-1] - present[0] + 1


def takes(q: Tensor, aq: Tensor | None = None, coefficients: Sequence[float] = (), softcap: float | None = None) -> bool:
    """Is it for these loops? On the CPU, without channel decay and soft cap, and for polynomials without gaps."""
    fits = q.device.type == "cpu" and q.dtype in TYPES and aq is None and softcap is None and not _gaps(coefficients)
    return fits and why_not() is None


def run(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    coefficients: Sequence[float] = (),
    limit: float | None = None,
    **others: Tensor | None,
) -> None:
    """A loop over the tiles of q (N, G, Tq, D), k (N, Tk, D), v (N, Tk, E), which writes into tensors of its caller.

    ``others`` are named as in loops.c; all tensors are contiguous.
    """
    N, group, Tq, D = q.shape
    Tk, E, lo = k.shape[1], v.shape[-1], others.get("lo")
    derived = [n * c for n, c in enumerate(coefficients)][1:]
    weight, slope = _series(coefficients), _series(derived or [0.0 for _ in coefficients])
    call = _Tiles(
        **_addresses(q=q, k=k, v=v, **others),
        group=group,
        queries=Tq,
        keys=Tk,
        d=D,
        e=E,
        bounds=0 if lo is None or len(lo) == 1 else Tq,
        causal=causal,
        limit=float("inf") if limit is None else limit,
        weight=weight.value,
        slope=slope.value,
    )
    _share(f"{name}_{TYPES[q.dtype]}", call, N, N * group * Tq * Tk * (D + E))


def scan(name: str, q: Tensor, k: Tensor, v: Tensor, chunk: int, **others: Tensor) -> None:
    """A loop over the chunks of q (N, G, T, D), k (N, T, D), v (N, T, E), in the same way."""
    N, group, T, D = q.shape
    E, clock = v.shape[-1], others.get("ck")
    width = 0 if clock is None else clock.shape[-1]
    call = _Scan(**_addresses(q=q, k=k, v=v, **others), group=group, tokens=T, chunk=chunk, d=D, e=E, width=width)
    _share(f"{name}_{TYPES[q.dtype]}", call, N, N * group * T * chunk * 2 * (D + E))


def _addresses(**tensors: Tensor | None) -> dict[str, int]:
    """Where C finds them."""
    there = {at: x for at, x in tensors.items() if x is not None and x.numel()}
    scattered = [at for at, x in there.items() if not x.is_contiguous()]
    if scattered:  # C would read other numbers
        raise ValueError(f"{', '.join(scattered)} must be contiguous")
    return {at: x.data_ptr() for at, x in there.items()}


def _share(name: str, call: ctypes.Structure, sequences: int, multiplications: int) -> None:
    """Call a function of the library for all sequences, divided between torch's threads."""
    library = _library(os.environ.get("SOFTMAX_RNN_NATIVE", "1"))
    assert isinstance(library, ctypes.CDLL)
    with _alone():
        threads = workers(sequences, multiplications, torch.device("cpu"), LEAST, sequences)
        if getattr(library, name)(ctypes.byref(call), ctypes.c_int64(sequences), ctypes.c_int(threads)):
            raise MemoryError("There is no memory left for a tile of scores.")


_forked = False


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """In a forked process one thread, for the products of BLAS as well: OpenMP would wait for threads that did not survive the fork."""
    threads = torch.get_num_threads()
    if not _forked or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _in_a_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_a_fork)
