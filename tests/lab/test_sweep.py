"""Grids: here, on SLURM without a SLURM, and the tables they end in."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import work
import yaml

from softmax_rnn import UserError, cli
from softmax_rnn.lab.config import from_dict, to_yaml
from softmax_rnn.lab.store import find_runs, runs_table, tidy
from softmax_rnn.lab.sweep import read_sweep


def sweep_file(tmp_path: Path, corpus: Path, **grid: list) -> Path:
    content = {
        "preset": "tiny",
        "base": {
            "data": {"source": str(corpus), "length": 16, "test_fraction": 0.1},
            "tokenizer.vocab": 300,
            "model": {"overrides": yaml.safe_load(work.MODEL)},
            "run": {"root": str(tmp_path / "runs"), "save_every": 5, "threads": 1},
        },
        "grid": grid or {"model.mechanism": ["softmax", "norm"], "seed": [0, 1]},
    }
    file = tmp_path / "grid.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def test_a_grid_is_every_combination(tmp_path: Path, corpus: Path) -> None:
    runs = read_sweep(sweep_file(tmp_path, corpus))
    assert [(r.model.mechanism, r.seed) for r in runs] == [("softmax", 0), ("softmax", 1), ("norm", 0), ("norm", 1)]
    assert {r.tokenizer.vocab for r in runs} == {300}
    assert len({r.folder for r in runs}) == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("grid: {seed: [0, 0]}", "two runs of the grid are the same"),
        ("grid: {sed: [0]}", "sed"),
        ("grid: {model.mechanism: [softmax, sofmax]}", "did you mean softmax"),
        ("gird: {seed: [0]}", "must have the keys"),
        ("preset: enormous\ngrid: {seed: [0]}", "Unknown preset"),
        ("grid: [", "is not YAML"),
    ],
)
def test_wrong_sweeps(tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    assert cli.main(["sweep", str(file)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    with pytest.raises(UserError):
        read_sweep(file)


def test_wrong_options(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    file = str(sweep_file(tmp_path, corpus))
    for argv, says in (
        ([], "required: file"),
        ([file, "--jobs", "0"], "--jobs: must be a whole number from 1"),
        ([file, "--nope"], "--nope"),
        ([file, "--slurm"], "--slurm needs sbatch"),
        (["none.yaml"], "Cannot read none.yaml"),
    ):
        assert cli.main(["sweep", *argv]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_slurm_arrays_are_written_and_submitted(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    for tool, does in (
        ("sbatch", f'cp "$1" {tmp_path}/submitted.sh; echo Submitted batch job 4711'),
        ("srun", "true"),
        ("sacct", "true"),
    ):
        (tmp_path / "bin" / tool).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    file = sweep_file(tmp_path, corpus)
    argv = ["--slurm", "--jobs", "2", "--partition", "gpu", "--gpus", "2", "--processes", "2", "--minutes", "90"]
    assert cli.main(["sweep", str(file), *argv, "--setup", "module load cuda"]) == 0
    script = (tmp_path / "submitted.sh").read_text()
    for line in (
        "#SBATCH --array=0-3%2",
        "#SBATCH --partition=gpu",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --time=90",
        "#SBATCH --job-name=grid",
        "module load cuda",
    ):
        assert line in script
    assert "submitit.core._submit" in script
    printed = capsys.readouterr().out
    assert all(f"4711_{i}" in printed for i in range(4))
    assert len(list((tmp_path / "runs" / ".submitit").glob("4711_*/*_submitted.pkl"))) == 4


@pytest.mark.slow
def test_a_sweep_skips_goes_on_and_finishes(tmp_path: Path, corpus: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = sweep_file(tmp_path, corpus, **{"model.mechanism": ["softmax", "norm", "gate"]})
    done, half, _ = read_sweep(file)
    for config, faults, code in ((done, {}, 0), (half, {"interrupt": 7}, 130)):
        (tmp_path / "one.yaml").write_text(to_yaml(config))
        assert work.Child(["--config", str(tmp_path / "one.yaml")], tmp_path / "log", faults=faults).wait() == code
    before = (done.folder / "metrics.jsonl").read_bytes()
    assert cli.main(["sweep", str(file), "--jobs", "2"]) == 0
    assert (done.folder / "metrics.jsonl").read_bytes() == before
    sessions = json.loads((half.folder / "environment.json").read_text())["sessions"]
    assert [s["from_step"] for s in sessions] == [0, 7]
    table = runs_table(tmp_path / "runs")
    assert [(r["mechanism"], r["status"], r["step"], r["steps"]) for r in table] == [
        ("gate", "done", 20, 20),
        ("norm", "done", 20, 20),
        ("softmax", "done", 20, 20),
    ]
    told = {
        "run",
        "mechanism",
        "source",
        "size",
        "seed",
        "steps",
        "train_loss",
        "test_loss",
        "spikes",
        "tokens",
        "folder",
    }
    assert told | {"status", "step", "seconds", "note"} == set(table[0])
    capfd.readouterr()
    assert cli.main(["sweep", str(file), "--jobs", "2"]) == 0  # nothing left: the table, at once
    assert capfd.readouterr().err.count("done") == 3


def test_tables_are_read_from_text_alone(tmp_path: Path) -> None:
    assert runs_table(tmp_path / "nowhere") == []
    run = tmp_path / "study" / "norm-x-123"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(to_yaml(from_dict({"model": {"mechanism": "norm"}}, "tiny")))
    assert runs_table(tmp_path)[0]["status"] == "unfinished"
    rows = [
        {"step": 2, "train_loss": 3.0, "spikes": 1, "tokens": 8, "seconds": 0.1},
        {"step": 4, "test_loss": 2.5, "tokens": 16, "seconds": 0.2},
        {"step": 4, "event": "diverged", "tokens": 16, "seconds": 0.2},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (only,) = runs_table(tmp_path)
    assert (only["status"], only["test_loss"], only["train_loss"], only["spikes"]) == ("diverged", 2.5, 3.0, 1)
    long = tidy(tmp_path)
    assert {"run": "norm-x-123", "mechanism": "norm", "step": 4, "metric": "test_loss", "value": 2.5}.items() <= long[
        3
    ].items()
    assert len(find_runs(run)) == 1


def test_the_store_needs_no_torch() -> None:
    code = "import sys, softmax_rnn.lab.store; sys.exit('torch' in sys.modules)"
    assert subprocess.run([work.sys.executable, "-c", code], check=False).returncode == 0
