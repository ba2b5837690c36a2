"""Two processes on gloo: the same losses as one, sharded or not, and a run that changes its number of processes on the way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import work
from safetensors.torch import load_file
from work import Child, assert_close, only_run, rows

Train = Callable[..., Child]
OPTIONS = ["--run.save_every", "6", "--train.eval_every", "8", "--model.mechanism", "gate"]


@pytest.fixture
def two(corpus: Path, tmp_path: Path) -> Callable[..., list[int]]:
    """``train`` with two processes; returns their exit codes."""

    def start(*options: str, root: str = "runs", faults: dict[str, Any] | None = None) -> list[int]:
        argv = work.tiny_on(corpus, tmp_path / root)
        children = work.ranks(2, [*argv, *options], tmp_path / f"{root}.log", faults)
        return [child.wait() for child in children]

    return start


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra", [[], ["--run.micro_batch", "1"], ["--data.batching", "documents"], ["--run.sharded", "true"]]
)
def test_two_processes_give_the_curve_of_one(train: Train, two: Any, tmp_path: Path, extra: list[str]) -> None:
    same = [] if "--run.sharded" in extra else extra
    one = train(*OPTIONS, *same, root="one")
    assert two(*OPTIONS, *extra, root="two") == [0, 0]
    assert one.wait() == 0
    a, b = only_run(tmp_path / "one"), only_run(tmp_path / "two")
    assert a.name == b.name
    assert_close(rows(a), rows(b))
    x, y = (load_file(run / "checkpoint-20" / "model.safetensors") for run in (a, b))
    assert x.keys() == y.keys()
    assert all(x[k].shape == y[k].shape and (x[k] - y[k]).abs().max() < 1e-5 for k in x)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["one-two", "two-one", "one-sharded", "sharded-one", "sharded-two"])
def test_a_run_may_change_its_processes(train: Train, two: Any, tmp_path: Path, order: str) -> None:
    def session(kind: str, faults: dict[str, int] | None) -> list[int]:
        if kind == "one":
            return [train(*OPTIONS, faults=faults).wait()]
        return two(*OPTIONS, *(["--run.sharded", "true"] if kind == "sharded" else []), faults=faults)

    whole = train(*OPTIONS, root="whole")
    first, second = order.split("-")
    assert set(session(first, {"interrupt": 9})) == {130}
    assert set(session(second, None)) == {0}
    assert whole.wait() == 0
    assert_close(rows(only_run(tmp_path / "runs")), rows(only_run(tmp_path / "whole")))


@pytest.mark.slow
def test_sharded_means_sharded(two: Any) -> None:
    assert two("--run.sharded", "true", "--model.mechanism", "in_out_gate_layer", faults={"expect shards": None}) == [
        0,
        0,
    ]


@pytest.mark.slow
def test_every_gated_parameter_is_reduced(two: Any) -> None:
    """A gate that cancels before a norm gets a zero gradient, not none: DDP would wait for it for ever."""
    assert two("--model.mechanism", "norm_pre_gate", "--train.steps", "4") == [0, 0]


@pytest.mark.slow
def test_torchrun(train: Train, corpus: Path, tmp_path: Path) -> None:
    one = train(*OPTIONS, root="one")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(work.free_port()),
    ]
    argv = work.tiny_on(corpus, tmp_path / "two")
    done = subprocess.run(
        [*command, "-m", "softmax_rnn", "train", *argv, *OPTIONS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is done") == 1
    assert one.wait() == 0
    assert_close(rows(only_run(tmp_path / "one")), rows(only_run(tmp_path / "two")))


def test_a_batch_that_cannot_be_dealt_out(two: Any, tmp_path: Path) -> None:
    assert two("--train.batch", "5") == [2, 2]
    assert "train.batch 5 cannot be dealt out evenly to 2 processes" in (tmp_path / "runs.log.0").read_text()
    assert (tmp_path / "runs.log.1").read_text() == ""
