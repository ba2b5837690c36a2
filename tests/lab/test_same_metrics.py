"""The same configuration gives the numbers it gave in edition 0.1.0.

``metrics_of_0.1.0.json`` was recorded with that edition (commit 2d5385f): preset tiny, 40 steps, CPU, one thread. Two makes of CPU
round differently, and 40 steps of Adam multiply that: losses agree to 1e-4 of themselves, gradient norms to 1e-2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from softmax_rnn.lab.config import parse
from softmax_rnn.lab.train import train

RECORDED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("metrics_of_0.1.0.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("case", RECORDED)
def test_fixed_seed_metrics(case: str, tmp_path: Path) -> None:
    expected = RECORDED[case]
    common = ["--preset", "tiny", "--train.steps", "40", "--run.threads", "1", "--run.device", "cpu"]
    ended = train(parse([*common, "--run.root", str(tmp_path), *expected["options"]]), quiet=True)
    assert ended.folder.name == expected["folder"]  # the content hash: runs of the first edition are found again
    rows = [json.loads(line) for line in (ended.folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["tokens"] == expected["tokens"]
    for key, tolerance in (("train_loss", 1e-4), ("test_loss", 1e-4), ("grad_norm", 1e-2)):
        assert [row[key] for row in rows if key in row] == pytest.approx(expected[key], rel=tolerance), key
