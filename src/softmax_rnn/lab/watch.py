"""What the person at the terminal sees and can do: progress bars, and Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)


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
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(printable(name), total=max_tokens, done="")

        def advance(documents: int, tokens: int) -> None:
            bar.update(task, completed=tokens, done=f"{documents:,} documents, {tokens:,} tokens")

        yield advance


class TrainingBar:
    """Steps, loss, tokens per second and time left; on a console that is no terminal, a line per evaluation."""

    def __init__(self, name: str, steps: int, *, quiet: bool) -> None:
        self.name, self.steps, self.quiet = printable(name), steps, quiet
        self.bar: Progress | None = None
        self.last: dict[str, Any] = {}

    def __enter__(self) -> TrainingBar:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = _console()
        if not self.quiet and console.is_terminal:
            text = TextColumn("{task.fields[text]}")
            eta = TimeRemainingColumn(elapsed_when_finished=True)
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                text,
                TextColumn("ETA"),
                eta,
            )
            self.bar = Progress(*columns, console=console)
            self.bar.start()
            self.task = self.bar.add_task(self.name, total=self.steps, text="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def step(self, step: int) -> None:
        """One step further."""
        if self.bar is not None:
            self.bar.update(self.task, completed=step)

    def row(self, row: dict[str, Any]) -> None:
        """Show the newest numbers."""
        self.last |= row
        text = " · ".join(
            f"{label} {self.last[key]:{form}}"
            for key, label, form in (
                ("train_loss", "loss", ".3f"),
                ("test_loss", "test", ".3f"),
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
    """Ctrl-C and SIGTERM ask training to save and stop after the current step; a second one stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread: nobody's terminal
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.__exit__()
