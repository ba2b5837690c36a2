"""Many runs at once, each an ordinary ``train`` in a process of its own, through submitit: on this machine, or as a SLURM job array.

Runs that are done are skipped and half-done ones go on, because that is what ``train`` does; doing it again is always right.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..cli import whole
from ..errors import UserError
from .config import RunConfig, from_dict
from .store import DamagedRun, read_run
from .watch import StopSignals

POLL_SECONDS = 0.3
ENDED = ("done", "diverged")


@dataclass(frozen=True)
class Job:
    """One run as submitit's worker calls it. After a timeout or preemption submitit queues it again, and it goes on."""

    config: dict[str, Any]

    def __call__(self) -> str:
        """Train; returns how it ended, with the sentence that explains it where it did not end well."""
        import submitit

        from .train import train

        if submitit.JobEnvironment().num_tasks > 1:
            submitit.helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        outcome = train(from_dict(self.config), quiet=True)
        print(outcome.message, flush=True)
        return f"failed: {outcome.message}" if outcome.ending == "failed" else outcome.ending

    def checkpoint(self) -> Any:
        """What to queue again: the same."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def status(run: RunConfig) -> str:
    """``done``, ``diverged``, ``unfinished``, ``damaged`` or ``new``."""
    try:
        return read_run(run.folder).status
    except (FileNotFoundError, NotADirectoryError):
        return "new"
    except DamagedRun:
        return "damaged"  # training it again restores what its last checkpoint holds


def add_options(parser: argparse.ArgumentParser, jobs: int = 1) -> None:
    """``--jobs``, ``--dry-run`` and what SLURM needs to know."""
    parser.add_argument(
        "--jobs", type=whole(1, 10_000), default=jobs, help="how many runs at a time (on SLURM: of the array)"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    slurm = parser.add_argument_group("on a cluster")
    slurm.add_argument("--slurm", action="store_true", help="submit a SLURM job array instead of running here")
    slurm.add_argument("--partition", help="SLURM partition")
    slurm.add_argument("--account", help="SLURM account")
    slurm.add_argument(
        "--minutes",
        type=whole(1, 10**6),
        default=24 * 60,
        help="time limit of one job; it is queued again when that is over",
    )
    slurm.add_argument(
        "--processes", type=whole(1, 10_000), default=1, help="processes per run (DDP, or fully_shard with run.sharded)"
    )
    slurm.add_argument("--gpus", type=whole(0, 10_000), default=0, help="GPUs per run; give as many processes")
    slurm.add_argument("--cpus", type=whole(1, 10_000), default=4, help="cores per process")
    slurm.add_argument(
        "--setup", action="append", default=[], help="a shell line before the job, such as 'module load cuda'"
    )


def run_all(runs: Sequence[RunConfig], options: argparse.Namespace, name: str) -> int:
    """Bring every run to its end, here or on SLURM; returns the exit code: 0 if every run is done (or submitted)."""
    todo = [run for run in runs if status(run) not in ENDED]
    if options.slurm and todo:
        return _on_slurm(todo, options, name)
    return _here(runs, todo, options.jobs)


def _on_slurm(todo: list[RunConfig], options: argparse.Namespace, name: str) -> int:
    import shutil

    import submitit

    if shutil.which("sbatch") is None:
        raise UserError(
            "--slurm needs sbatch, which is not on this machine: log in to the cluster, or leave --slurm out."
        )
    logs = Path(todo[0].run.root) / ".submitit"
    executor = submitit.SlurmExecutor(folder=logs / "%j", max_num_timeout=1000)
    settings = {
        "job_name": name,
        "time": options.minutes,
        "nodes": 1,
        "ntasks_per_node": options.processes,
        "cpus_per_task": options.cpus,
        "gpus_per_node": options.gpus or None,
        "partition": options.partition,
        "account": options.account,
        "array_parallelism": options.jobs,
        "setup": options.setup or None,
    }
    executor.update_parameters(**{key: value for key, value in settings.items() if value is not None})
    with executor.batch():
        jobs = [executor.submit(Job(asdict(run))) for run in todo]
    for run, job in zip(todo, jobs, strict=True):
        print(f"{job.job_id}  {run.folder}")
    print(f"Submitted {len(jobs)} runs; logs in {logs}. The same command later submits what is not done by then.")
    return 0


@dataclass
class _Farm:
    """What is going on on this machine."""

    runs: Sequence[RunConfig]
    waiting: list[RunConfig]
    jobs: int
    stop: StopSignals
    running: dict[Path, Any] = field(default_factory=dict)
    ended: dict[Path, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        import submitit
        import torch

        self.executor = submitit.LocalExecutor(folder=Path(self.runs[0].run.root) / ".submitit" / "%j")
        self.executor.update_parameters(timeout_min=60 * 24 * 365, gpus_per_node=torch.cuda.device_count())
        self.threads = max(1, (os.cpu_count() or 1) // self.jobs)

    @property
    def busy(self) -> bool:
        return bool(self.running) or (bool(self.waiting) and not self.stop.asked)

    def step(self) -> list[Path]:
        """Start what there is room for and gather what has ended; returns the latter."""
        while self.waiting and len(self.running) < self.jobs and not self.stop.asked:
            run = self.waiting.pop(0)
            config = asdict(run)
            config["run"]["threads"] = run.run.threads or self.threads
            with _ctrl_c_held_back():
                self.running[run.folder] = self.executor.submit(Job(config))
        before = set(self.ended)
        for folder, job in list(self.running.items()):
            if self.stop.asked:
                job._process.send_signal(signal.SIGTERM)  # the worker saves and stops
            if job.done():
                self.ended[folder] = _ending(self.running.pop(folder))
        return [folder for folder in self.ended if folder not in before]

    def states(self) -> dict[Path, str]:
        return dict.fromkeys(self.running, "training") | self.ended


def _here(runs: Sequence[RunConfig], todo: list[RunConfig], jobs: int) -> int:
    from .board import board

    if todo:
        with StopSignals() as stop, board(runs) as show:
            farm = _Farm(runs, list(todo), jobs, stop)
            while farm.busy:
                ended = farm.step()
                show(farm.states(), ended)
                time.sleep(POLL_SECONDS)
            show(farm.ended, [])
        if stop.asked:
            print("Stopped and saved. To go on: the same command.", file=sys.stderr)
            return 130
    return 0 if all(status(run) == "done" for run in runs) else 1


@contextlib.contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """A worker that is started here inherits it and never sees the terminal's Ctrl-C: SIGTERM tells it to save and stop."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ending(job: Any) -> str:
    """How a worker ended; the last line of its log if it broke."""
    with contextlib.suppress(Exception):
        return str(job.results()[0])
    lines = (job.stderr() or "no output").strip().splitlines()
    return f"failed: {lines[-1]}"
