"""Start from a trained model: its weights, another mechanism, and only some of it trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from work import MODEL

from softmax_rnn import UserError, cli
from softmax_rnn.lab import Run, configure, load_run, train


@pytest.fixture(scope="module")
def common(shared: Path, corpus: Path) -> dict[str, Any]:
    return {
        "data": {"source": str(corpus), "length": 16, "test_fraction": 0.1},
        "run": {"root": str(shared / "transfer"), "threads": 1},
        "quiet": True,
    }


@pytest.fixture(scope="module")
def old(common: dict[str, Any], shared: Path) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTMAX_RNN_CACHE", str(shared / "cache"))
        return train("tiny", vocab=300, overrides=yaml.safe_load(MODEL), steps=60, name="old", **common)


def weights(run: Run) -> dict[str, torch.Tensor]:
    (newest,) = sorted(run.folder.glob("checkpoint-*"))[-1:]
    return load_file(newest / "model.safetensors")


def test_the_same_mechanism_goes_on_where_the_model_was(
    old: Run, common: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("tiny", init=str(old.folder), steps=2, lr=1e-12, **common | {"quiet": False})
    assert run.last("test_loss") == pytest.approx(old.last("test_loss"), rel=1e-5)
    assert "all tensors are used" in capsys.readouterr().err


@pytest.mark.parametrize("mechanism", ["norm", "gate", "taylor2"])
def test_another_mechanism_starts_close(old: Run, common: dict[str, Any], mechanism: str) -> None:
    run = train("tiny", init=str(old.folder), mechanism=mechanism, steps=2, lr=1e-12, **common)
    fresh = train("tiny", vocab=300, overrides=yaml.safe_load(MODEL), mechanism=mechanism, steps=2, lr=1e-12, **common)
    assert run.last("test_loss") < 0.5 * (old.last("test_loss") + fresh.last("test_loss"))
    assert run.model().config.mechanism == mechanism


@pytest.mark.parametrize("which", ["attention", "new"])
def test_only_some_of_it_is_trained(old: Run, common: dict[str, Any], which: str) -> None:
    run = train("tiny", init=str(old.folder), mechanism="gate", steps=3, **common, **{"model.train": which})
    before, after = weights(old), weights(run)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    new = set(after) - set(before)
    assert new == {"model.layers.0.self_attn.out_gate_proj.weight", "model.layers.0.self_attn.out_gate_proj.bias"}
    kept = {name for name in before if ".self_attn." not in name}
    assert not changed & kept
    assert ("model.layers.0.self_attn.q_proj.weight" in changed) == (which == "attention")


def test_heads_are_brought_to_their_old_size(old: Run) -> None:
    from softmax_rnn import SoftmaxRnnConfig, SoftmaxRnnForCausalLM
    from softmax_rnn.lab.model import _heads, _record, bring_close

    source = old.model().eval()
    settings = {**source.config.to_dict(), "mechanism": "norm"}
    model = SoftmaxRnnForCausalLM(SoftmaxRnnConfig(**{k: v for k, v in settings.items() if k != "layer_types"})).eval()
    model.load_state_dict(source.state_dict(), strict=False)
    ids = torch.arange(32).view(2, 16)
    inputs, outputs = _record(source, ids)
    layer = model.model.layers[0].self_attn
    new = _heads(layer, inputs[0] | {"attention_mask": None}).detach()
    projection = layer.o_proj.weight.detach().clone()
    bring_close(model, source, ids)
    factor = (layer.o_proj.weight / projection)[0].view(new.shape[2], -1)[:, 0].detach()
    for head, a in enumerate(factor):
        error = [(outputs[0][:, :, head] - s * a * new[:, :, head]).norm().item() for s in (0.99, 1.0, 1.01)]
        assert error[1] == min(error)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"init": "nowhere/at/all"}, "does not exist"),
        ({"init": "OLD", "model.train": "new"}, "adds no parameters"),
        ({"init": "OLD", "tokenizer": {"source": "BIG"}}, "tokens and the model of --model.init"),
        ({"model.train": "new"}, "needs a trained model to start from"),
    ],
)
def test_what_is_refused(old: Run, common: dict[str, Any], tmp_path: Path, options: dict[str, Any], says: str) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({str(i): i for i in range(999)} | {"</s>": 999}, unk_token="0")).save(
        str(tmp_path / "tokenizer.json")
    )
    if options.get("init") == "OLD":
        options = options | {"init": str(old.folder)}
    if "tokenizer" in options:
        options = options | {"tokenizer": {"source": str(tmp_path / "tokenizer.json")}}
    with pytest.raises(UserError, match=says):
        train("tiny", **common, **options)


def test_the_hash_of_older_runs_stays() -> None:
    from softmax_rnn.lab.config import content_hash

    config = configure("tiny")
    plain = {"seed": 0, "model": {"mechanism": "softmax"}}
    more = {"seed": 0, "plugins": [], "model": {"mechanism": "softmax", "init": None, "train": "all"}}
    assert content_hash(plain) == content_hash(more)
    assert configure(config, init="x").hash != config.hash


def test_resuming(old: Run, common: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    folder = configure(
        "tiny", init=str(old.folder), steps=2, **{k: v for k, v in common.items() if k != "quiet"}
    ).folder
    argv = [
        "--preset",
        "tiny",
        "--model.init",
        str(old.folder),
        "--train.steps",
        "2",
        "--run.folder",
        str(folder) + "x",
    ]
    argv += ["--data.source", common["data"]["source"], "--data.length", "16", "--data.test_fraction", "0.1"]
    assert cli.main(["train", *argv, "--model.mechanism", "norm"]) == 0
    assert "Starting from" in capsys.readouterr().err
    assert load_run(str(folder) + "x").status == "done"
