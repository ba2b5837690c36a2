"""The kernels in Triton's interpreter, in processes of their own (see ``numbers.py``); and that nobody who does not ask meets Triton."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import softmax_rnn as sr

HERE = Path(__file__).parent
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: make installs it")


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("file", ["numbers.py"])
def test_numbers(file):
    command = [sys.executable, "-m", "pytest", str(HERE / file), "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    root = HERE.parents[1]
    run = subprocess.run(command, cwd=root, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


def test_without_a_gpu_it_says_so():
    q = torch.randn(1, 1, 3, 4)
    for name in ("length", "fox"):
        tensors = {"log_decay": torch.zeros(1, 1, 3)} if name == "fox" else {}
        with pytest.raises(sr.MechanismError, match="for NVIDIA cards, and the tensors are on cpu"):
            sr.attention(q, q, q, name, form="parallel", backend="triton", **tensors)


def test_explain_says_why_it_is_not_used():
    said = str(sr.explain("taylor2", 1, 2, 64, 16, 16))
    assert "triton is not used: " in said
    assert (
        "there is no GPU" if find_spec("triton") else "Triton is not installed"
    ) in said or torch.cuda.is_available()
    assert "heads have 16 and 256 channels" in str(sr.explain("softmax", 1, 2, 64, 16, 256))


def test_the_core_does_not_import_triton():
    code = "import sys, torch; before = set(sys.modules); import softmax_rnn as sr; q = torch.ones(1, 1, 2, 2); sr.attention(q, q, q)"
    code += "; sys.exit(any(m.split('.')[0] == 'triton' for m in set(sys.modules) - before))"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "TRITON_INTERPRET": ""}).returncode == 0
