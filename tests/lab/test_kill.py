"""kill -9 at any moment, then the same command again: the metrics and the weights are those of a run that nobody killed."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from work import Child, only_run, rows, tiny_on

Train = Callable[..., Child]
KILLED = -signal.SIGKILL
OPTIONS = ["--model.mechanism", "norm", "--run.save_every", "3", "--train.eval_every", "7", "--train.log_every", "2"]
WEIGHTS = Path("checkpoint-20") / "model.safetensors"


def moments(seed: int) -> list[tuple[str, int]]:
    """A random call of every function in which a kill could hurt; with fewer than 7 checkpoints of some 20 files each."""
    draw = random.Random(seed)
    most = {"step": 20, "evaluation": 3, "row": 12, "file": 24, "fsync": 100, "publish": 7, "published": 7, "remove": 5}
    return [(where, draw.randint(1, calls)) for where, calls in most.items()]


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("undisturbed")
    child = Child(
        [*tiny_on(corpus, place / "runs"), *OPTIONS], place / "log", {"SOFTMAX_RNN_CACHE": str(place / "cache")}
    )
    assert child.wait() == 0, child.output
    return only_run(place / "runs")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_again_and_again(train: Train, runs: Path, undisturbed: Path, seed: int) -> None:
    killed = 0
    for where, call in moments(seed):
        code = train(*OPTIONS, faults={f"kill at {where}": call}).wait()
        assert code in (0, KILLED)
        killed += code == KILLED
    assert killed >= 3
    last = train(*OPTIONS)
    assert last.wait() == 0, last.output
    run = only_run(runs)
    assert rows(run) == rows(undisturbed)
    assert (run / WEIGHTS).read_bytes() == (undisturbed / WEIGHTS).read_bytes()
    assert not [p.name for p in run.iterdir() if p.name.startswith((".saving", ".removing", "damaged"))]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "call"), moments(2))
def test_killed_once(train: Train, runs: Path, undisturbed: Path, where: str, call: int) -> None:
    first = train(*OPTIONS, faults={f"kill at {where}": call})
    assert first.wait() == KILLED
    second = train(*OPTIONS)
    assert second.wait() == 0, second.output
    run = only_run(runs)
    assert rows(run) == rows(undisturbed)
    assert (run / WEIGHTS).read_bytes() == (undisturbed / WEIGHTS).read_bytes()


def test_killed_from_outside_in_the_middle_of_a_checkpoint(train: Train, runs: Path) -> None:
    child = train(*OPTIONS, faults={"slow writes": None})
    while child.poll() and not list(runs.glob("*/.saving/checkpoint-3/training_args.bin")):
        pass
    child.process.kill()
    assert child.wait() == KILLED
    run = only_run(runs)
    assert (run / ".saving" / "checkpoint-3").is_dir()
    assert not list(run.glob("checkpoint-*"))
    again = train(*OPTIONS)
    assert again.wait() == 0, again.output
    assert not (run / ".saving").exists()


def test_killed_while_tokenising(train: Train, runs: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.jsonl"
    lines = [
        f'{{"text": "{" ".join(random.Random(i).choices(["so", "it", "goes", "on"], k=30))}"}}\n' for i in range(900)
    ]
    book.write_text("".join(lines))
    options = ["--data.source", str(book)]
    first = train(*options, faults={"kill at tokens": 7})  # four files per portion: in the middle of the second
    assert first.wait() == KILLED
    assert not runs.exists()
    again = train(*options)
    assert again.wait() == 0, again.output
    fresh = train(*options, env={"SOFTMAX_RNN_CACHE": str(tmp_path / "cache")}, root="fresh")
    assert fresh.wait() == 0
    assert rows(only_run(runs)) == rows(only_run(tmp_path / "fresh"))
