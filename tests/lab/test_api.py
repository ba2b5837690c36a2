"""The lab from Python: configurations by keyword, runs and sweeps as values."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from work import MODEL

from softmax_rnn import UserError
from softmax_rnn.lab import configure, load_run, recipe, sweep, train


def options(corpus: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        "data": {"source": str(corpus), "length": 16, "test_fraction": 0.1},
        "vocab": 300,
        "overrides": yaml.safe_load(MODEL),
        "run": {"root": str(tmp_path / "runs"), "threads": 1},
        "steps": 4,
    }


def test_options_by_keyword() -> None:
    config = configure("tiny", mechanism="norm", steps=7, data={"length": 32}, **{"train.lr": "1e-4"})
    assert (config.model.mechanism, config.train.steps, config.data.length, config.train.lr) == ("norm", 7, 32, 1e-4)
    assert config.data.source == recipe("tiny").data.source
    assert configure(config, seed=3).seed == 3
    assert configure(config, seed=3).train == config.train
    assert configure(config, data={"length": 8}).data.source == config.data.source
    assert configure() == recipe("laptop")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"source": "x"}, "source may mean data.source or tokenizer.source"),
        ({"stepz": 3}, "There is no option 'stepz': did you mean steps?"),
        ({"steps": "many"}, "train.steps must be a whole number"),
        ({"data": 3}, "data is a group of options"),
        ({"mechanism": "sofmax"}, "did you mean softmax"),
    ],
)
def test_wrong_options(given: dict[str, Any], says: str) -> None:
    with pytest.raises(Exception, match=says):
        configure("tiny", **given)


def test_train_and_load(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train("tiny", mechanism="norm", quiet=True, **options(corpus, tmp_path))
    assert (run.status, run.step, run.option("model.mechanism")) == ("done", 4, "norm")
    assert run.last("test_loss") > 0
    again = load_run(run.folder)
    assert again.rows == run.rows
    assert again.model().config.mechanism == "norm"
    assert again.tokenizer().eos_token is not None
    assert capsys.readouterr().err == ""
    with pytest.raises(UserError, match=f"There is no run .*norm-corpus: did you mean .*{run.folder.name}"):
        load_run(run.folder.parent / "norm-corpus")
    with pytest.raises(UserError, match="There is no run nowhere"):
        load_run("nowhere/at/all")


@pytest.mark.slow
def test_sweep(corpus: Path, tmp_path: Path) -> None:
    runs = sweep({"mechanism": ["softmax", "norm"]}, preset="tiny", jobs=2, **options(corpus, tmp_path))
    assert [(run.option("model.mechanism"), run.status) for run in runs] == [("softmax", "done"), ("norm", "done")]


@pytest.mark.parametrize("first", ["", "import softmax_rnn.lab.train, softmax_rnn.lab.sweep", "import softmax_rnn.cli"])
def test_names_mean_the_same_in_every_order(first: str) -> None:
    code = f"""
{first}
from softmax_rnn.lab import train, sweep
import sys, inspect
assert "mechanism" not in inspect.signature(train).parameters and "base" in inspect.signature(train).parameters
assert "grid" in inspect.signature(sweep).parameters
from softmax_rnn.lab.train import train as first_edition, micro_batch
from softmax_rnn.lab.sweep import read_sweep
assert "config" in inspect.signature(first_edition).parameters
from softmax_rnn.lab import train as again
assert again is train and callable(again)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_functions_are_documented() -> None:
    assert all(map(inspect.getdoc, (train.call, sweep.call, load_run, configure)))


def test_a_run_is_shown_in_a_line(corpus: Path, tmp_path: Path) -> None:
    run = train(preset="tiny", mechanism="norm", quiet=True, **options(corpus, tmp_path))
    assert re.fullmatch(r"<Run \S+: done, step 4, test_loss \d\.\d+>", repr(run))


SCRIPT = """
from softmax_rnn.lab import sweep
print("once")
runs = sweep({{"mechanism": ["softmax", "norm"]}}, preset="tiny", **{options!r})
print([run.status for run in runs])
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_not_run_by_its_workers(corpus: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(options=options(corpus, tmp_path)))
    said = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    assert said == "once\n['done', 'done']\n"


@pytest.mark.slow
def test_a_sweep_that_cannot_run_says_why(tmp_path: Path) -> None:
    wrong = options(tmp_path / "nowhere.txt", tmp_path)
    with pytest.raises(UserError, match=r"was not trained: .*nowhere\.txt"):
        sweep({"mechanism": ["norm"]}, preset="tiny", **wrong)
