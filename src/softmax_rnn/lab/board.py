"""Many runs on one screen: a table that lives while they train; where there is no terminal, a line for each that ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .config import RunConfig
from .recorder import DamagedMetrics, read
from .store import Run

Show = Callable[[Mapping[Path, str], Sequence[Path]], None]


@contextlib.contextmanager
def board(runs: Sequence[RunConfig]) -> Iterator[Show]:
    """A function that takes the states of the runs that are running or have ended, and which of them have just ended."""
    from rich.console import Console
    from rich.live import Live
    from rich.markup import escape

    console = Console(stderr=True)
    known = _Known(runs)
    if not console.is_terminal:
        yield lambda states, ended: _lines(console, known, states, ended)
        return
    passing = len(runs) > _room(console)
    with Live(console=console, auto_refresh=False, transient=passing) as live:
        yield lambda states, ended: live.update(_screen(console, known, states, ended), refresh=True)
    for folder, state in known.failed.items():  # the reasons, which may have scrolled away
        console.print(escape(f"{folder.name}  {state}"), highlight=False, soft_wrap=True)
    if passing:
        console.print(known.sentence({}))


def table(runs: Sequence[RunConfig], states: Mapping[Path, str]) -> Any:
    """The table of these runs as they are on disk."""
    return _table(_Known(runs), runs, states)


class _Known:
    """The rows of each run, read again only while it trains."""

    def __init__(self, runs: Sequence[RunConfig]) -> None:
        self.runs = runs
        self.began = time.monotonic()
        self.failed: dict[Path, str] = {}
        self._read: dict[Path, Run | None] = {}
        self.done_before = sum(self.state(run, {}) in ("done", "diverged") for run in runs)

    def run(self, config: RunConfig, fresh: bool) -> Run | None:
        folder = config.folder
        if fresh or folder not in self._read:
            there = (folder / "config.yaml").is_file()
            self._read[folder] = _read(folder) if there else None
        return self._read[folder]

    def end(self, states: Mapping[Path, str], ended: Sequence[Path]) -> None:
        """Take in that some have ended: their last rows, and why where it was not well."""
        for config in self.runs:
            if config.folder in ended:
                self.run(config, fresh=True)
        self.failed |= {folder: states[folder] for folder in ended if states[folder].startswith("failed")}

    def state(self, config: RunConfig, states: Mapping[Path, str]) -> str:
        if config.folder in states:
            return states[config.folder]
        there = self.run(config, fresh=False)
        return "waiting" if there is None else there.status

    def sentence(self, states: Mapping[Path, str]) -> str:
        """How many are done, and how long the rest will take at this pace."""
        all_states = [self.state(run, states) for run in self.runs]
        done = sum(state in ("done", "diverged") for state in all_states)
        failed = sum(state.startswith("failed") for state in all_states)
        text = f"{done} of {len(self.runs)} runs done" + (f", {failed} failed" if failed else "")
        left, fresh = len(self.runs) - done - failed, done - self.done_before
        if left and fresh:
            minutes = (time.monotonic() - self.began) / fresh * left / 60
            text += f", about {minutes:.0f} min left" if minutes >= 1 else ", less than a minute left"
        return text


def _read(folder: Path) -> Run:
    try:
        return Run(folder, rows=read(folder / "metrics.jsonl"))
    except (DamagedMetrics, OSError) as error:
        return Run(folder, damage=str(error))


def _room(console: Any) -> int:
    return max(6, console.size.height - 8)


def _screen(console: Any, known: _Known, states: Mapping[Path, str], just_ended: Sequence[Path]) -> Any:
    """All runs where there is room for them, else those that are moving and the last that have ended."""
    from rich.console import Group

    known.end(states, just_ended)
    room = _room(console)
    shown = list(known.runs)
    if len(shown) > room:
        by_folder = {run.folder: run for run in known.runs}
        training = [folder for folder, state in states.items() if state == "training"]
        ended = [folder for folder in states if folder not in training]
        first = max(0, len(ended) - max(0, room - len(training)))
        shown = [by_folder[folder] for folder in ended[first:] + training]
    return Group(_table(known, shown, states), known.sentence(states))


def _lines(console: Any, known: _Known, states: Mapping[Path, str], ended: Sequence[Path]) -> None:
    from rich.markup import escape

    known.end(states, ended)
    by_folder = {run.folder: run for run in known.runs}
    for folder in ended:
        run = known.run(by_folder[folder], fresh=False)
        loss = run.last("test_loss") if run else None
        text = f"{folder.name}  {states[folder]}" + (f"  test loss {loss:.3f}" if loss is not None else "")
        console.print(escape(f"{text}  ({known.sentence(states)})"), highlight=False, soft_wrap=True)


def _table(known: _Known, runs: Sequence[RunConfig], states: Mapping[Path, str]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    out = Table("run", "state", "step", "loss", "test loss", "tokens/s", "spikes")
    for config in runs:
        state = escape(known.state(config, states))
        there = known.run(config, fresh=state == "training")
        if there is None:
            out.add_row(config.folder.name, state, f"0/{config.train.steps}")
            continue
        numbers = [(there.last(key), form) for key, form in (("train_loss", ".4f"), ("test_loss", ".4f"))]
        numbers += [(there.last("tokens_per_second"), ",.0f"), (there.last("spikes"), "d")]
        step = f"{there.rows[-1]['step'] if there.rows else 0}/{config.train.steps}"
        out.add_row(config.folder.name, state, step, *("" if n is None else f"{n:{form}}" for n, form in numbers))
    return out
