"""``softmax-rnn reproduce`` from training to report, with real processes: interrupted, killed, gone on with, out of disk."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from softmax_rnn import cli
from softmax_rnn.paper.figures import FIRST as MECHANISMS
from softmax_rnn.paper.scales import SCALES, Cell

from . import driver
from .synthetic import write_run

DEADLINE = 600  # seconds, for a machine that is busy
RUNS = len(MECHANISMS) + 2  # and recall, at two learning rates


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Text with something to learn, in several documents."""
    folder, choose = tmp_path / "text", random.Random(0)
    folder.mkdir()
    words = ["alpha", "beta", "gamma", "delta", "epsilon"]
    for number in range(40):
        (folder / f"{number}.txt").write_text(" ".join(choose.choice(words) for _ in range(200)))
    return folder


class Reproduction:
    """The command in a process group of its own."""

    def __init__(self, corpus: Path, out: Path) -> None:
        command = [sys.executable, driver.__file__, str(corpus), "reproduce", "quick", "--out", str(out), "--jobs", "2"]
        environment = os.environ | {"SOFTMAX_RNN_CACHE": str(corpus.parent / "cache"), "OMP_NUM_THREADS": "1"}
        self.out = out
        self.log = corpus.parent / "log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def wait_for(self, pattern: str, many: int = 1) -> None:
        """Until so many files match."""
        end = time.monotonic() + DEADLINE
        while len(list(self.out.glob(pattern))) < many:
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < end, self.text()
            time.sleep(0.02)  # polls another process; nothing rests on its length

    def wait(self) -> int:
        return self.process.wait(DEADLINE)

    def kill_all(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE)

    def text(self) -> str:
        return self.log.read_text()


def finished(out: Path) -> dict[str, bytes]:
    """Metrics of the runs that are done."""
    files = {file.parent.name: file.read_bytes() for file in out.glob("runs/*/metrics.jsonl")}
    return {name: content for name, content in files.items() if b'"event": "done"' in content}


@pytest.mark.slow
def test_interrupted_killed_and_completed(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "out"
    first = Reproduction(corpus, out)
    first.wait_for("runs/*/checkpoint-20")
    os.killpg(first.process.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    assert first.wait() == 130, first.text()
    assert "The same command continues." in first.text()
    after_first = finished(out)
    assert not (out / "report").exists()

    second = Reproduction(corpus, out)
    texts = [name for name in after_first if "task" not in name]
    second.wait_for("runs/*/checkpoint-20", len(texts) + 1)
    second.kill_all()
    after_second = finished(out)

    third = Reproduction(corpus, out)
    assert third.wait() == 0, third.text()
    done = finished(out)
    assert len(done) == RUNS
    for before in (after_first, after_second):  # what was done is left alone
        assert all(done[name] == content for name, content in before.items())

    text = third.text()
    assert f"{RUNS} of {RUNS} runs done" in text
    assert "which value came with a key?" in text
    assert "softmax            " in text  # a bar
    assert "inconclusive" in text  # one seed has no interval
    assert "The report:" in text
    summary = json.loads((out / "summary.json").read_text())
    assert {run["status"] for run in summary["runs"]} == {"done"}
    (bar,) = summary["bars"]
    assert bar["label"] == "softmax"
    assert 'id="recall"' in (out / "report/index.html").read_text()
    taken = summary["example"]
    assert len(taken["tokens"]) == len(taken["scores"]) == taken["query"] + 1
    assert (out / "report/index.html").exists()
    assert (out / "figures/quick.svg").exists()


def test_no_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 5 * 2**20})())
    assert cli.main(["reproduce", "fig2", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "30 runs need about" in error
    assert "5 MB are free: make room." in error
    assert not (tmp_path / "out").exists()


def test_one_folder_one_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text('{"scale": "cpu", "seeds": 3}')
    assert cli.main(["reproduce", "quick", "--out", str(tmp_path)]) == 2
    assert "holds the scale cpu" in capsys.readouterr().err
    (tmp_path / "plan.json").write_text("{")
    assert cli.main(["reproduce", "fig2", "--out", str(tmp_path)]) == 2
    assert "plan.json is damaged" in capsys.readouterr().err


def test_a_damaged_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path, SCALES["cpu"], Cell("softmax", "stdlib"), 3.0)
    (folder / "config.yaml").write_text("name: [")
    assert cli.main(["reproduce", "fig2", "--out", str(tmp_path), "--dry-run"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("softmax on stdlib"))
    assert "damaged" in line  # and trained again, which takes what its last checkpoint holds


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["reproduce", "fig2", "--out", str(tmp_path / "file" / "out")]) == 2
    assert "Cannot write to" in capsys.readouterr().err
