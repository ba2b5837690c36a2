"""Kernels compiled ahead of time for a card that is not there: registers, spills and shared memory of each.

A call on torch's meta device goes through the same functions as a real one; its launches are recorded instead of run
(``backends.triton.common.recording``), and each is compiled by Triton for the given architecture with the tiles, types and constants that
it would have. What is compiled is what is claimed: every kernel, dtype and head size, with all masks at once and in bfloat16 also without.
"""

from __future__ import annotations

import math
import multiprocessing
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CARDS = {
    80: ("A100", 163 * 1024),
    90: ("H100", 227 * 1024),
}  # architecture: name, shared memory of one program in bytes
TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.bool: "*i1",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WIDTHS = (16, 32, 64, 128)
TAYLOR10 = [1 / math.factorial(n) for n in range(11)]
TAYLOR2 = [1.0, 1.0, 0.5]


@dataclass(frozen=True)
class Case:
    """One primitive with one dtype and head size, for one architecture."""

    primitive: str
    masks: bool
    dtype: str
    width: int
    architecture: int


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of one kernel."""

    kernel: str
    primitive: str
    masks: bool
    dtype: str
    width: int
    architecture: int
    tile: list[int]
    warps: int
    stages: int
    registers: int
    spilled_bytes: int
    shared_bytes: int

    @property
    def fits(self) -> bool:
        """No register is spilled to memory, and the shared memory is what the card has."""
        return self.spilled_bytes == 0 and self.shared_bytes <= CARDS[self.architecture][1]

    def to_dict(self) -> dict[str, Any]:
        """As in the record."""
        return asdict(self)


def claimed() -> Iterator[Case]:
    """Everything that is said to work on a card."""
    from ..backends.triton import WIDEST, WIDEST_KEY

    for primitive in ("softmax", "weighted", "scan", "delta"):
        for name, dtype in DTYPES.items():
            widest = WIDEST[dtype] if primitive in ("softmax", "weighted") else WIDEST_KEY
            for width in (w for w in WIDTHS if w <= widest):
                for architecture in CARDS:
                    yield Case(primitive, True, name, width, architecture)
                    if primitive in ("softmax", "weighted") and dtype == torch.bfloat16:
                        yield Case(primitive, False, name, width, architecture)


def launches(case: Case) -> list[Any]:
    """The different launches of a forward and a backward pass."""
    from ..backends.triton import common, delta, scan, softmax, weighted

    N, G, T, D, E = 4, 2, 1024, case.width, min(case.width, 64) if case.primitive in ("scan", "delta") else case.width

    def empty(*shape: int, dtype: torch.dtype = DTYPES[case.dtype]) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    q, k, v = empty(N, G, T, D), empty(N, T, D), empty(N, T, E)
    bound, keep, clock, bias = (empty(N, T, dtype=x) for x in (torch.int32, torch.bool, torch.float64, torch.float32))
    masks: list[Any] = [clock, clock, bound, bound, keep] if case.masks else [None] * 5
    with common.recording() as found:
        if case.primitive == "softmax":
            arguments = (
                q,
                k,
                v,
                *masks[:2],
                bias if case.masks else None,
                *masks[2:],
                True,
                0.125,
                30.0 if case.masks else None,
            )
            made: Any = softmax.forward(*arguments)
            softmax.backward(*made, *arguments, *made)
        elif case.primitive == "weighted":
            series, limit = (TAYLOR10, 30.0) if case.masks else (TAYLOR2, None)
            what = (q, k, v, *masks, True, 0.125, series, limit, True)
            made = weighted.forward(*what)
            weighted.backward(*made, *what, *made)
        elif case.primitive == "scan":
            state = empty(N, (2 + D) * D, E, dtype=torch.float32)
            made = scan.forward(q, k, v, state, clock, clock, TAYLOR2)
            scan.backward(made[0], made[1], q, k, v, state, clock, clock, TAYLOR2, made[0], made[1])
        else:
            state, beta = empty(N, D, E, dtype=torch.float32), empty(N, T, dtype=torch.float32)
            made = delta.forward(k, v, beta, state, clock, 1.0)
            delta.backward(made[0], None, None, k, v, beta, state, clock, 1.0, made[0], made[1], made[2])
            what = (q, k, made[0], state, clock, clock, [0.0, 1.0])  # then a scan over what was written, in float32
            made = scan.forward(*what)
            scan.backward(made[0], made[1], *what, made[0], made[1])
    different = {(x.kernel.__name__, x.arguments.get("READ"), x.arguments.get("REVERSE")): x for x in found}
    return list(different.values())


def signature(launch: Any) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
    """Types, constants, and what is known to be divisible by 16, as Triton would find when the kernel is called."""
    names = launch.kernel.arg_names
    fixed = {names[p.num] for p in launch.kernel.params if p.is_constexpr}
    types: dict[str, str] = {}
    constants: dict[str, Any] = {}
    hints: dict[tuple[int], list[list[Any]]] = {}
    for i, name in enumerate(names):
        value = launch.arguments[name]
        if name in fixed or value is None or (isinstance(value, int) and value == 1):
            types[name], constants[name] = "constexpr", value
        elif isinstance(value, Tensor):
            types[name], hints[(i,)] = TYPES[value.dtype], [["tt.divisibility", 16]]
        else:
            types[name] = "fp32" if isinstance(value, float) else "i32"
            if isinstance(value, int) and value % 16 == 0:
                hints[(i,)] = [["tt.divisibility", 16]]
    return types, constants, hints


def compile_case(case: Case) -> list[Compiled]:
    """All kernels of a case."""
    return [compile_launch(launch, case) for launch in launches(case)]


def compile_launch(launch: Any, case: Case) -> Compiled:
    """One kernel for one architecture."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from ..backends.triton.common import options

    types, constants, hints = signature(launch)
    t = launch.tile
    source = ASTSource(launch.kernel, types, constants, hints)
    made = triton.compile(source, target=GPUTarget("cuda", case.architecture, 32), options=options(t))
    registers, spilled = resources(made.asm["cubin"])
    way = {"READ": ", of queries", "REVERSE": ", backward"}
    name = launch.kernel.__name__ + "".join(text for flag, text in way.items() if launch.arguments.get(flag))
    return Compiled(
        name,
        **asdict(case),
        tile=[t.queries, t.keys],
        warps=t.warps,
        stages=t.stages,
        registers=registers,
        spilled_bytes=spilled,
        shared_bytes=made.metadata.shared,
    )


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers per thread, and bytes of its stack, where registers are spilled to, as NVIDIA's tool (it comes with Triton) reads them."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(path)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


def compile_all(cases: Iterable[Case], processes: int) -> Iterator[Compiled]:
    """The given cases, several at a time, in their order."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for found in pool.imap(compile_case, cases):
            yield from found
