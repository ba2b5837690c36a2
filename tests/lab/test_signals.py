"""Ctrl-C, and what schedulers send: everything is saved, from the first moment on, however often they ask."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from work import Child, only_run, rows

from softmax_rnn.lab.progress import StopSignals

Train = Callable[..., Child]


def test_the_first_asks_and_schedulers_may_repeat_themselves() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        _ask_repeatedly()
    finally:
        signal.signal(signal.SIGINT, before)


def _ask_repeatedly() -> None:
    with StopSignals() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGUSR2):
            os.kill(os.getpid(), number)
        assert stop.asked == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_before_there_is_anything_to_save_it_stops_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), StopSignals(may_raise=True) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.asked == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGUSR2, 75)])
def test_signals_while_training(train: Train, runs: Path, number: signal.Signals, code: int) -> None:
    child = train("--run.save_every", "1000", faults={"signals": (5, number)})
    assert child.wait() == code, child.output
    assert "Stopped at step 5 of 20 and saved. To continue: softmax-rnn train" in child.output
    assert (only_run(runs) / "checkpoint-5").is_dir()
    assert train("--run.save_every", "1000").wait() == 0
    assert rows(only_run(runs))[-1]["event"] == "done"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGUSR2, 75)])
def test_signals_before_training(train: Train, runs: Path, number: signal.Signals, code: int) -> None:
    child = train(faults={"early signal": number})
    assert child.wait() == code, child.output
    assert "Stopped before training began. To continue: softmax-rnn train" in child.output
    assert child.output.count("\n") == 1
