"""A run begins, goes on, ends; and stops with a sentence when it must."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from work import Child, assert_close, only_run, rows

Train = Callable[..., Child]


def test_a_run_is_a_folder_with_everything(train: Train, runs: Path) -> None:
    child = train("--model.mechanism", "norm")
    assert child.wait() == 0, child.output
    run = only_run(runs)
    assert run.name.startswith("norm-corpus-")
    assert f"{run} is done: 20 steps" in child.output
    metrics = rows(run)
    assert [r["step"] for r in metrics if "train_loss" in r] == list(range(2, 21, 2))
    assert [r["step"] for r in metrics if "test_loss" in r] == [10, 20]
    assert set(metrics[0]) == {"step", "train_loss", "learning_rate", "grad_norm", "spikes", "tokens"}
    assert metrics[-1] == {"step": 20, "event": "done", "tokens": 20 * 4 * 16}
    environment = json.loads((run / "environment.json").read_text())
    assert {"versions", "git", "seed", "hardware", "data", "sessions"} <= set(environment)
    files = {p.name for p in (run / "checkpoint-20").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "optimizer.pt", "manifest.json"} <= files
    assert "training_args.bin" not in files
    assert len({p.stat().st_mode for p in (run / "checkpoint-20").iterdir()}) == 1  # nothing is private by accident
    again = train("--model.mechanism", "norm")
    assert again.wait() == 0
    assert "already done" in again.output
    assert rows(run) == metrics


def test_the_checkpoint_opens_with_auto_classes(train: Train, runs: Path) -> None:
    assert train("--model.mechanism", "gate").wait() == 0
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import softmax_rnn.models  # noqa: F401

    checkpoint = only_run(runs) / "checkpoint-20"
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert model.config.mechanism == "gate"
    assert model.config.eos_token_id == AutoTokenizer.from_pretrained(checkpoint).eos_token_id


def test_ctrl_c_saves_and_says_how_to_go_on(train: Train, runs: Path) -> None:
    whole = train(root="whole")
    stopped = train(faults={"interrupt": 7})
    assert stopped.wait() == 130, stopped.output
    assert "Stopped at step 7 of 20 and saved. To continue: softmax-rnn train --preset tiny" in stopped.output
    run = only_run(runs)
    assert (run / "checkpoint-7").is_dir()
    assert train().wait() == 0
    assert whole.wait() == 0
    assert rows(run) == rows(only_run(runs.with_name("whole")))
    sessions = json.loads((run / "environment.json").read_text())["sessions"]
    assert [s["from_step"] for s in sessions] == [0, 7]


def test_micro_batches_change_nothing_but_rounding(train: Train, runs: Path) -> None:
    one, two = train(root="one"), train("--run.micro_batch", "2", root="two")
    assert (one.wait(), two.wait()) == (0, 0)
    assert_close(rows(only_run(runs.with_name("one"))), rows(only_run(runs.with_name("two"))))


@pytest.mark.parametrize("options", [["--data.batching", "documents"], ["--train.precision", "bf16"]])
def test_other_ways_to_train(train: Train, runs: Path, options: list[str]) -> None:
    child = train(*options)
    assert child.wait() == 0, child.output
    losses = [r["train_loss"] for r in rows(only_run(runs)) if "train_loss" in r]
    assert losses[-1] < losses[0]


def test_a_folder_of_another_configuration_is_refused(train: Train, tmp_path: Path) -> None:
    folder = str(tmp_path / "mine")
    assert train("--run.folder", folder).wait() == 0
    before = (tmp_path / "mine" / "config.yaml").read_text()
    other = train("--run.folder", folder, "--train.lr", "0.5")
    assert other.wait() == 2
    assert "belongs to a run with another configuration (different: train.lr)" in other.output
    assert (tmp_path / "mine" / "config.yaml").read_text() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    refused = train("--run.folder", str(tmp_path / "other"))
    assert refused.wait() == 2
    assert "is not a run and holds thesis.tex" in refused.output
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_two_processes_do_not_train_in_one_folder(train: Train, runs: Path) -> None:
    first = train(faults={"slow writes": None})
    while first.poll() and not list(runs.glob("*/.saving/*/training_args.bin")):
        pass
    second = train()
    assert second.wait() == 2
    assert "Another process is training in" in second.output
    first.process.kill()


def test_changed_text_is_noticed(train: Train, tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text("to be or not to be " * 400)
    held_out = tmp_path / "more.jsonl"
    held_out.write_text("".join(json.dumps({"text": f"line {i} of many words to hold out"}) + "\n" for i in range(60)))
    options = ["--data.source", str(tmp_path / "*.*[tl]"), "--name", "book"]
    assert train(*options, faults={"interrupt": 3}).wait() == 130
    text.write_text("that is the question " * 400)
    child = train(*options)
    assert child.wait() == 2
    assert "is no longer what" in child.output


def test_loss_that_is_not_finite_stops_the_run(train: Train, runs: Path) -> None:
    child = train("--run.patience", "3", "--run.save_every", "4", faults={"poison": 7})
    assert child.wait() == 1
    run = only_run(runs)
    assert "has not been finite for 3 steps" in child.output
    assert f"The last good checkpoint is {run / 'checkpoint-4'}" in child.output
    assert rows(run)[-1]["event"] == "diverged"
    healthy = train("--run.save_every", "4")
    assert healthy.wait() == 0, healthy.output


@pytest.mark.parametrize("fault", [{"no space": 3}, {"file limit": 20_000}])
def test_a_full_disk_leaves_the_last_checkpoint(train: Train, runs: Path, fault: dict) -> None:
    assert train("--run.save_every", "5", faults={"interrupt": 5}).wait() == 130
    run = only_run(runs)
    before = {p.name: p.read_bytes() for p in (run / "checkpoint-5").iterdir()}
    child = train("--run.save_every", "5", faults=fault)
    assert child.wait() == 1, child.output
    assert f"The last good checkpoint is {run / 'checkpoint-5'}. Make room, then run the same command." in child.output
    assert "Traceback" not in child.output
    assert {p.name: p.read_bytes() for p in (run / "checkpoint-5").iterdir()} == before
    assert train("--run.save_every", "5").wait() == 0
    assert not (run / ".saving").exists()


def test_a_disk_that_is_really_full(train: Train, small_disk: Path) -> None:
    child = train("--run.save_every", "5", "--run.keep", "20", "--run.root", str(small_disk))
    assert child.wait() == 1, child.output
    run = only_run(small_disk)
    saved = sorted((p.name for p in run.glob("checkpoint-*")), key=lambda name: int(name.rpartition("-")[2]))
    assert "cannot write" in child.output
    assert "Traceback" not in child.output, child.output
    assert f"The last good checkpoint is {run / saved[-1]}" in child.output
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    again = train("--run.save_every", "5", "--run.keep", "20", "--run.root", str(small_disk))
    assert again.wait() == 0, again.output


def test_an_unwritable_folder(train: Train, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    child = train("--run.root", str(tmp_path / "file" / "runs"))
    assert child.wait() == 2
    assert "Cannot write to" in child.output
    assert child.output.count("\n") == 1


def test_a_read_only_disk(train: Train, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    child = train("--run.root", str(small_disk))
    assert child.wait() == 2
    assert "Read-only file system" in child.output


def test_a_damaged_checkpoint_is_set_aside(train: Train, runs: Path) -> None:
    whole = train(root="whole")
    assert train("--run.save_every", "4", faults={"interrupt": 9}).wait() == 130
    run = only_run(runs)
    weights = run / "checkpoint-9" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    child = train("--run.save_every", "4")
    assert child.wait() == 0, child.output
    assert "checkpoint-9 is damaged (the content of model.safetensors has changed)" in child.output
    assert whole.wait() == 0
    assert rows(run) == rows(only_run(runs.with_name("whole")))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        *(
            (["--run.device", device], f"--run.device {device}: torch finds no such device")
            for device, there in (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available()))
            if not there
        ),
        (["--run.tracker", "wandb"], "--run.tracker wandb needs the package wandb: pip install wandb"),
        (["--run.micro_batch", "3"], "run.micro_batch 3 must divide the 4 rows of each process"),
        (["--run.sharded", "true"], "run.sharded needs several processes"),
        (["--model.size", "huge"], "Unknown model size 'huge'"),
        (["--model.overrides", "{hidden: 3}"], "model.overrides has 'hidden'"),
        (["--model.overrides", "{hidden_size: 15, num_attention_heads: 2}"], "The model cannot be built"),
        (["--data.length", "100000"], "is smaller than one row of 100000 tokens"),
        (["--data.source", "/nowhere/at/all.txt"], "No corpus '/nowhere/at/all.txt'"),
        (["--model.mechanism", "sofmax"], "Unknown mechanism 'sofmax': did you mean softmax"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(
    train: Train, runs: Path, options: list[str], sentence: str
) -> None:
    child = train(*options)
    assert child.wait() == 2
    assert sentence in child.output
    assert child.output.count("\n") == 1, child.output
    assert not runs.exists()


@pytest.mark.slow
def test_compiled_training_gives_the_same_losses_and_says_how_long_it_compiled(train: Train, runs: Path) -> None:
    plain, compiled = train(root="plain"), train("--run.compile", "true")
    assert plain.wait() == 0, plain.output
    assert compiled.wait() == 0, compiled.output
    assert "compiling: the first step takes long" in compiled.output
    assert "compiled: the first step took" in compiled.output
    run = only_run(runs)
    assert run.name == only_run(runs.parent / "plain").name  # how a run is computed is not what it is
    metrics = rows(run)
    assert [r["step"] for r in metrics if "compile_seconds" in r] == [2]
    for here, there in zip(metrics, rows(only_run(runs.parent / "plain")), strict=True):
        assert here.get("train_loss", 0) == pytest.approx(there.get("train_loss", 0), abs=1e-4)
        assert here.get("test_loss", 0) == pytest.approx(there.get("test_loss", 0), abs=1e-4)


def test_compiling_needs_a_compiler(train: Train, runs: Path) -> None:
    child = train("--run.compile", "true", env={"CXX": "no-such-compiler"})
    assert child.wait() == 2
    assert "--run.compile needs a C++ compiler, and no-such-compiler is not there" in child.output
    assert not runs.exists()
