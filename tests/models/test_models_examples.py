"""The examples run, and show what they say they show."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    def call(name, *options):
        monkeypatch.setattr(sys, "argv", [name, *options])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("mechanism", ["norm", "in_out_gate", "taylor2"])
def test_train_and_generate(run, mechanism):
    out = run("train_and_generate.py", "--steps", "20", "--mechanism", mechanism)
    losses = [float(line.split()[-1]) for line in out.splitlines() if line.startswith("step")]
    assert losses[-1] < losses[0] - 1
    assert "'the quick " in out


@pytest.mark.parametrize("mechanism", ["norm", "taylor2"])
def test_own_module(run, mechanism):
    out = run("own_module.py", "--steps", "40", "--mechanism", mechanism)
    losses = [float(line.split()[-1]) for line in out.splitlines() if line.startswith("step")]
    assert losses[-1] < 0.5 < losses[0]
    assert float(out.split()[-1]) < 1e-5  # in two pieces


def test_patch_a_model(run):
    losses = {
        line.split(" loss ")[0].strip(): line.split(" loss ")[1].split()[0]
        for line in run("patch_a_model.py").splitlines()
        if " loss " in line
    }
    assert losses["its own"] == losses["softmax"] == losses["unpatched"] != losses["norm"]


def test_stream_constant_state(run):
    sizes = {
        line.split()[0]: line.replace(",", "").split()[1:5] for line in run("stream_constant_state.py").splitlines()[1:]
    }
    assert len(set(sizes["softmax"])) == 4
    assert len(set(sizes["taylor2"])) == len(set(sizes["linear_elu"])) == 1


def test_snippets_of_the_documentation(tmp_path, monkeypatch):
    page = (EXAMPLES.parent / "docs" / "models.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(snippets) == 5
    monkeypatch.chdir(tmp_path)
    names = {}
    for snippet in snippets:
        exec(snippet, names)
