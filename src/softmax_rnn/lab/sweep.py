"""The command ``softmax-rnn sweep``: a grid of runs, each an ordinary ``train``, through submitit.

    preset: laptop
    base:                                   # options that all runs share
      train: {steps: 200}
    grid:                                   # every combination of these is a run
      model.mechanism: [softmax, norm, gate]
      seed: [0, 1]

Runs that are done are skipped and half-done ones go on, because that is what ``train`` does; the same command again is
always right. On this machine (``--jobs``) a table shows where everything is. With ``--slurm`` the rest of the grid
becomes one job array.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ..errors import MechanismError, UserError
from .config import RunConfig, from_dict
from .store import read_run

POLL_SECONDS = 0.3


@dataclass(frozen=True)
class Job:
    """One run as submitit's worker calls it. After a timeout or preemption submitit queues it again, and it goes on."""

    config: dict[str, Any]

    def __call__(self) -> str:
        """Train; returns how it ended."""
        import submitit

        from .train import train

        if submitit.JobEnvironment().num_tasks > 1:
            submitit.helpers.TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        outcome = train(from_dict(self.config), quiet=True)
        print(outcome.message, flush=True)
        return outcome.ending

    def checkpoint(self) -> Any:
        """What to queue again: the same."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def read_sweep(file: Path) -> list[RunConfig]:
    """The runs of a sweep file, in the order of its grid; anything unknown in it is refused."""
    try:
        sweep = yaml.safe_load(file.read_text())
    except OSError as error:
        raise UserError(f"Cannot read {file}: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    known = ("preset", "base", "grid")
    if not isinstance(sweep, dict) or not isinstance(sweep.get("grid"), dict) or set(sweep) - set(known):
        raise UserError(f"{file} must have the keys {', '.join(known)} and no others, with lists of values under grid.")
    lists = {key: values if isinstance(values, list) else [values] for key, values in sweep["grid"].items()}
    runs = []
    for values in product(*lists.values()):
        options: dict[str, Any] = {}
        _merge(options, sweep.get("base") or {})
        for key, value in zip(lists, values, strict=True):
            _merge(options, _nested(key, value))
        try:
            runs.append(from_dict(options, sweep.get("preset", "laptop")))
        except (UserError, MechanismError) as error:
            raise UserError(f"{file}: {error}") from None
    twice = {run.folder for run in runs if [other.folder for other in runs].count(run.folder) > 1}
    if twice:
        raise UserError(f"{file}: two runs of the grid are the same ({sorted(twice)[0]}).")
    return runs


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif "." in key:
            _merge(into, _nested(key, value))
        else:
            into[key] = dict(value) if isinstance(value, dict) else value


def status(run: RunConfig) -> str:
    """``done``, ``diverged``, ``unfinished`` or ``new``."""
    try:
        return read_run(run.folder).status
    except FileNotFoundError:
        return "new"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def _options(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="softmax-rnn sweep", description="Train a grid of runs; the same command again goes on.")
    parser.add_argument("file", type=Path, help="a YAML file with preset, base and grid")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at a time (on SLURM: of the array)")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    slurm = parser.add_argument_group("on a cluster")
    slurm.add_argument("--slurm", action="store_true", help="submit a SLURM job array instead of running here")
    slurm.add_argument("--partition", help="SLURM partition")
    slurm.add_argument("--account", help="SLURM account")
    slurm.add_argument(
        "--minutes", type=int, default=24 * 60, help="time limit of one job; it is queued again when that is over"
    )
    slurm.add_argument(
        "--processes", type=int, default=1, help="processes per run (DDP, or fully_shard with run.sharded)"
    )
    slurm.add_argument("--gpus", type=int, default=0, help="GPUs per run; give as many processes")
    slurm.add_argument("--cpus", type=int, default=4, help="cores per process")
    slurm.add_argument(
        "--setup", action="append", default=[], help="a shell line before the job, such as 'module load cuda'"
    )
    options = parser.parse_args(argv)
    if options.jobs < 1:
        raise UserError(f"--jobs must be positive, got {options.jobs}.")
    return options


def main(argv: list[str]) -> int:
    """The command; returns its exit code: 0 if every run is done."""
    options = _options(argv)
    runs = read_sweep(options.file)
    todo = [run for run in runs if status(run) not in ("done", "diverged")]
    if options.dry_run or not todo:
        _console().print(_table(runs, {}))
        return 0 if options.dry_run or all(status(run) == "done" for run in runs) else 1
    return _on_slurm(todo, options) if options.slurm else _here(runs, todo, options.jobs)


def _on_slurm(todo: list[RunConfig], options: argparse.Namespace) -> int:
    import shutil

    import submitit

    if shutil.which("sbatch") is None:
        raise UserError(
            "--slurm needs sbatch, which is not on this machine: log in to the cluster, or leave --slurm out."
        )
    logs = Path(todo[0].run.root) / ".submitit"
    executor = submitit.SlurmExecutor(folder=logs / "%j", max_num_timeout=1000)
    settings = {
        "job_name": options.file.stem,
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


def _here(runs: list[RunConfig], todo: list[RunConfig], jobs: int) -> int:
    import submitit
    import torch
    from rich.live import Live

    executor = submitit.LocalExecutor(folder=Path(todo[0].run.root) / ".submitit" / "%j")
    executor.update_parameters(timeout_min=60 * 24 * 365, gpus_per_node=torch.cuda.device_count())
    waiting = list(todo)
    running: dict[Path, Any] = {}
    ended: dict[Path, str] = {}
    stopping = False
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with Live(_table(runs, {}), console=_console(), refresh_per_second=4) as live:
        while running or (waiting and not stopping):
            try:
                while waiting and len(running) < jobs and not stopping:
                    run = waiting.pop(0)
                    running[run.folder] = _submit(executor, run, threads)
                for folder, job in list(running.items()):
                    if stopping:
                        job._process.send_signal(signal.SIGTERM)  # the worker saves and stops
                    if job.done():
                        ended[folder] = _ending(running.pop(folder))
                live.update(_table(runs, dict.fromkeys(running, "training") | ended))
                time.sleep(POLL_SECONDS)
            except KeyboardInterrupt:
                stopping = True
        live.update(_table(runs, ended))
    if stopping:
        print("Stopped and saved. To go on: the same command.", file=sys.stderr)
        return 130
    return 0 if all(status(run) == "done" for run in runs) else 1


def _submit(executor: Any, run: RunConfig, threads: int) -> Any:
    config = asdict(run)
    config["run"]["threads"] = run.run.threads or threads
    with _ctrl_c_ignored():  # by the workers, until they train: then they save and stop
        return executor.submit(Job(config))


@contextlib.contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _ending(job: Any) -> str:
    """How a worker ended; the last line of its log if it broke."""
    with contextlib.suppress(Exception):
        return str(job.results()[0])
    lines = (job.stderr() or "no output").strip().splitlines()
    return f"failed: {lines[-1]}"


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)


def _table(runs: list[RunConfig], states: dict[Path, str]) -> Any:
    from rich.table import Table

    table = Table("run", "state", "step", "loss", "test loss", "tokens/s", "spikes")
    for run in runs:
        try:
            there = read_run(run.folder)
        except FileNotFoundError:
            table.add_row(run.folder.name, states.get(run.folder, "waiting"), f"0/{run.train.steps}")
            continue
        numbers = [(there.last(key), form) for key, form in (("train_loss", ".4f"), ("test_loss", ".4f"))]
        numbers += [(there.last("tokens_per_second"), ",.0f"), (there.last("spikes"), "d")]
        step = f"{there.rows[-1]['step'] if there.rows else 0}/{run.train.steps}"
        state = states.get(run.folder, there.status)
        table.add_row(run.folder.name, state, step, *("" if n is None else f"{n:{form}}" for n, form in numbers))
    return table
