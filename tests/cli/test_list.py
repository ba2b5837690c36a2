"""``list --runs``: what differs, sorted, filtered, as JSON; and names that are almost right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from softmax_rnn import UserError, cli
from softmax_rnn.models.folders import load_model, locate

from .runs import a_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for i, (lr, mechanism, loss) in enumerate([("1e-3", "norm", 2.5), ("1e-2", "gate", 2.0), ("1e-2", "norm", 3.0)]):
        a_run(tmp_path / f"run{i}", {"train": {"lr": lr}, "model": {"mechanism": mechanism}, "name": f"n{i}"}, loss)
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str], *argv: str) -> list[list[str]]:
    assert cli.main(["list", "--runs", *argv]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def names(lines: list[list[str]]) -> list[str]:
    return [Path(line[-1]).name for line in lines[1:]]


def test_swept_keys_are_columns(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, first, *_ = listed(capsys, str(runs))
    assert head == [
        "mechanism",
        "source",
        "size",
        "seed",
        "train.lr",
        "status",
        "step",
        "train_loss",
        "test_loss",
        "folder",
    ]
    assert dict(zip(head, first, strict=True))["train.lr"] == "0.001"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--sort", "test_loss"], ["run1", "run0", "run2"]),
        (["--sort", "test_loss", "--reverse"], ["run2", "run0", "run1"]),
        (["--sort", "lr"], ["run0", "run1", "run2"]),
        (["--sort", "mechanism"], ["run1", "run0", "run2"]),
        (["--where", "mechanism=norm"], ["run0", "run2"]),
        (["--where", "mechanism!=norm"], ["run1"]),
        (["--where", "lr=1e-2", "--where", "test_loss<2.5"], ["run1"]),
        (["--where", "train.lr<=0.001"], ["run0"]),
        (["--where", "status=done", "--where", "seed=0"], ["run0", "run1", "run2"]),
    ],
)
def test_sort_and_where(
    runs: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: list[str]
) -> None:
    assert names(listed(capsys, str(runs), *options)) == expected


def test_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--runs", str(runs), "--json", "--where", "mechanism=gate"]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert (only["test_loss"], only["options"]["train.lr"], only["note"]) == (2.0, 0.01, None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--sort", "tset_loss"], "did you mean test_loss?"),
        (["--where", "mechanism"], "--where takes KEY=VALUE"),
        (["--where", "nothing=3"], "No run has 'nothing'"),
    ],
)
def test_wrong_keys(runs: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str) -> None:
    assert cli.main(["list", "--runs", str(runs), *options]) == 2
    assert says in capsys.readouterr().err


def test_options_without_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--json"]) == 2
    assert "add --runs" in capsys.readouterr().err


def test_a_wrong_name_suggests_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(tmp_path / "runs" / "norm-tunes-845a626a08")
    monkeypatch.chdir(tmp_path)
    for name in (
        "runs/norm-tunes",
        "runs/nrom-tunes-845a626a08",
        "./runs/norm-tuned-845a626a08",
        "norm-tunes-845a626a",
    ):
        assert cli.main(["generate", name, "--prompt", "x"]) == 2
        assert "did you mean runs/norm-tunes-845a626a08?" in capsys.readouterr().err, name


def test_a_slip_in_the_name_of_a_run_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_run(tmp_path / "runs" / "norm-tunes-845a626a08")
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr("softmax_rnn.models.folders.check_hub", lambda name, *_: asked.append(name))
    for slip in ("runs/norm-tunes", "runs/norm", "runs/nrom-tuns"):
        with pytest.raises(UserError, match=f"{slip} does not exist: did you mean runs/norm-tunes-845a626a08"):
            locate(slip)
    with pytest.raises(UserError, match=r"runs/quite-different does not exist\."):
        locate("runs/quite-different")
    assert asked == []
    assert locate("owner/norm-tunes") == ("owner/norm-tunes", {})
    assert locate("gpt2") == ("gpt2", {})
    assert asked == ["owner/norm-tunes", "gpt2"]


def test_without_a_network_the_hub_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def unreachable(self: object, name: str, **_: object) -> None:
        asked.append(name)
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", unreachable)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=r"Cannot reach the Hugging Face hub for owner/model \(OSError\): go online, or give"
    ):
        load_model("owner/model")
    assert asked == ["owner/model"]


def test_several_folders_and_one_that_is_missing(
    runs: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    assert names(listed(capsys, str(runs / "run0"), str(runs / "run2"))) == ["run0", "run2"]
    assert "There is no folder nowhere." in refused("list", "--runs", "nowhere")
    assert "There is no folder nowhere." in refused("list", "--runs", str(runs), "nowhere")
