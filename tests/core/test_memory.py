"""O(T) memory: no T x T tensor is ever kept, measured as the peak of a process of its own."""

import subprocess
import sys

import pytest

CHILD = """
import sys, torch, softmax_rnn as sr

def peak():
    with open("/proc/self/status") as f:
        return int(next(line for line in f if line.startswith("VmHWM")).split()[1]) / 1024

def run(T):
    q, k, v = (torch.randn(1, 1, T, 16, requires_grad=True) for _ in range(3))
    keep = torch.ones(1, T, dtype=torch.bool) if masked else None
    ids = torch.arange(T)[None] // 5000 if masked else None
    out = sr.attention(q, k, v, name, form=form, key_padding_mask=keep, segment_ids=ids)
    out.sum().backward()

name, form, masked = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
run(300)
before = peak()
run(16384)
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form", "masked"),
    [("norm", "parallel", False), ("softmax", "parallel", True), ("length", "parallel", False), ("length", "parallel", True),
     ("taylor4", "parallel", False), ("taylor2", "chunked", True), ("linear_elu", "chunked", False)],
)  # fmt: skip
def test_memory_is_linear(name, form, masked):
    command = [sys.executable, "-c", CHILD, name, form, str(masked)]
    grown = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # The T x T scores alone would be 1,024 MB; the inputs, their gradients and the tiles are some tens.
    assert grown < 200, f"{grown:.0f} MB"
