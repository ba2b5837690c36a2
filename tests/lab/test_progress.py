"""What is shown where: a bar in a terminal, a line per evaluation elsewhere, nothing raw."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from softmax_rnn.lab import configure, progress


def shown(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> io.StringIO:
    out = io.StringIO()
    monkeypatch.setattr(progress, "_console", lambda: Console(file=out, force_terminal=terminal, width=160))
    return out


def rows(bar: progress.TrainingBar) -> None:
    for step in (1, 2):
        bar.step(step)
        bar.row({"step": step, "train_loss": 3.0, "spikes": 0, "tokens_per_second": 1234.0})
    bar.row({"step": 2, "test_loss": 2.5})


def test_a_bar_says_how_long_it_took_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    out = shown(monkeypatch, terminal=True)
    with progress.TrainingBar("a\x1b]0;x\x07", 2, quiet=False) as bar:
        assert bar.bar is not None
        bar.step(1)
        assert bar.bar.tasks[0].fields["left"] == "time left"
        rows(bar)
        assert bar.bar.tasks[0].fields["left"] == "took"
    assert "\x1b]0;" not in out.getvalue()
    assert "test 2.500" in out.getvalue()


def test_a_line_per_evaluation_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown(monkeypatch, terminal=False)
    with progress.TrainingBar("run", 2, quiet=False) as bar:
        rows(bar)
    assert capsys.readouterr().err == "run step 2/2: loss 3.000 · test 2.500 · tokens/s 1,234 · spikes 0\n"
    with progress.TrainingBar("run", 2, quiet=True) as bar:
        rows(bar)
    assert capsys.readouterr().err == ""


def test_a_notebook_has_bars_if_it_can_show_them(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(force_jupyter=True)
    for there in (True, False):
        monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name, there=there: name if there else None)
        assert progress.is_live(console) is there


def test_the_table_of_runs_escapes_names(tmp_path: Path) -> None:
    config = configure("tiny", run={"folder": str(tmp_path / "a\x1b[2J[red]b")})
    out = io.StringIO()
    Console(file=out, width=160).print(progress.table([config], {}))
    assert r"a\x1b[2J[red]b" in out.getvalue()
