"""What a process does about its machine before torch computes."""

import os
import platform
import subprocess
import sys

import pytest

from softmax_rnn import machine
from softmax_rnn.machine import PRODUCT, keep_memory, mend_bfloat16


def test_freed_memory_is_kept(monkeypatch):
    calls = []

    class Library:
        def __init__(self, name): ...

        def mallopt(self, what, value):
            calls.append((what, value))
            return 1

    monkeypatch.setattr(machine.ctypes, "CDLL", Library)
    assert keep_memory() is True
    assert calls == [
        (-4, 0),
        (-1, 2**31 - 1),
        (-2, 2**26),
    ]  # nothing by mmap, when to give back, what to ask for beyond


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_glibc_takes_these_numbers():
    code = "from softmax_rnn.machine import keep_memory; raise SystemExit(not keep_memory())"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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


def test_a_model_in_bfloat16_is_opened_with_care(tmp_path, monkeypatch):
    from softmax_rnn.models import SoftmaxRnnConfig, SoftmaxRnnForCausalLM, load_model

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = SoftmaxRnnForCausalLM(SoftmaxRnnConfig(vocab_size=20, **sizes))
    model.save_pretrained(tmp_path / "float32")
    model.bfloat16().save_pretrained(tmp_path / "bfloat16")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(machine, "_announces_amx", lambda: True)
    monkeypatch.setattr(machine, "PRODUCT", "import os; os.abort()")
    for name in ("float32", "bfloat16"):
        load_model(tmp_path / name)
        assert ("ONEDNN_MAX_CPU_ISA" in os.environ) is (name == "bfloat16")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
