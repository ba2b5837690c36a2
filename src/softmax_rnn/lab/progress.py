"""What the person at the terminal sees and can do: bars for one run, a table of many, and Ctrl-C.

Where there is no terminal, bars become a line per evaluation and the table a line for each run that ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..errors import printable
from .recorder import DamagedMetrics, read
from .run import ENDED, Run

if TYPE_CHECKING:
    from rich.progress import Progress

    from .config import RunConfig


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)


def is_live(console: Any) -> bool:
    """True for a terminal, and for a notebook that can show bars; elsewhere there are lines."""
    return console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)


@contextlib.contextmanager
def tokenising_bar(name: str, max_tokens: int | None, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar for tokenisation; the function takes the documents and tokens done so far."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("tokenising {task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
    )
    console = _console()
    with Progress(*columns, console=console, disable=quiet or not is_live(console)) as bar:
        task = bar.add_task(printable(name), total=max_tokens, done="")

        def advance(documents: int, tokens: int) -> None:
            bar.update(task, completed=tokens, done=f"{documents:,} documents, {tokens:,} tokens")

        yield advance


def say_loading() -> None:
    """A word to the person at a terminal: torch and transformers take seconds to load."""
    console = _console()
    if is_live(console):
        console.print("loading torch, transformers and the text", style="dim", highlight=False)


class TrainingBar:
    """Steps, loss, tokens per second and time left; on a console that is no terminal, a line per evaluation."""

    def __init__(self, name: str, steps: int, *, quiet: bool) -> None:
        self.name, self.steps, self.quiet = printable(name), steps, quiet
        self.bar: Progress | None = None
        self.last: dict[str, Any] = {}

    def __enter__(self) -> TrainingBar:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = _console()
        if not self.quiet and is_live(console):
            text = TextColumn("{task.fields[text]}")
            eta = TimeRemainingColumn(elapsed_when_finished=True)
            left = TextColumn("{task.fields[left]}")
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                text,
                left,
                eta,
            )
            self.bar = Progress(*columns, console=console)
            self.bar.start()
            self.task = self.bar.add_task(self.name, total=self.steps, text="", left="time left")
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self, step: int) -> None:
        """One step further."""
        if self.bar is not None:
            self.bar.update(self.task, completed=step, left="time left" if step < self.steps else "took")

    def say(self, text: str) -> None:
        """A word in between."""
        if self.bar is not None:
            self.bar.update(self.task, text=text)
        elif not self.quiet:
            print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def row(self, row: dict[str, Any]) -> None:
        """Show the newest numbers."""
        self.last |= row
        text = " · ".join(
            f"{label} {self.last[key]:{form}}"
            for key, label, form in (
                ("train_loss", "loss", ".3f"),
                ("test_loss", "test", ".3f"),
                ("test_accuracy", "right answers", ".1%"),
                ("tokens_per_second", "tokens/s", ",.0f"),
                ("spikes", "spikes", "d"),
            )
            if self.last.get(key) is not None
        )
        if self.bar is not None:
            self.bar.update(self.task, text=text)
        elif not self.quiet and "test_loss" in row:
            print(f"{self.name} step {row['step']}/{self.steps}: {text}", file=sys.stderr, flush=True)


class StopSignals:
    """Ctrl-C, SIGTERM, and SIGUSR2, which schedulers send before a time limit.

    The first one asks: ``asked`` is its number, and training saves and stops after the current step. Before training has begun
    (``may_raise``) there is nothing to save, and it raises ``KeyboardInterrupt`` at once. A second Ctrl-C stops at once; schedulers
    repeat themselves, so that a second SIGTERM means what the first one did.
    """

    def __init__(self, may_raise: bool = False) -> None:
        self.asked: int | None = None
        self.may_raise = may_raise
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
            with contextlib.suppress(ValueError):  # not the main thread: nobody's terminal
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._before):
            self._give_back(number)

    def _give_back(self, number: int) -> None:
        handler = self._before.pop(number, None)
        if handler is not None:
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._give_back(number)
        if self.asked is not None:
            return
        self.asked = number
        if self.may_raise:
            raise KeyboardInterrupt


Show = Callable[[Mapping[Path, str], Sequence[Path]], None]


@contextlib.contextmanager
def live_table(runs: Sequence[RunConfig]) -> Iterator[Show]:
    """A table of many runs that lives while they train: the function takes the states of those that are running or have ended, and
    which of them have just ended.
    """
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
        console.print(escape(printable(f"{folder.name}  {state}")), highlight=False, soft_wrap=True)
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
        self.done_before = sum(self.state(run, {}) in ENDED for run in runs)

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
        done = sum(state in ENDED for state in all_states)
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
        text = printable(f"{folder.name}  {states[folder]}") + (f"  test loss {loss:.3f}" if loss is not None else "")
        console.print(escape(f"{text}  ({known.sentence(states)})"), highlight=False, soft_wrap=True)


def _table(known: _Known, runs: Sequence[RunConfig], states: Mapping[Path, str]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    out = Table("run", "state", "step", "loss", "test loss", "tokens/s", "spikes")
    for config in runs:
        state = escape(known.state(config, states))
        there = known.run(config, fresh=state == "training")
        if there is None:
            out.add_row(escape(printable(config.folder.name)), state, f"0/{config.train.steps}")
            continue
        numbers = [(there.last(key), form) for key, form in (("train_loss", ".4f"), ("test_loss", ".4f"))]
        numbers += [(there.last("tokens_per_second"), ",.0f"), (there.last("spikes"), "d")]
        step = f"{there.step}/{config.train.steps}"
        out.add_row(
            escape(printable(config.folder.name)),
            state,
            step,
            *("" if n is None else f"{n:{form}}" for n, form in numbers),
        )
    return out
