"""``bench gpu``: what it says without a card, a few kernels compiled for one that is not there, and all of it where there is one."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from softmax_rnn.bench import gpu
from softmax_rnn.cli import main

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results/gpu/compile.json"
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: make installs it")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@no_gpu
def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "gpu"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("softmax-rnn bench: Nothing can be measured here, because ")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("primitive", ["softmax", "scan"])
def test_kernels_compile_for_a_card_that_is_not_there(primitive):
    from softmax_rnn.bench.ahead import Case, compile_launch, launches

    case = Case(primitive, primitive == "scan", "bfloat16", 16, 80)
    for launch in launches(case)[:2]:
        made = compile_launch(launch, case)
        assert made.fits, made


def test_the_record_has_everything_that_is_claimed():
    from softmax_rnn.bench.ahead import Case, Compiled, claimed

    record = json.loads(RECORD.read_text())
    kernels = [Compiled(**x) for x in record["kernels"]]
    assert [x for x in kernels if not x.fits] == []
    there = {Case(x.primitive, x.masks, x.dtype, x.width, x.architecture) for x in kernels}
    assert there == set(claimed())
    assert "not run" in record["environment"]["what"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card; there is none here")
def test_on_the_card():
    assert [x for x in gpu.correct(quick=False) if not x["ok"]] == []
