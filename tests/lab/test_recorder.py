"""Rows, spikes, and a state that survives being cut anywhere."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softmax_rnn import UserError
from softmax_rnn.lab.recorder import (
    TIMINGS,
    DamagedMetrics,
    Diverged,
    Progress,
    Recorder,
    is_spike,
    read,
    restore,
)

STEADY = [3.0 + 0.01 * (i % 5) for i in range(40)]


def spikes(losses: list[float]) -> int:
    progress = Progress()
    for loss in losses:
        progress.add(loss, 1)
    return progress.spikes


def test_what_a_spike_is() -> None:
    assert spikes(STEADY) == 0
    assert spikes([*STEADY, 4.0, *STEADY]) == 1
    assert spikes([*STEADY, 4.0, 4.1, 4.2, *STEADY]) == 1
    assert spikes([*STEADY, 4.0, 3.0, 4.0, *STEADY]) == 2
    assert spikes([*STEADY, 3.09, *STEADY]) == 0
    assert spikes([*STEADY, math.nan, *STEADY, math.inf]) == 2
    assert spikes([8.0 - 0.1 * i for i in range(60)]) == 0
    assert not is_spike(100.0, STEADY[:15])


LOSSES = st.lists(st.one_of(st.floats(1, 9), st.just(math.nan)), min_size=1, max_size=90)


@settings(deadline=None, max_examples=50)
@given(losses=LOSSES, cut=st.integers(0, 90))
def test_a_state_that_went_through_a_checkpoint_is_the_same(losses: list[float], cut: int) -> None:
    whole, parts = Progress(), Progress()
    for i, loss in enumerate(losses):
        if i == cut:
            parts = Progress(**json.loads(json.dumps(vars(parts))))
        whole.add(loss, 3)
        parts.add(loss, 3)
    assert repr(whole) == repr(parts)


def test_a_recorder_resumes_into_the_same_rows(tmp_path: Path) -> None:
    def rows(cut: int | None) -> list[dict]:
        recorder = Recorder(tmp_path / f"{cut}.jsonl", patience=5)
        for step, loss in enumerate([*STEADY, 9.0, math.nan, 3.0, 3.0], start=1):
            recorder.add([(loss, 16)])
            if step % 6 == 0:
                recorder.train_row(grad_norm=1.0, learning_rate=0.1)
            if step == cut:
                (tmp_path / "checkpoint").mkdir(exist_ok=True)
                recorder.save(tmp_path / "checkpoint")
                recorder.write({"event": "a row after the checkpoint"})
                recorder = Recorder(recorder.file, patience=5)
                recorder.resume(tmp_path / "checkpoint")
        return [{k: v for k, v in row.items() if k not in TIMINGS} for row in read(recorder.file)]

    whole = rows(None)
    assert whole[-1]["train_loss"] is None  # NaN is not JSON
    assert whole[-1]["spikes"] == 1
    assert all(rows(cut) == whole for cut in (1, 6, 7, 41, 44))


def test_too_many_bad_steps(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "metrics.jsonl", patience=3)
    recorder.add([(math.nan, 1), (math.inf, 1), (1.0, 1), (math.nan, 1), (math.nan, 1)])
    with pytest.raises(Diverged):
        recorder.add([(-math.inf, 1)])
    assert recorder.progress.step == 6


ROWS = [f'{{"step": {step}, "train_loss": {5 - step}, "tokens": {step}}}\n' for step in (1, 2, 3)]


def never(text: str) -> None:
    raise AssertionError(text)


def saved(tmp_path: Path) -> tuple[Path, Path]:
    """A metrics file, and a checkpoint that holds its first two rows."""
    file, checkpoint = tmp_path / "metrics.jsonl", tmp_path / "checkpoint-2"
    checkpoint.mkdir()
    (checkpoint / "metrics.jsonl").write_text("".join(ROWS[:2]))
    file.write_text("".join(ROWS))
    return file, checkpoint


def test_rows_after_the_checkpoint_and_half_rows_are_cut(tmp_path: Path) -> None:
    file, checkpoint = saved(tmp_path)
    file.write_text("".join(ROWS) + '{"step": 4, "event": "diverged", "tokens": 4}\n{"step": 6, "a"')
    assert [row["step"] for row in read(file)] == [1, 2, 3, 4]
    restore(file, 2, checkpoint, never)
    assert file.read_text() == "".join(ROWS[:2])
    restore(file, 2, checkpoint, never)
    restore(file, 0, None, never)
    assert file.read_text() == ""
    restore(tmp_path / "none.jsonl", 0, None, never)
    assert not (tmp_path / "none.jsonl").exists()


def test_a_checkpoint_of_the_first_edition_has_no_copy(tmp_path: Path) -> None:
    file, checkpoint = saved(tmp_path)
    (checkpoint / "metrics.jsonl").unlink()
    restore(file, 2, checkpoint, never)
    assert file.read_text() == "".join(ROWS[:2])
    file.write_text("{}\n")
    with pytest.raises(UserError, match=r"line 1 of metrics.jsonl has no step and tokens, and checkpoint-2 is too old"):
        restore(file, 2, checkpoint, never)
    assert file.read_text() == "{}\n"


@pytest.mark.parametrize(
    ("harm", "line", "says"),
    [
        (lambda text: text.replace('"step": 2', '"step": x'), 2, "line 2 is not what was written"),
        (lambda text: text.replace("1}", "1", 1), 1, "line 1 is not what was written"),
        (lambda text: "\n" + text, 1, "line 1 is not what was written"),
        (lambda text: text.replace("\n", "\n\n", 1), 2, "line 2 is not what was written"),
        (lambda text: ROWS[0], None, "it ends after line 1 of 2"),
        (lambda text: "", None, "missing or empty"),
        (lambda text: text.replace('"step": 3', '"step": [3]'), 3, "line 3 of metrics.jsonl has no step and tokens"),
        (lambda text: text.replace('"train_loss": 2', '"train_loss": "2"'), 3, "has no number for train_loss"),
    ],
)
def test_damage_is_named_set_aside_and_restored(tmp_path: Path, harm: Any, line: int | None, says: str) -> None:
    file, checkpoint = saved(tmp_path)
    damaged = harm(file.read_text())
    file.write_text(damaged)
    if line is not None:
        with pytest.raises(DamagedMetrics, match=f"line {line} of metrics.jsonl"):
            read(file)
    heard: list[str] = []
    restore(file, 2, checkpoint, heard.append)
    assert len(heard) == 1
    assert says in heard[0]
    assert file.read_text() == "".join(ROWS[:2])
    aside = tmp_path / "damaged-metrics.jsonl"
    assert aside.read_text() == damaged if damaged else not aside.exists()


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    file, checkpoint = saved(tmp_path)
    content = bytearray(file.read_bytes())
    content[3] ^= 0x80
    file.write_bytes(content)
    with pytest.raises(DamagedMetrics, match=r"line 1 of metrics.jsonl is not JSON"):
        read(file)
    heard: list[str] = []
    for _ in range(2):  # what was set aside before is kept, too
        file.write_bytes(content)
        restore(file, 2, checkpoint, heard.append)
    assert [p.name for p in sorted(tmp_path.glob("damaged-*"))] == ["damaged-1-metrics.jsonl", "damaged-metrics.jsonl"]
