"""Grids: here, on SLURM without a SLURM, and the tables they end in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import work
import yaml
from tests import PATIENCE

from softmax_rnn import UserError, cli
from softmax_rnn.lab.config import from_dict, parse, to_yaml
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
        ("grid: {seed: [0, 0]}", "Two runs of the grid are the same"),
        ("grid: {sed: [0]}", "sed"),
        ("grid: {model.mechanism: [softmax, sofmax]}", "did you mean softmax"),
        ("gird: {seed: [0]}", "must have the keys"),
        ("preset: enormous\ngrid: {seed: [0]}", "Unknown preset"),
        ("grid: [", "is not YAML"),
    ],
)
def test_wrong_sweeps(tmp_path: Path, text: str, says: str, refused: Callable[..., str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    assert says in refused("sweep", str(file))
    with pytest.raises(UserError):
        read_sweep(file)


def test_wrong_options(
    tmp_path: Path, corpus: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
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
        assert says in refused("sweep", *argv)
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that answer as SLURM's do: nodes of 2 and 8 cores, and a queue that is the file ``queue``."""
    (tmp_path / "queue").write_text("")
    answers = {
        "sbatch": f"cd {tmp_path}; cat > submitted.sh; [ ! -e refuse ] || {{ cat refuse >&2; exit 1; }}; echo '4711;here'",
        "squeue": f"cat {tmp_path}/queue",
        "sinfo": 'case "$*" in *none*) ;; *) echo 2; echo 8+ ;; esac',
    }
    (tmp_path / "bin").mkdir()
    for tool, does in answers.items():
        (tmp_path / "bin" / tool).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def test_slurm_arrays_are_written_and_submitted(
    cluster: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = sweep_file(cluster, corpus)
    argv = ["--slurm", "--jobs", "2", "--partition", "gpu", "--gpus", "2", "--processes", "2", "--minutes", "90"]
    assert cli.main(["sweep", str(file), *argv, "--setup", "module load cuda"]) == 0
    script = (cluster / "submitted.sh").read_text()
    for line in (
        "#SBATCH --array=0-3%2",
        "#SBATCH --partition=gpu",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --time=90",
        "#SBATCH --signal=USR2@90",
        "#SBATCH --requeue",
        "#SBATCH --job-name=grid",
        "module load cuda",
    ):
        assert f"{line}\n" in script
    assert "-m softmax_rnn train --config" in script
    printed = capsys.readouterr().out
    assert all(f"4711_{i}" in printed for i in range(4))
    place = cluster / "runs" / ".slurm" / "grid-1"
    assert sorted(p.name for p in place.iterdir()) == ["0.yaml", "1.yaml", "2.yaml", "3.yaml", "job.json"]
    configs = [parse(["--config", str(place / f"{i}.yaml")]) for i in range(4)]
    assert [c.folder for c in configs] == [r.folder for r in read_sweep(file)]
    assert {c.run.threads for c in configs} == {1}  # the sweep says so


@pytest.mark.parametrize(
    ("code", "again"), [(0, False), (1, False), (75, True), (128 + signal.SIGUSR2, True), (130, False)]
)
def test_only_the_task_whose_time_is_over_is_queued_again(cluster: Path, corpus: Path, code: int, again: bool) -> None:
    assert cli.main(["sweep", str(sweep_file(cluster, corpus)), "--slurm"]) == 0
    for tool, does in {"srun": f"exit {code}", "scontrol": f'echo "$*" >> {cluster}/asked'}.items():
        (cluster / "bin" / tool).write_text(f"#!/bin/sh\n{does}\n")
        (cluster / "bin" / tool).chmod(0o755)
    task = {"SLURM_JOB_ID": "4711", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"}  # the last one, to SLURM
    done = subprocess.run(["bash", str(cluster / "submitted.sh")], env=os.environ | task, check=False)
    assert done.returncode == code
    asked = cluster / "asked"
    assert (asked.read_text() if asked.exists() else "") == ("requeue 4711_3\n" if again else "")


def test_what_is_queued_is_not_submitted_again(cluster: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = sweep_file(cluster, corpus)
    assert cli.main(["sweep", str(file), "--slurm"]) == 0
    (cluster / "queue").write_text("4711_0\n4711_1\n4711_2\n4711_3\n99_0\n")
    (cluster / "submitted.sh").unlink()
    assert cli.main(["sweep", str(file), "--slurm"]) == 0
    assert capsys.readouterr().out.count("is queued already") == 4
    assert not (cluster / "submitted.sh").exists()
    (cluster / "queue").write_text("4711_1\n")
    assert cli.main(["sweep", str(file), "--slurm"]) == 0
    assert "--array=0-2%1" in (cluster / "submitted.sh").read_text()


@pytest.mark.parametrize(
    ("options", "refusal", "says"),
    [
        (
            ["--partition", "no"],
            "sbatch: error: invalid partition specified: no\nsbatch: error: Batch job submission failed: "
            "Invalid partition name specified\n",
            "SLURM refuses: Batch job submission failed: Invalid partition name specified.",
        ),
        (["--gpus", "3"], "sbatch: error: Invalid generic resource (gres) specification\n", "Invalid generic resource"),
        ([], "", "sbatch ended with code 1"),
        (["--cpus", "9"], None, "need 9 cores, and the largest node has 8"),
        (["--processes", "3", "--cpus", "4"], None, "need 12 cores"),
        (["--partition", "none"], None, "the partition none has no nodes"),
    ],
)
def test_a_refused_submission_is_one_line_and_leaves_nothing(
    cluster: Path, corpus: Path, refused: Callable[..., str], options: list[str], refusal: str | None, says: str
) -> None:
    if refusal is not None:
        (cluster / "refuse").write_text(refusal)
    assert says in refused("sweep", str(sweep_file(cluster, corpus)), "--slurm", *options)
    assert not (cluster / "runs").exists()


@pytest.mark.slow
def test_ctrl_c_while_the_server_of_workers_starts(tmp_path: Path, corpus: Path) -> None:
    # Ctrl-C reaches every process of the terminal, the server as well, which still imports.
    (tmp_path / "ctrl_c.py").write_text("import os, signal\nos.killpg(os.getpgrp(), signal.SIGINT)\n")
    script = "from softmax_rnn import cli; from softmax_rnn.lab import sweep; sweep.IMPORTED = ['ctrl_c']; "
    script += f"raise SystemExit(cli.main(['sweep', {str(sweep_file(tmp_path, corpus))!r}, '--jobs', '1']))"
    found = subprocess.run(
        [sys.executable, "-c", f"import signal; signal.signal(2, signal.default_int_handler); {script}"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=PATIENCE,
    )
    assert found.returncode == 130, found.stderr
    assert "Traceback" not in found.stderr
    assert cli.main(["sweep", str(tmp_path / "grid.yaml"), "--jobs", "2"]) == 0


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
        "test_accuracy",
        "spikes",
        "tokens",
        "folder",
    }
    assert told | {"status", "step", "seconds", "note", "options"} == set(table[0])
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
