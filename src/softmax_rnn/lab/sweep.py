"""The command ``softmax-rnn sweep``: a grid of runs, each an ordinary ``train`` in a process of its own.

    preset: laptop
    base:                                   # options that all runs share
      train: {steps: 200}
    grid:                                   # every combination of these is a run
      model.mechanism: [softmax, norm, gate]
      seed: [0, 1]

Give the same command again at any time: finished runs are skipped, and unfinished ones continue. On this machine (``--jobs``) a table shows
where everything is. With ``--slurm`` the rest of the grid becomes one job array (``slurm.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType
from typing import Any

from ..cli import STOPPED, Parser, whole
from ..errors import MechanismError, UserError, printable
from ..files import read_yaml, writing
from . import _also_a_function, slurm
from .config import RunConfig, build, to_yaml
from .options import full_name, merge, nested
from .progress import StopSignals, live_table, table
from .run import ENDED, Run, find_run, load_run

MOST_RUNS = 100_000
POLL_SECONDS = 0.3


def main(argv: list[str]) -> int:
    """The command; returns its exit code: 0 if every run is done."""
    parser = Parser(
        prog="softmax-rnn sweep",
        description="Train a grid of runs. Stop it in any way you like: the same command continues where it stopped.",
    )
    parser.add_argument("file", type=Path, help="a YAML file with preset, base and grid")
    add_options(parser)
    options = parser.parse_args(argv)
    runs = read_sweep(options.file)
    if options.dry_run or all(status(run) in ENDED for run in runs):
        from rich.console import Console

        Console(stderr=True).print(table(runs, {}))
        return 0 if options.dry_run or all(status(run) == "done" for run in runs) else 1
    return run_all(runs, options, name=options.file.stem)


def read_sweep(file: Path) -> list[RunConfig]:
    """The runs of a sweep file, in the order of its grid; anything unknown in it is refused."""
    try:
        return grid_runs(read_yaml(file))
    except (UserError, MechanismError) as error:
        text = str(error)
        raise UserError(text if str(file) in text else f"{file}: {text}") from None


def grid_runs(sweep: Any) -> list[RunConfig]:
    """The runs of a sweep given as plain data.

    >>> [run.seed for run in grid_runs({"preset": "tiny", "grid": {"seed": [0, 1]}})]
    [0, 1]
    """
    known = ("preset", "base", "grid")
    unknown = sorted(map(str, set(sweep) - set(known))) if isinstance(sweep, dict) else []
    if not isinstance(sweep, dict) or not isinstance(sweep.get("grid"), dict) or unknown:
        raise UserError(
            f"A sweep must have the keys {', '.join(known)} and no others{f', not {unknown[0]!r}' if unknown else ''}, "
            "with lists of values under grid."
        )
    base = sweep.get("base") or {}
    if not isinstance(base, dict):
        raise UserError(f"base must hold options, such as train: {{steps: 500}}, got {base!r}.")
    lists = {key: values if isinstance(values, list) else [values] for key, values in sweep["grid"].items()}
    count = math.prod(len(values) for values in lists.values())
    if not 1 <= count <= MOST_RUNS:
        raise UserError(f"The grid has {count:,} runs, and 1 to {MOST_RUNS:,} are possible.")
    runs = [_one(base, lists, values, sweep.get("preset")) for values in product(*lists.values())]
    folder, times = Counter(run.folder for run in runs).most_common(1)[0]
    if times > 1:
        raise UserError(f"Two runs of the grid are the same ({folder}).")
    return runs


def _one(base: dict[str, Any], keys: Iterable[str], values: Iterable[Any], preset: Any) -> RunConfig:
    options: dict[str, Any] = {}
    merge(options, base)
    for key, value in zip(keys, values, strict=True):
        merge(options, nested(key, value))
    return build(options, preset)


def call(grid: Mapping[str, Sequence[Any]], *, preset: str = "laptop", jobs: int = 1, **options: Any) -> list[Run]:
    """``softmax_rnn.lab.sweep(...)``: every combination of the values in ``grid``, each run in a process of its own.

    What is done already is not done again.

    >>> from softmax_rnn.lab import sweep
    >>> runs = sweep({"mechanism": ["softmax", "norm"], "seed": [0, 1]}, preset="tiny", jobs=2)  # doctest: +SKIP
    >>> [(run.option("model.mechanism"), run.last("test_loss")) for run in runs]  # doctest: +SKIP
    """
    plan = {
        "preset": preset,
        "base": {full_name(name, RunConfig): value for name, value in options.items()},
        "grid": {full_name(name, RunConfig): list(values) for name, values in grid.items()},
    }
    runs = grid_runs(plan)
    run_all(runs, argparse.Namespace(jobs=jobs, slurm=False), "sweep")
    for run in runs:
        if find_run(run.folder) is None:
            raise UserError(f"{run.folder} was not trained: {_last_line(_log(run))}")
    return [load_run(run.folder) for run in runs]


def status(run: RunConfig) -> str:
    """``done``, ``diverged``, ``unfinished``, ``damaged`` or ``new``."""
    found = find_run(run.folder)  # training a damaged one again restores what its last checkpoint holds
    return "new" if found is None else found.status


def add_options(parser: argparse.ArgumentParser, jobs: int = 1) -> None:
    """``--jobs``, ``--dry-run`` and what SLURM needs to know."""
    parser.add_argument(
        "--jobs", type=whole(1, 10_000), default=jobs, help=f"how many runs at a time, also on SLURM (default: {jobs})"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    slurm.add_options(parser.add_argument_group("on a cluster"))


def run_all(runs: Sequence[RunConfig], options: argparse.Namespace, name: str) -> int:
    """Bring every run to its end, here or on SLURM; returns the exit code: 0 if every run is done (or submitted)."""
    left = [run for run in runs if status(run) not in ENDED]
    if options.slurm and left:
        return slurm.submit(left, options, name)
    if left:
        with StopSignals() as stop, live_table(runs) as show:
            pool = _Pool(list(left), options.jobs, stop)
            while pool.busy:
                ended = pool.step()
                show(pool.states(), ended)
                time.sleep(POLL_SECONDS)
            show(pool.ended, [])
        if stop.asked:
            print("Stopped and saved. The same command continues.", file=sys.stderr)
            return STOPPED
    return 0 if all(status(run) == "done" for run in runs) else 1


@dataclass
class _Pool:
    """The processes of this machine: as many runs at a time as ``jobs``."""

    waiting: list[RunConfig]
    jobs: int
    stop: StopSignals
    running: dict[Path, _Worker] = field(default_factory=dict)
    ended: dict[Path, str] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        return bool(self.running) or (bool(self.waiting) and not self.stop.asked)

    def step(self) -> list[Path]:
        """Start what there is room for and gather what has ended; returns the latter."""
        while self.waiting and len(self.running) < self.jobs and not self.stop.asked:
            run = self.waiting.pop(0)
            used = {worker.slot for worker in self.running.values()}
            slot = next(i for i in range(self.jobs) if i not in used)
            self.running[run.folder] = _Worker(run, self.jobs, slot)
        before = set(self.ended)
        for folder, worker in list(self.running.items()):
            if self.stop.asked:
                worker.stop()
            if worker.ended:
                self.ended[folder] = self.running.pop(folder).ending(bool(self.stop.asked))
        return [folder for folder in self.ended if folder not in before]

    def states(self) -> dict[Path, str]:
        return dict.fromkeys(self.running, "training") | self.ended


# Workers fork from a server that has imported everything once: a run of seconds need not wait as long for its imports.
SERVER = multiprocessing.get_context("forkserver")
IMPORTED = ["softmax_rnn.lab.train", "softmax_rnn.lab.trainer", "softmax_rnn.models", "softmax_rnn.tasks.base"]


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """A worker needs nothing of the script that started it, and must not run it again."""
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _start_server() -> None:
    """The server is deaf to Ctrl-C from its first instruction on: while it still imports, that would end it, and us with a traceback."""
    SERVER.set_forkserver_preload(IMPORTED)
    if threading.current_thread() is not threading.main_thread():  # nobody's terminal
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a new process inherits
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


class _Worker:
    """``softmax-rnn train`` in a process that does not see the terminal's Ctrl-C; its output goes to a log."""

    def __init__(self, run: RunConfig, jobs: int, slot: int) -> None:
        self.run, self.slot = run, slot
        threads = run.run.threads or max(1, (os.cpu_count() or 1) // jobs)
        self.log = _log(run)
        place, file = self.log.parent, self.log.with_suffix(".yaml")
        with writing(place, "make room, or choose another --run.root"):
            place.mkdir(parents=True, exist_ok=True)
            file.write_text(to_yaml(replace(run, run=replace(run.run, threads=threads))))
            self.log.write_bytes(b"")
        _start_server()
        self.process = SERVER.Process(target=_train, args=(str(file), str(self.log), self._environment()))
        with _without_main():
            self.process.start()

    def _environment(self) -> dict[str, str]:
        """Each process has a GPU of its own, where there are several."""
        import torch

        gpus = torch.cuda.device_count()
        chosen = {"CUDA_VISIBLE_DEVICES": str(self.slot % gpus)} if gpus > 1 else {}
        return {**os.environ, **chosen}

    @property
    def ended(self) -> bool:
        """True when it has."""
        return self.process.exitcode is not None

    def stop(self) -> None:
        """Ask it to save and stop."""
        if self.process.pid is not None and not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)

    def ending(self, asked: bool) -> str:
        """How it ended, perhaps ``asked`` to; the last line of its log if it broke."""
        code = self.process.exitcode
        if asked or code in (0, STOPPED, -signal.SIGTERM):
            return "done" if code == 0 else "stopped"
        if status(self.run) == "diverged":
            return "diverged"
        return f"failed: {_last_line(self.log) or f'no output, exit code {code}'}"


def _log(run: RunConfig) -> Path:
    """Where a worker writes."""
    return Path(run.run.root) / ".jobs" / f"{run.folder.name}.log"


def _last_line(log: Path) -> str:
    """What a worker said last; nothing if it said nothing."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return printable(lines[-1].removeprefix("softmax-rnn train: ")) if lines else ""


def _train(file: str, log: str, environment: dict[str, str]) -> None:
    """In the worker: as if the command had been typed, in a session of its own."""
    from ..cli import main

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for stream, path, flags in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY), (2, log, os.O_WRONLY)):
        target = os.open(path, flags | (os.O_APPEND if stream else 0))
        os.dup2(target, stream)
        os.close(target)
    sys.argv = ["softmax-rnn", "train", "--config", file]
    sys.exit(main(sys.argv[1:]))


_also_a_function(__name__)
