"""What a process does about its machine before torch computes."""

import os
import subprocess
import sys

import pytest

from softmax_rnn import machine
from softmax_rnn.machine import PRODUCT, keep_memory, mend_bfloat16

FAULTS = """
import resource, torch
from softmax_rnn.machine import keep_memory
if {keep}:
    keep_memory()
torch.set_num_threads(1)
def step():
    [torch.ones(7 * 2**20) for _ in range(4)]  # 28 MB each, and all of them freed at once
for _ in range(4):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep):
    code = FAULTS.format(keep=keep)
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_freed_memory_is_used_again():
    assert faults(keep=True) < faults(keep=False) / 10


def test_another_c_library_is_left_alone(monkeypatch):
    class Other:
        def __init__(self, name): ...

    monkeypatch.setattr(machine.ctypes, "CDLL", Other)
    assert keep_memory() is False


def test_a_product_in_bfloat16_can_be_computed():
    assert subprocess.run([sys.executable, "-c", PRODUCT], check=False).returncode == 0  # conftest has mended it


@pytest.mark.parametrize("ends", [0, -4])
def test_amx_that_crashes_is_switched_off(ends, monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(machine, "_announces_amx", lambda: True)
    monkeypatch.setattr(machine, "PRODUCT", f"import os; os.kill(os.getpid(), {-ends})" if ends else "pass")
    assert mend_bfloat16() is (ends < 0)
    assert ("ONEDNN_MAX_CPU_ISA" in os.environ) is (ends < 0)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)


def test_nothing_is_tried_where_nothing_is_announced(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(machine, "_announces_amx", lambda: False)
    monkeypatch.setattr(machine, "PRODUCT", "import os; os.abort()")
    assert mend_bfloat16() is False
