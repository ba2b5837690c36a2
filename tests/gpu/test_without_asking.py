"""Nobody who does not ask meets Triton. (The kernels' numbers: ``make kernels``, which runs ``numbers.py`` in Triton's interpreter.)"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

import softmax_rnn as sr


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
