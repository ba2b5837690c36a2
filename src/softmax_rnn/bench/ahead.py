"""Kernels compiled ahead of time for a card that is not there: registers, spills and shared memory of each.

A call on torch's meta device goes through the same functions as a real one; its launches are recorded instead of run
(``backends.triton.common.recording``), and each is compiled by Triton for the given architecture with the tiles, types and constants that
it would have.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
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
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float64: "*fp64", torch.int32: "*i32",
    torch.bool: "*i1",
}  # fmt: skip


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of one kernel."""

    kernel: str
    case: str
    dtype: str
    width: int
    architecture: int
    tile: list[int]
    warps: int
    stages: int
    registers: int
    spill_bytes: int
    shared_bytes: int

    @property
    def fits(self) -> bool:
        """No register is spilled to memory, and the shared memory is what the card has."""
        return self.spill_bytes == 0 and self.shared_bytes <= CARDS[self.architecture][1]

    def to_dict(self) -> dict[str, Any]:
        """As in the record."""
        return asdict(self)


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


def compile_launch(launch: Any, architecture: int, case: str, dtype: torch.dtype, width: int) -> Compiled:
    """One kernel for one architecture."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types, constants, hints = signature(launch)
    t = launch.tile
    options = {"num_warps": t.warps, "num_stages": t.stages, "enable_fp_fusion": True}
    source = ASTSource(launch.kernel, types, constants, hints)
    made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    registers, spilled = resources(made.asm["cubin"])
    return Compiled(
        launch.kernel.__name__, case, str(dtype).removeprefix("torch."), width, architecture, [t.queries, t.keys], t.warps, t.stages,
        registers, spilled, made.metadata.shared,
    )  # fmt: skip


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
