"""Packed runs: nothing is lost or rounded, files stay small, runs are added and replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softmax_rnn import cli
from softmax_rnn.errors import UserError
from softmax_rnn.lab import store
from softmax_rnn.lab.config import RunConfig, to_yaml
from softmax_rnn.lab.store import Run, find_runs, pack, read_packed, write_packed

NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"step": st.integers(0, 10**9), "tokens": st.integers(0, 2**53)},
        optional={"train_loss": NUMBERS, "test_loss": NUMBERS, "spikes": st.integers(0, 99), "event": st.just("done")},
    ),
    max_size=8,
)


def make(root: Path, name: str, loss: float, event: str | None = "done", seed: int = 0) -> Path:
    folder = root / f"{name}-{seed}-0123456789"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(RunConfig(name=name, seed=seed)))
    about = {
        "versions": {"torch": "2"},
        "git": None,
        "hardware": {},
        "data": "d",
        "sessions": [{"began": "x", "command": "c"}],
    }
    (folder / "environment.json").write_text(json.dumps(about))
    rows: list[dict[str, Any]] = [
        {"step": 300, "test_loss": loss, "tokens": 9},
        {"step": 300, "event": event, "tokens": 9},
    ]
    text = "".join(json.dumps(row) + "\n" for row in (rows if event else rows[:1]))
    (folder / "metrics.jsonl").write_text(text)
    return folder


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs=st.lists(ROWS, min_size=1, max_size=4))
def test_what_is_read_back_is_what_was_packed(tmp_path: Path, runs: list[list[dict[str, Any]]]) -> None:
    about = {"versions": {"python": "3.11"}, "git": "abc", "seed": 3}
    given_runs = [
        Run(
            tmp_path / f"run-{n}",
            {"seed": n, "model": {"mechanism": "norm", "overrides": {"a": n}}},
            rows,
            packed_environment=about,
        )
        for n, rows in enumerate(runs)
    ]
    write_packed(given_runs, tmp_path / "packed")
    back = read_packed(tmp_path / "packed")
    assert [run.config for run in back] == [run.config for run in given_runs]
    assert [run.environment for run in back] == [about] * len(runs)
    for mine, theirs in zip(back, runs, strict=True):
        assert mine.rows == theirs
        assert [list(row) for row in mine.rows] == [list(row) for row in theirs]  # the same fields, in their order
        assert [type(v) for row in mine.rows for v in row.values()] == [type(v) for row in theirs for v in row.values()]


def test_runs_are_added_and_replaced(tmp_path: Path) -> None:
    make(tmp_path / "first", "norm", 3.1)
    make(tmp_path / "first", "gate", 3.2, event="diverged")
    make(tmp_path / "second", "norm", 3.0)
    make(tmp_path / "second", "softmax", 2.9)
    make(tmp_path / "second", "length", 4.0, event=None)
    assert pack(tmp_path / "first", tmp_path / "out") == (2, 0)
    assert pack(tmp_path / "second", tmp_path / "out") == (3, 1)
    found = {run.folder.name: run for run in find_runs(tmp_path / "out")}
    assert [run.last("test_loss") for run in found.values()] == [3.2, 3.0, 2.9]
    assert found["gate-0-0123456789"].status == "diverged"
    assert "command" not in found["norm-0-0123456789"].environment["sessions"][0]


def test_files_are_split_where_they_would_be_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(6):
        make(tmp_path / "runs", "norm", 3.0 + seed, seed=seed)
    whole = find_runs(tmp_path / "runs")
    monkeypatch.setattr(store, "LIMIT", 1)
    pack(tmp_path / "runs", tmp_path / "out")
    parts = sorted(path.name for path in (tmp_path / "out").glob("metrics*"))
    assert len(parts) == 6
    assert [run.rows for run in read_packed(tmp_path / "out")] == [run.rows for run in whole]
    monkeypatch.setattr(store, "LIMIT", 10**6)
    pack(tmp_path / "runs", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").glob("metrics*")] == ["metrics.parquet"]


@pytest.mark.parametrize("damage", ["runs.json", "environments.json", "metrics.parquet"])
def test_damaged_files_are_one_sentence(tmp_path: Path, damage: str) -> None:
    make(tmp_path / "runs", "norm", 3.0)
    pack(tmp_path / "runs", tmp_path / "out")
    (tmp_path / "out" / damage).write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        find_runs(tmp_path / "out")


@pytest.mark.parametrize(("name", "says"), [("empty", "no run in"), ("nowhere", "is not a folder")])
def test_nothing_to_pack(tmp_path: Path, name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert cli.main(["pack", str(tmp_path / name), str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_list_shows_packed_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "runs", "norm", 3.25)
    assert cli.main(["pack", str(tmp_path / "runs"), str(tmp_path / "out")]) == 0
    assert cli.main(["list", "--runs", str(tmp_path / "out")]) == 0
    assert "3.2500" in capsys.readouterr().out
