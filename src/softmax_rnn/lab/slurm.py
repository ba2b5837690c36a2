"""Runs on a SLURM cluster: one job array, each task an ordinary ``softmax-rnn train --config``.

    #SBATCH --array=0-3%2 --time=240 --signal=USR2@90 --requeue ...
    srun python -m softmax_rnn train --config runs/.slurm/grid-1/$SLURM_ARRAY_TASK_ID.yaml

Before its time is over SLURM sends SIGUSR2: ``train`` saves and exits with 75, and the script queues the task again. When a task is
preempted SLURM sends SIGTERM and queues it again by itself: ``train`` saves, too. A run that failed or diverged is a failed task.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from ..cli import whole
from ..errors import UserError, printable
from ..files import writing
from .config import RunConfig, to_yaml

AGAIN = 75  # the exit code of a run that was stopped by SIGUSR2 and saved
KILLED = 128 + signal.SIGUSR2  # that of one which SIGUSR2 met before Python could listen
CPUS = 4  # per process, where nodes have that many
SECONDS = 90  # before the end of its time a task is told to save


def add_options(group: Any) -> None:
    """What SLURM needs to know."""
    group.add_argument("--slurm", action="store_true", help="submit a SLURM job array instead of running here")
    group.add_argument("--partition", help="SLURM partition")
    group.add_argument("--account", help="SLURM account")
    group.add_argument(
        "--minutes",
        type=whole(1, 10**6),
        default=24 * 60,
        help="time limit of a job; it saves shortly before and is queued again (default: one day)",
    )
    group.add_argument(
        "--processes",
        type=whole(1, 10_000),
        default=1,
        help="processes per run: DDP, or fully_shard with run.sharded (default: 1)",
    )
    group.add_argument(
        "--gpus", type=whole(0, 10_000), default=0, help="GPUs per run; give --processes the same number"
    )
    group.add_argument(
        "--cpus",
        type=whole(1, 10_000),
        help=f"cores, and so threads, per process (default: {CPUS}, or what a node has)",
    )
    group.add_argument(
        "--setup", action="append", default=[], help="a shell line before the job, such as 'module load cuda'"
    )


def submit(wanted: list[RunConfig], options: argparse.Namespace, name: str) -> int:
    """Queue the runs that are not queued already; returns the exit code."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "--slurm needs sbatch, which is not on this machine: log in to the cluster, or leave --slurm out."
        )
    place = Path(wanted[0].run.root) / ".slurm"
    queued = _queued(place)
    for run in wanted:
        if str(run.folder) in queued:
            print(printable(f"{queued[str(run.folder)]}  {run.folder}  is queued already"))
    runs = [run for run in wanted if str(run.folder) not in queued]
    if not runs:
        return 0
    cpus = _cpus(options)
    folder = next(p for i in count(1) if not (p := place / f"{name}-{i}").exists())
    try:
        _write(folder, runs, cpus)
        job = _sbatch(_script(folder.resolve(), len(runs), options, name, cpus))
        (folder / "job.json").write_text(json.dumps({"job": job, "runs": [str(run.folder) for run in runs]}))
    except BaseException:  # a refused submission leaves nothing behind
        _remove(folder)
        raise
    for i, run in enumerate(runs):
        print(printable(f"{job}_{i}  {run.folder}"))
    print(
        printable(
            f"Submitted {len(runs)} runs; logs in {folder}. The same command later submits what is not done by then."
        )
    )
    return 0


def _write(folder: Path, runs: list[RunConfig], cpus: int) -> None:
    with writing(folder, "make room, or choose another run.root"):
        folder.mkdir(parents=True)
        for i, run in enumerate(runs):
            threads = run.run.threads or cpus
            (folder / f"{i}.yaml").write_text(to_yaml(replace(run, run=replace(run.run, threads=threads))))


def _remove(folder: Path) -> None:
    """The files of a submission, and the folders above it that nothing else is in."""
    shutil.rmtree(folder, ignore_errors=True)
    for above in (folder.parent, folder.parent.parent):
        try:
            above.rmdir()
        except OSError:
            return


def _script(folder: Path, runs: int, options: argparse.Namespace, name: str, cpus: int) -> str:
    """What sbatch reads."""
    settings = {
        "job-name": re.sub(r"[^\w.+-]", "-", name),
        "array": f"0-{runs - 1}%{options.jobs}",
        "time": options.minutes,
        "signal": f"USR2@{min(SECONDS, options.minutes * 60 // 4)}",
        "nodes": 1,
        "ntasks-per-node": options.processes,
        "cpus-per-task": cpus,
        "gpus-per-node": options.gpus or None,
        "partition": options.partition,
        "account": options.account,
        "output": f"{folder}/%a.log",
        "open-mode": "append",
        "requeue": "",
    }
    lines = [f"#SBATCH --{k}{f'={v}' if v != '' else ''}" for k, v in settings.items() if v is not None]
    python, config = shlex.quote(sys.executable), f"{shlex.quote(str(folder))}/$SLURM_ARRAY_TASK_ID.yaml"
    train = f"exec {python} -u -m softmax_rnn train --config {config}"
    if options.processes > 1:
        train = (
            "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$SLURM_NTASKS "
            f"MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000)); {train}"
        )
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            *options.setup,
            "trap : USR2  # for the runs, not for this script",
            f"srun --kill-on-bad-exit=0 bash -c {shlex.quote(train)}",
            "code=$?",
            f'if [ "$code" -eq {AGAIN} ] || [ "$code" -eq {KILLED} ]; then  # its time is over, and it has saved or had not begun',
            '    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"  # SLURM_JOB_ID of one task is that of the whole array',
            "fi",
            'exit "$code"',
            "",
        ]
    )


def _sbatch(script: str) -> str:
    """Submit; returns the job's number."""
    said = _ask(["sbatch", "--parsable"], script)
    return said.strip().partition(";")[0]


def _ask(command: list[str], text: str = "") -> str:
    """What a SLURM program answers; its refusal is one sentence."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"SLURM does not answer ({error}).") from None
    if done.returncode:
        lines = [re.sub(r"^\w+: (error: )?", "", line) for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].rstrip(".") if lines else f"{command[0]} ended with code {done.returncode}"
        raise UserError(f"SLURM refuses: {reason}.")
    return done.stdout


def _queued(place: Path) -> dict[str, str]:
    """Folders of runs that are queued or running -> the number of their task."""
    submissions = list(_submissions(place))
    if not submissions:
        return {}
    active = set(_ask(["squeue", "--me", "--noheader", "--array", "--format=%F_%K"]).split())
    found: dict[str, str] = {}
    for job, runs in submissions:
        found |= {run: f"{job}_{i}" for i, run in enumerate(runs) if f"{job}_{i}" in active}
    return found


def _submissions(place: Path) -> Iterator[tuple[str, list[str]]]:
    for file in sorted(place.glob("*/job.json")):
        try:
            about = json.loads(file.read_text())
            yield str(about["job"]), [str(run) for run in about["runs"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a submission that was cut short has no jobs


def _cpus(options: argparse.Namespace) -> int:
    """Cores per process: as asked, or as many as are usual and a node has; refused where no node has them."""
    command = ["sinfo", "--noheader", "--format=%c", *(["--partition", options.partition] if options.partition else [])]
    sizes = [int(word) for word in re.findall(r"\d+", _ask(command))]
    if not sizes:
        where = f"the partition {options.partition}" if options.partition else "SLURM"
        raise UserError(f"{where} has no nodes: sinfo lists the partitions there are.")
    room = max(sizes) // options.processes
    wanted = options.cpus if options.cpus is not None else max(1, min(CPUS, room))
    if wanted > room:
        raise UserError(
            f"{options.processes} processes with {wanted} cores each need {options.processes * wanted} cores, and the largest node "
            f"has {max(sizes)}: give fewer --processes or --cpus."
        )
    return wanted
