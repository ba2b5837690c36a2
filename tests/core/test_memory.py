"""O(T) memory: no T x T tensor is ever kept, measured as the peak of a process of its own."""

import json
import subprocess
import sys

import pytest

# Each case in a fork of a process that has imported torch and done nothing else.
CHILD = """
import json, os, sys, torch, softmax_rnn as sr

sr.attention
torch.set_num_threads(1)

def peak():
    with open("/proc/self/status") as f:
        return int(next(line for line in f if line.startswith("VmHWM")).split()[1]) / 1024

def run(T, name, form, masked):
    q, k, v = (torch.randn(1, 1, T, 16, requires_grad=True) for _ in range(3))
    keep = torch.ones(1, T, dtype=torch.bool) if masked else None
    ids = torch.arange(T)[None] // 5000 if masked else None
    out = sr.attention(q, k, v, name, form=form, key_padding_mask=keep, segment_ids=ids)
    out.sum().backward()

for case in json.loads(sys.argv[1]):
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            sys.exit(1)
        continue
    run(300, *case)
    before = peak()
    run(16384, *case)
    print(peak() - before, flush=True)
    os._exit(0)
"""
CASES = [("norm", "parallel", False), ("softmax", "parallel", True), ("length", "parallel", False), ("length", "parallel", True),
         ("taylor4", "parallel", False), ("taylor2", "chunked", True), ("linear_elu", "chunked", False)]  # fmt: skip


@pytest.fixture(scope="module")
def grown():
    """MB by case."""
    command = [sys.executable, "-c", CHILD, json.dumps(CASES)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(zip(CASES, map(float, said.split()), strict=True))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_memory_is_linear(case, grown):
    # The T x T scores alone would be 1,024 MB; the inputs, their gradients and the tiles are some tens.
    assert grown[case] < 200
