"""Checkpoints are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmax_rnn.files import write_atomically
from softmax_rnn.lab import folder as checkpoint


def save(run: Path, step: int, content: str = "weights") -> Path:
    folder = run / checkpoint.SAVING / f"checkpoint-{step}"
    (folder / "deep").mkdir(parents=True)
    (folder / "model").write_text(content)
    (folder / "deep" / "file").write_text("x" * 1000)
    checkpoint.publish(run, folder.name)
    return run / folder.name


def never(text: str) -> None:
    raise AssertionError(text)


def test_publish_and_find(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path, never) is None
    for step in (5, 10, 100):
        save(tmp_path, step)
    assert [checkpoint.step_of(p) for p in checkpoint.checkpoints(tmp_path)] == [5, 10, 100]
    assert checkpoint.newest(tmp_path, never) == tmp_path / "checkpoint-100"
    save(tmp_path, 100, "other weights")
    assert (tmp_path / "checkpoint-100" / "model").read_text() == "other weights"
    checkpoint.prune(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-100"]


def test_what_was_being_written_is_removed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / checkpoint.SAVING / "checkpoint-2").mkdir(parents=True)
    (tmp_path / ".removing-checkpoint-0").mkdir()
    checkpoint.clean(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-1"]


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda c: (c / "model").unlink(), "model is missing"),
        (lambda c: (c / "model").write_text("weight"), "model has 6 bytes instead of 7"),
        (lambda c: (c / "deep" / "file").write_text("y" * 1000), "the content of deep/file has changed"),
        (lambda c: (c / "manifest.json").write_text("{"), "no readable manifest.json"),
        (lambda c: (c / "manifest.json").unlink(), "no readable manifest.json"),
    ],
)
def test_damage_is_found_and_the_one_before_is_used(tmp_path: Path, harm: object, says: str) -> None:
    good, bad = save(tmp_path, 1), save(tmp_path, 2)
    harm(bad)  # type: ignore[operator]
    heard: list[str] = []
    assert checkpoint.newest(tmp_path, heard.append) == good
    assert len(heard) == 1
    assert says in heard[0]
    assert (tmp_path / "damaged-checkpoint-2").is_dir()
    assert checkpoint.newest(tmp_path, never) == good


def test_a_text_is_replaced_in_one_piece(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_atomically(file, "one")
    write_atomically(file, "two")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["two"]
