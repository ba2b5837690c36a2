"""What a kill, a full disk or a bad disk leaves behind: our own leftovers are recognised, damage is named, nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from work import Child, only_run, rows

Train = Callable[..., Child]
LEFTOVERS = [
    {"environment.json": "{}"},
    {"environment.json": ""},
    {".environment.json.new": '{"ver'},
    {".config.yaml.new": "name: nu", "environment.json": '{"data": "another"}'},
    {".lock": "", ".saving/checkpoint-5/model": "half"},
    {"metrics.jsonl": ""},
]


@pytest.mark.parametrize("left", LEFTOVERS)
def test_leftovers_of_a_first_moment_are_ours(train: Train, tmp_path: Path, left: dict[str, str]) -> None:
    folder = tmp_path / "run"
    for name, content in left.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    child = train("--run.folder", str(folder), "--train.steps", "2")
    assert child.wait() == 0, child.output
    assert rows(folder)[-1]["event"] == "done"
    assert len(json.loads((folder / "environment.json").read_text())["sessions"]) == 1


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("fault", ["kill at text", "kill at half a text", "no space for text"])
def test_a_kill_or_a_full_disk_in_the_first_moments(train: Train, runs: Path, fault: str, call: int) -> None:
    first = train("--train.steps", "2", faults={fault: call})
    assert first.wait() == (2 if fault == "no space for text" else -signal.SIGKILL)
    assert fault != "no space for text" or first.output.count("\n") == 1, first.output
    again = train("--train.steps", "2")
    assert again.wait() == 0, again.output
    assert rows(only_run(runs))[-1]["event"] == "done"


@pytest.fixture
def interrupted(train: Train, runs: Path) -> Path:
    """A run with checkpoints at 4 and 8, stopped at step 9."""
    assert train("--run.save_every", "4", faults={"kill at step": 10}).wait() == -signal.SIGKILL
    return only_run(runs)


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 0x80
    file.write_bytes(content)


HARMS: dict[str, Callable[[Path], object]] = {
    "a byte": lambda file: flip(file, 5),
    "a blank line": lambda file: file.write_text("\n" + file.read_text()),
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_text(""),
}


@pytest.mark.parametrize("harm", HARMS)
def test_damaged_metrics_are_restored_from_the_checkpoint(
    train: Train, runs: Path, interrupted: Path, harm: str
) -> None:
    whole = train("--run.save_every", "4", root="whole")
    file = interrupted / "metrics.jsonl"
    HARMS[harm](file)
    damaged = file.read_bytes() if file.exists() else b""
    child = train("--run.save_every", "4")
    assert child.wait() == 0, child.output
    assert f"{file} is damaged" in child.output
    assert whole.wait() == 0
    assert rows(interrupted) == rows(only_run(runs.with_name("whole")))
    aside = interrupted / "damaged-metrics.jsonl"
    assert aside.read_bytes() == damaged if damaged else not aside.exists()


def test_a_finished_run_is_mended_without_training(train: Train, runs: Path) -> None:
    assert train().wait() == 0
    run = only_run(runs)
    before = rows(run)
    flip(run / "metrics.jsonl", 200)
    child = train(faults={"kill at step": 1})
    assert child.wait() == 0, child.output
    assert "metrics.jsonl is damaged (line " in child.output
    assert rows(run) == before


@pytest.mark.parametrize("name", ["config.yaml", "environment.json"])
def test_other_damaged_files_are_one_sentence(train: Train, interrupted: Path, name: str) -> None:
    file = interrupted / name
    for content in ("", "[", "3", "\x00", "a: &a [*a]"):
        file.write_text(content)
        child = train("--run.save_every", "4")
        assert child.wait() == 2, child.output
        assert name in child.output
        assert child.output.count("\n") == 1
        assert f"rename it to damaged-{name}" in child.output.replace("Rename", "rename")
        assert file.read_text() == content
    file.rename(file.with_name(f"damaged-{name}"))
    child = train("--run.save_every", "4")
    assert child.wait() == 0, child.output


@pytest.mark.parametrize("manifest", ["[]", "{", '{"model": 3}', '{"model": {}}', "null"])
def test_a_damaged_manifest_is_a_damaged_checkpoint(tmp_path: Path, manifest: str) -> None:
    from softmax_rnn.lab import folder

    (tmp_path / "checkpoint-3").mkdir()
    (tmp_path / "checkpoint-3" / "manifest.json").write_text(manifest)
    heard: list[str] = []
    assert folder.newest(tmp_path, heard.append) is None
    assert "no readable manifest.json" in heard[0]


def test_a_damaged_cache_is_made_again(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from softmax_rnn.lab.data import DataConfig, prepare
    from softmax_rnn.lab.tokenizer import TokenizerConfig

    monkeypatch.setenv("SOFTMAX_RNN_CACHE", str(tmp_path))
    config = DataConfig(str(corpus), length=16, test_fraction=0.1), TokenizerConfig("bpe", 300)
    whole = prepare(*config, quiet=True).train.tokens.stream.copy()
    (tokens,) = (p for p in (tmp_path / "tokens").iterdir() if p.is_dir())
    (tokenizer,) = (tmp_path / "tokenizers").glob("*.json")
    for harm in (
        lambda: os.truncate(tokens / "train.stream", 100),
        lambda: (tokens / "about.json").write_text("{"),
        lambda: (tokens / "about.json").unlink(),
        lambda: (tokens / "test.ends").unlink(),
        lambda: tokenizer.write_text(tokenizer.read_text()[:100]),
    ):
        harm()
        assert (prepare(*config, quiet=True).train.tokens.stream == whole).all()
    partial = tokens.with_name(f"{tokens.name}.partial")
    for progress in ("", "{", "[]", '{"documents": 300, "tokens": 9, "sizes": {"train.stream": 10000000}}'):
        shutil.rmtree(tokens)
        partial.mkdir()
        (partial / "progress.json").write_text(progress)
        assert (prepare(*config, quiet=True).train.tokens.stream == whole).all()


def test_a_full_cache_disk_is_one_sentence(train: Train, small_disk: Path) -> None:
    child = train(env={"SOFTMAX_RNN_CACHE": str(small_disk)}, faults={"file limit": 1000})
    assert child.wait() == 2, child.output
    assert child.output.count("\n") == 1, child.output
    assert "set SOFTMAX_RNN_CACHE to another folder" in child.output
