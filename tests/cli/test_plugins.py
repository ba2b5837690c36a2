"""A mechanism of the user's own, from a module beside the data, in every command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from softmax_rnn import cli

MODULE = """
from softmax_rnn import Mechanism, Sum, Taylor
from softmax_rnn.slots.presets import register

register("plugged", Mechanism(Taylor(2), Sum(eps=1.0)))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from softmax_rnn.slots.presets import REGISTERED as PRESETS

    (tmp_path / "my_module.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("SOFTMAX_RNN_PLUGINS", "")
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    monkeypatch.setitem(PRESETS, "plugged", None)
    del PRESETS["plugged"]
    return tmp_path


def test_names_of_a_plugin(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["train", "--preset", "tiny", "--model.mechanism", "plugged", "--print-config"]
    assert cli.main(argv) == 2
    assert "Unknown mechanism 'plugged'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main([*argv, "--plugins", "my_module"])
    printed = capsys.readouterr().out
    assert "plugins:\n- my_module\n" in printed
    (place / "run.yaml").write_text(printed)
    from softmax_rnn.lab.config import parse

    assert parse(["--config", "run.yaml"]).model.value().denominator.eps == 1.0


def test_every_command_takes_plugins(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--plugins", "my_module"]) == 0
    assert "plugged" in capsys.readouterr().out
    (place / "grid.yaml").write_text("preset: tiny\ngrid: {model.mechanism: [plugged, norm]}\n")
    assert cli.main(["sweep", "grid.yaml", "--dry-run", "--plugins=my_module"]) == 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere_at_all", "cannot be imported: ModuleNotFoundError"),
        ("broken", "ZeroDivisionError"),
        ("a-b", "takes names of Python"),
    ],
)
def test_plugins_that_do_not_work(place: Path, refused: Callable[..., str], name: str, says: str) -> None:
    for argv in (["list"], ["train", "--print-config"]):
        assert says in refused(*argv, "--plugins", name)


@pytest.mark.slow
def test_a_saved_model_names_the_class_and_imports_nothing_unasked(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "my_module.py").write_text(
        MODULE + "\nclass Mine(Sum): ...\nregister('own', Mechanism(Taylor(2), Mine()))\n"
    )
    (place / "text.txt").write_text("once upon a time there was a text. " * 200)
    small = "{hidden_size: 16, intermediate_size: 16, num_attention_heads: 2, num_hidden_layers: 1}"
    argv = [
        "train",
        "--preset",
        "tiny",
        "--plugins",
        "my_module",
        "--model.mechanism",
        "own",
        "--model.overrides",
        small,
    ]
    argv += ["--data.source", "text.txt", "--data.length", "16", "--tokenizer.vocab", "280", "--train.steps", "2"]
    assert cli.main([*argv, "--run.folder", "run"]) == 0
    saved = json.loads(next(place.glob("run/checkpoint-*/config.json")).read_text())
    assert saved["mechanism"]["denominator"]["type"] == "my_module.Mine"
    command = str(Path(sys.executable).with_name("softmax-rnn"))  # where the working folder is not on the path
    argv = [command, "generate", "run", "--prompt", "once", "--max-new-tokens", "2"]
    monkeypatch.setenv("SOFTMAX_RNN_PLUGINS", "")  # what train was given is meant for processes that it starts
    said = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert said.returncode == 2
    assert "--plugins my_module" in said.stderr  # a folder from elsewhere must not choose what is imported from here
    assert subprocess.run([*argv, "--plugins", "my_module"], check=True, capture_output=True, text=True).stdout


def test_a_pattern_that_the_shell_has_expanded(place: Path, refused: Callable[..., str]) -> None:
    assert "in quotes" in refused("train", "--data.source", "my_module.py", "broken.py")
