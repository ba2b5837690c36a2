"""What a process should know about the machine it runs on, before torch computes in it.

keep_memory          freed memory stays with the process: large tensors of a training step come back at the same size in every step
mend_bfloat16        where a processor announces matrix instructions that then crash, they are left alone
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of glibc's malloc.h

PRODUCT = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


def keep_memory() -> bool:
    """Keep what is freed; False where the C library is not glibc.

    Otherwise large tensors, such as logits, are given back to the system when they are freed, and every page of the next one is
    fetched anew: a tenth to a fifth of a step of a small model on a CPU, and a third of linear attention over long sequences.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, 2**31 - 1) and mallopt(M_TOP_PAD, 2**26))


def mend_bfloat16() -> bool:
    """Call it before the first product in bfloat16; True if the processor's AMX units were switched off for this process.

    Some virtual machines announce AMX and then stop a program that uses it (SIGILL), as torch does for every product in
    bfloat16. A process of its own tries one.
    """
    if "ONEDNN_MAX_CPU_ISA" in os.environ or not _announces_amx():
        return False
    tried = subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True, check=False)
    if tried.returncode >= 0:
        return False
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"  # oneDNN reads it when it is first used
    return True


def _announces_amx() -> bool:
    try:
        return " amx_bf16 " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
