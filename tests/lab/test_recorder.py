"""Rows, spikes, and a state that survives being cut anywhere."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softmax_rnn.lab.recorder import TIMINGS, Diverged, Progress, Recorder, is_spike, read, truncate

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


def test_rows_after_the_checkpoint_and_half_rows_are_cut(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 2, "a": 1}\n{"step": 4, "a": 2}\n{"step": 4, "event": "diverged"}\n{"step": 6, "a"')
    assert [row["step"] for row in read(file)] == [2, 4, 4]
    truncate(file, 4)
    assert file.read_text() == '{"step": 2, "a": 1}\n{"step": 4, "a": 2}\n'
    truncate(file, 0)
    assert file.read_text() == ""
    truncate(tmp_path / "none.jsonl", 0)
