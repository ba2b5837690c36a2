"""Sweeps on a real SLURM: submitted, preempted, stopped by the time limit, and yet the numbers of undisturbed runs.

python tools/slurm.py            starts a one-node cluster on loopback, does all of it, prints a line per step (about five minutes)

Exits with 0 if everything is right, and also, with the reason, where no cluster can be started.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from cluster import Cluster

from softmax_rnn.lab.config import to_yaml
from softmax_rnn.lab.recorder import TIMINGS, read
from softmax_rnn.lab.sweep import grid_runs

PATIENCE = 900  # seconds until something that must happen counts as failed
SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}


def sweep(root: Path, **options: list[Any]) -> dict[str, Any]:
    """Runs that would take days, and save only when told to."""
    return {
        "preset": "tiny",
        "base": {
            "model.overrides": SIZE,
            "data": {"source": "tunes"},
            "train": {"steps": 10**6, "eval_every": 50, "log_every": 5},
            "run": {"root": str(root), "save_every": 10**9, "threads": 1},
        },
        "grid": options,
    }


def command(*argv: str) -> subprocess.CompletedProcess[str]:
    """``softmax-rnn`` as a user runs it."""
    return subprocess.run([sys.executable, "-m", "softmax_rnn", *argv], capture_output=True, text=True, check=False)


def until(condition: Callable[[], Any], what: str, meanwhile: Callable[[], Any] = lambda: None) -> Any:
    """Wait for something that must happen."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        if time.monotonic() > end:
            raise SystemExit(f"This did not happen within {PATIENCE} seconds: {what}\n{seen()}")
        meanwhile()
        time.sleep(0.5)
    return found


def seen() -> str:
    """What the cluster says about itself, and the ends of the runs' logs: printed when something does not happen."""
    asked = [["scontrol", "show", "job"], ["sinfo", "--list-reasons"], ["sinfo", "--long", "--Node"]]
    said = [subprocess.run(a, capture_output=True, text=True, check=False, timeout=60).stdout for a in asked]
    place = Path(os.environ["SLURM_CONF"]).parent
    logs = [*place.parent.glob("*/.slurm/*/*.log"), *place.glob("*.log")]
    return "\n".join([*said, *(f"== {log}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)])


def rows(folder: Path) -> list[dict[str, Any]]:
    """Metrics without what depends on the clock."""
    return [{k: v for k, v in row.items() if k not in TIMINGS} for row in read(folder / "metrics.jsonl")]


def sessions(folder: Path) -> list[int]:
    """The steps at which the sessions of a run began."""
    return [s["from_step"] for s in json.loads((folder / "environment.json").read_text())["sessions"]]


def _reached(folder: Path) -> int:
    """The step of the newest row."""
    return int(found[-1]["step"]) if (found := rows(folder)) else 0


def check(truth: bool, what: str, shown: object = "") -> None:
    """One line per step; the first that is wrong ends everything."""
    print(f"{'ok     ' if truth else 'FAILED '} {what}", flush=True)
    if not truth:
        raise SystemExit(f"{shown}")


class Steps:
    """The story, in order; ``place`` is a scratch folder."""

    def __init__(self, cluster: Cluster, place: Path) -> None:
        self.cluster, self.place = cluster, place

    def submit(
        self, name: str, content: dict[str, Any], *options: str
    ) -> tuple[list[Path], subprocess.CompletedProcess[str]]:
        """Submit a sweep; the folders of its runs, and what the command said."""
        file = self.place / f"{name}.yaml"
        file.write_text(yaml.safe_dump(content))
        return [run.folder for run in grid_runs(content)], command("sweep", str(file), "--slurm", *options)

    def release(self) -> None:
        """A task that is queued again waits two minutes by default; here seconds are enough. (Not none: a node refuses what comes
        in the very second in which it was told to end the job, and SLURM then gives the job up.)
        """
        waiting = self.cluster.ask("squeue", "--noheader", "--array", "--states=PENDING", "--format=%A %S")
        for job, start in (line.split() for line in waiting.splitlines()):
            if start != "N/A" and datetime.fromisoformat(start) > datetime.now() + timedelta(seconds=10):
                self.cluster.ask("scontrol", "update", f"jobid={job}", "StartTime=now+4seconds")

    def refusals(self) -> None:
        """What SLURM rejects is one line, and nothing is left behind."""
        content = sweep(self.place / "refused", seed=[0])
        for options, says in (
            (["--partition", "nowhere"], "nowhere"),
            (["--gpus", "2"], "Invalid generic resource"),
            (["--cpus", "4096"], "the largest node has"),
            (["--cpus", "0"], "--cpus"),
            (["--minutes", "0"], "--minutes"),
            (["--account", "x" * 9, "--partition", "nowhere"], "nowhere"),
        ):
            _, said = self.submit("refused", content, *options)
            good = said.returncode == 2 and says in said.stderr and said.stderr.count("\n") == 1
            check(good and not (self.place / "refused").exists(), f"{' '.join(options)} is refused in one line", said)

    def undisturbed(self, content: dict[str, Any], steps: list[int]) -> list[list[dict[str, Any]]]:
        """The rows of the same runs on this machine without a scheduler, up to these steps."""
        content = copy.deepcopy(content)
        content["base"]["run"]["root"] = str(self.place / "undisturbed")
        found = []
        for run, last in zip(grid_runs(content), steps, strict=True):
            file = self.place / "undisturbed.yaml"
            file.write_text(to_yaml(run))
            child = subprocess.Popen(
                [sys.executable, "-m", "softmax_rnn", "train", "--config", str(file)], stderr=subprocess.DEVNULL
            )
            until(lambda folder=run.folder, last=last: _reached(folder) > last, "the undisturbed run comes as far")
            child.send_signal(signal.SIGTERM)
            child.wait(PATIENCE)
            found.append(rows(run.folder))
        return found

    def disturbed(self) -> None:
        """Two runs that are preempted, then meet the time limit: their metrics are those of undisturbed runs."""
        content = sweep(self.place / "runs", **{"model.mechanism": ["norm", "gate"]})
        options = ["--jobs", "2", "--cpus", "1", "--minutes", "1"]
        folders, said = self.submit("grid", content, *options)
        check(said.returncode == 0, "two runs submitted", said)
        _, again = self.submit("grid", content, *options)
        check(again.stdout.count("is queued already") == 2, "the same command submits nothing twice", again)
        until(lambda: all(_reached(f) for f in folders), "training began")
        urgent = self.cluster.ask(
            "sbatch", "--parsable", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap=true"
        ).strip()
        until(lambda: all(list(f.glob("checkpoint-*")) for f in folders), "preempted runs saved")
        queue = ("squeue", "--noheader", "--format=%A")
        until(lambda: urgent not in self.cluster.ask(*queue).split(), "the urgent job ran")
        until(lambda: all(len(sessions(f)) >= 2 for f in folders), "the runs continue", self.release)
        check(
            all(sessions(f)[1] > 0 for f in folders), "preempted, saved, and continued", [sessions(f) for f in folders]
        )
        until(lambda: all(len(sessions(f)) >= 3 for f in folders), "the runs meet the time limit", self.release)
        until(lambda: all(_reached(f) > sessions(f)[-1] for f in folders), "the runs continue", self.release)
        self.cluster.ask("scancel", said.stdout.split("_")[0])
        until(lambda: not self.cluster.ask(*queue).split(), "the jobs are cancelled")
        begun = [sessions(f) for f in folders]
        more = all(a < b for s in begun for a, b in itertools.pairwise(s))
        check(more, f"at its time limit each saved and continued further (sessions began at steps {begun})", begun)
        mine = [rows(f) for f in folders]
        expected = self.undisturbed(content, [r[-1]["step"] for r in mine])
        same = [a == b[: len(a)] for a, b in zip(mine, expected, strict=True)]
        check(all(same), f"the metrics, {[len(r) for r in mine]} rows, are those of undisturbed runs", same)

    def two_processes(self) -> None:
        """One run over two processes, told to save by the signal that SLURM sends before a time limit."""
        (folder,), said = self.submit("two", sweep(self.place / "two", seed=[1]), "--processes", "2", "--cpus", "1")
        check(said.returncode == 0, "a run over two processes submitted", said)
        until(lambda: _reached(folder), "training began")
        job = said.stdout.split("_")[0]
        self.cluster.ask("scancel", "--signal=USR2", job)
        until(lambda: list(folder.glob("checkpoint-*")), "both processes agreed to save")
        until(lambda: len(sessions(folder)) >= 2, "it is queued again", self.release)
        until(lambda: _reached(folder) > sessions(folder)[-1], "it continues", self.release)
        self.cluster.ask("scancel", job)
        check(sessions(folder)[1] > 0, "it was queued again and continued", sessions(folder))

    def ends(self) -> None:
        """A run that is done is a completed job; one that fails or diverges is a failed job, and its log says why."""
        done = sweep(self.place / "ends", seed=[2])
        done["base"]["train"]["steps"] = 20
        missing = sweep(self.place / "ends", **{"data.source": [str(self.place / "missing.txt")]})
        diverging = sweep(self.place / "ends", **{"train.lr": [1e6]})
        diverging["base"]["train"] |= {"warmup": 0, "weight_decay": 1e6}
        for name, what, expected in (
            ("done", done, "COMPLETED"),
            ("missing", missing, "FAILED"),
            ("diverging", diverging, "FAILED"),
        ):
            _, said = self.submit(name, what, "--cpus", "1")
            job = said.stdout.split("_")[0]
            state = until(lambda job=job: self._ended(job), f"{name} ends")
            log = (self.place / "ends" / ".slurm" / f"{name}-1" / "0.log").read_text()
            check(state == expected, f"a run ({name}) is {expected}", f"{state}\n{log}")

    def _ended(self, job: str) -> str | None:
        words = self.cluster.ask("scontrol", "--oneliner", "show", "job", f"{job}_0").split()
        state = next((w.partition("=")[2] for w in words if w.startswith("JobState=")), "")
        return None if state in ("", "PENDING", "RUNNING", "COMPLETING", "CONFIGURING") else state

    def no_controller(self) -> None:
        """A controller that is down is one line, too."""
        self.cluster.stop_controller()
        _, said = self.submit("down", sweep(self.place / "down", seed=[0]))
        good = said.returncode == 2 and said.stderr.count("\n") == 1 and not (self.place / "down").exists()
        check(good, f"no controller: {said.stderr.strip()}", said)

    def early_signal(self) -> None:
        """SIGTERM before training has begun ends the command, with a sentence that can be typed."""
        argv = [
            sys.executable,
            "-m",
            "softmax_rnn",
            "train",
            "--preset",
            "tiny",
            "--run.root",
            str(self.place / "early"),
        ]
        child = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        until(lambda: _handles(child.pid, signal.SIGTERM), "the command listens")
        child.send_signal(signal.SIGTERM)
        _, error = child.communicate(timeout=PATIENCE)
        check(
            child.returncode == 130 and "softmax-rnn train --preset tiny" in error,
            "an early SIGTERM stops train",
            error,
        )


def _handles(pid: int, number: int) -> bool:
    """True if a process has a handler for a signal of its own (from /proc)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (number - 1) & 1)


def main() -> int:
    """All steps; returns the exit code."""
    reason = Cluster.reason()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    with tempfile.TemporaryDirectory(prefix="slurm-") as scratch:
        place = Path(scratch)
        (place / "cluster").mkdir()
        with Cluster(place / "cluster") as cluster:
            os.environ |= cluster.environment
            print(
                cluster.ask("sinfo", "--version").strip(),
                "on one node:",
                cluster.ask("sinfo", "--noheader").split()[-1],
            )
            steps = Steps(cluster, place)
            for step in (
                steps.refusals,
                steps.early_signal,
                steps.ends,
                steps.disturbed,
                steps.two_processes,
                steps.no_controller,
            ):
                step()
    print("Everything is right.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
