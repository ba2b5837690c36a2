"""Configuration: presets, files, options, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from softmax_rnn import UserError
from softmax_rnn.errors import MechanismError
from softmax_rnn.lab.config import RECIPES, from_dict, parse, recipe, to_yaml


def test_options_win_over_files_over_presets(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("train: {steps: 7, lr: 1e-3}\nmodel: {mechanism: gate}\n")
    config = parse(["--preset", "tiny", "--config", str(file), "--model.mechanism", "norm"])
    assert (config.train.steps, config.train.lr, config.model.mechanism) == (7, 1e-3, "norm")
    assert config.train.batch == recipe("tiny").train.batch
    file.write_text("preset: paper\nseed: 3\n")
    assert parse(["--config", str(file)]) == replace(recipe("paper"), seed=3)


@pytest.mark.parametrize("name", RECIPES)
def test_a_configuration_survives_yaml(name: str, tmp_path: Path) -> None:
    config = recipe(name)
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    assert parse(["--config", str(file)]) == config
    assert from_dict(yaml.safe_load(file.read_text())).hash == config.hash


def test_mechanisms_may_be_written_out() -> None:
    from softmax_rnn import mechanism

    config = from_dict({"model": {"mechanism": mechanism("taylor4").to_dict()}})
    assert config.model.value() == mechanism("taylor4")
    assert config.folder.name.startswith("custom-stdlib-")


def test_the_papers_recipe() -> None:
    """Appendix D, and what the authors' script adds to it."""
    config = recipe("paper")
    t = config.train
    assert (t.batch, t.lr, t.warmup, t.steps, t.schedule_steps) == (36, 1e-4, 10_000, 100_000, 1_000_000)
    assert (t.beta1, t.beta2, t.eps, t.weight_decay, t.precision) == (0.9, 0.999, 1e-7, 0.01, "bf16")
    assert (config.data.length, config.data.test_fraction, config.data.batching) == (1024, 0.001, "documents")
    assert (config.tokenizer.source, t.eval_every) == ("meta-llama/Llama-2-7b-hf", 10_000)
    from softmax_rnn.models import SIZES

    small, large = SIZES[config.model.size], SIZES[recipe("paper-large").model.size]
    assert list(small.values()) == [1024, 2048, 16, 20]
    assert list(large.values()) == [3072, 6144, 16, 20]
    assert recipe("paper-long").data.length == 4096


@pytest.mark.parametrize(
    ("mechanism", "clip"), [("softmax", 0), ("norm", 0), ("gate", 1), ("in_gate", 1), ("norm_post_gate", 1)]
)
def test_only_gated_mechanisms_are_clipped(mechanism: str, clip: float) -> None:
    assert from_dict({"model": {"mechanism": mechanism}}, "paper").clip == clip
    assert from_dict({"model": {"mechanism": mechanism}, "train": {"clip": 0.5}}, "paper").clip == 0.5


def test_the_hash_covers_what_is_computed_and_nothing_else() -> None:
    base = recipe("tiny")
    same = [{"run": {"root": "elsewhere"}}, {"run": {"workers": 2, "sharded": True, "micro_batch": 2}}, {"name": "x"}]
    other = [{"seed": 1}, {"train": {"lr": 0.1}}, {"model": {"mechanism": "norm"}}, {"data": {"length": 32}}]
    assert {from_dict(options, "tiny").hash for options in same} == {base.hash}
    assert len({from_dict(options, "tiny").hash for options in other} | {base.hash}) == 5
    assert str(from_dict({"name": "mine"}, "tiny").folder) == f"runs/mine-{base.hash}"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--nope", "3"], "unrecognized arguments: --nope"),
        (["--train.nope", "3"], "--train.nope"),
        (["--train.steps", "many"], "train.steps"),
        (["--train.steps", "-1"], "train.steps must be from 1 to 1,000,000,000, got -1"),
        (["--train.clip", "often"], "train.clip"),
        (["--data.batching", "heaps"], "data.batching"),
        (["--data.test_fraction", "2"], "data.test_fraction must be between 0 and 1"),
        (["--tokenizer.vocab", "10"], "tokenizer.vocab must be from 257"),
        (["--train.steps", "5", "--train.schedule_steps", "3"], "train.schedule_steps (3) must not be below"),
        (["--train.beta1", "1"], "train.beta1"),
        (["--name", "a/b"], "name may have up to 200 letters"),
        (["--preset", "enormous"], "Unknown preset 'enormous'"),
        (["--config", "no/such/file.yaml"], "Cannot read no/such/file.yaml: No such file or directory"),
        (["--model.mechanism", "sofmax"], "did you mean softmax"),
        (["--model.mechanism", "{kernel: {type: Exp}}"], "denominator"),
    ],
)
def test_wrong_options_are_one_line_and_code_2(argv: list[str], says: str, refused: Callable[..., str]) -> None:
    assert says in refused("train", *argv)


@pytest.mark.parametrize(
    ("text", "says"),
    [("trane: {steps: 3}", "trane"), ("train: {stepz: 3}", "stepz"), ("train: [1]", "train"), ("a: [", ""), ("7", "")],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises((UserError, MechanismError)) as caught:
        parse(["--config", str(file)])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_print_config(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse(["--preset", "tiny", "--model.mechanism", "norm", "--print-config"])
    assert left.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["model"]["mechanism"] == "norm"
    assert from_dict(printed, "tiny").train == recipe("tiny").train
