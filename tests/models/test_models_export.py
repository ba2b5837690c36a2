"""``softmax-rnn export``: one clean folder that plain transformers opens, with a card that says what it is."""

import json

import pytest
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import softmax_rnn as sr
from softmax_rnn.cli import main
from softmax_rnn.models import load_model
from softmax_rnn.models.folders import card


def tokenizer():
    inner = Tokenizer(models.WordLevel({"<pad>": 0, **{f"w{i}": i for i in range(1, 48)}}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>")


@pytest.fixture
def run(make, tmp_path):
    """What training leaves behind, in small."""
    folder = tmp_path / "norm-nano"
    make(["norm", "taylor2"]).save_pretrained(folder / "checkpoint-10")
    tokenizer().save_pretrained(folder)
    (folder / "checkpoint-10" / "optimizer.pt").write_bytes(b"large")
    config = {"data": {"source": "sotu"}, "train": {"steps": 10}, "model": {"mechanism": "norm"}, "seed": 3}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [
        {"step": 5, "tokens": 640, "train_loss": 4.5},
        {"step": 10, "tokens": 640, "test_loss": 4.25, "event": "done"},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_run(run, ids, tmp_path, capsys):
    out = tmp_path / "to" / "give"
    assert main(["export", str(run), str(out)]) == 0
    assert "model.safetensors" in capsys.readouterr().out
    assert torch.equal(AutoModelForCausalLM.from_pretrained(out).eval()(ids).logits, load_model(run).eval()(ids).logits)
    assert AutoTokenizer.from_pretrained(out)("w3 w4")["input_ids"] == [3, 4]
    names = {p.name for p in out.iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "modeling_softmax_rnn.py", "tokenizer.json"} <= names
    assert not names & {"optimizer.pt", "metrics.jsonl", "config.yaml"}
    assert len({p.stat().st_mode for p in out.iterdir()}) == 1  # nothing is private by accident
    card = (out / "README.md").read_text()
    for part in (
        "# norm-nano",
        "`norm` (layer 0), `taylor2` (layer 1)",
        "sotu",
        "10 steps, 640 tokens (done)",
        "4.2500 nats",
    ):
        assert part in card
    assert all(str(m) in card for m in sr.SoftmaxRnnConfig.from_pretrained(out).layer_mechanisms())
    assert not any(str(tmp_path) in p.read_text() for p in out.glob("*.json"))
    assert [p.name for p in out.parent.iterdir()] == ["give"]


def test_a_card_names_the_modules_of_others(monkeypatch):
    class Squared(sr.Kernel):
        """x^2 and 1."""

        coefficients = (1.0, 0.0, 1.0)

        def text(self):
            return "1 + x^2"

    Squared.__module__, Squared.__qualname__ = "my_kernels", "Squared"
    config = sr.SoftmaxRnnConfig(vocab_size=100, num_hidden_layers=1)
    monkeypatch.setattr(config, "layer_mechanisms", lambda: [sr.Mechanism(Squared(), sr.Sum())])
    assert "the module `my_kernels`" in card(config)
    assert "| needs |" not in card(sr.SoftmaxRnnConfig(vocab_size=100, num_hidden_layers=1, mechanism="retnet"))


def test_a_patched_model(small, ids, tmp_path):
    model = sr.patch(LlamaForCausalLM(LlamaConfig(**small)).eval(), "taylor4")
    with pytest.warns(sr.MechanismWarning):
        model.save_pretrained(tmp_path / "patched")
    tokenizer().save_pretrained(tmp_path / "patched")
    assert main(["export", str(tmp_path / "patched"), str(tmp_path / "out"), "--name", "Four orders"]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# Four orders" in card
    assert str(sr.mechanism("taylor4")) in card
    assert "load_model" in card
    assert torch.equal(load_model(tmp_path / "out").eval()(ids).logits, model(ids).logits)


def test_wrong_places_get_one_sentence(run, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target, says in (
        ("full", "not an empty folder"),
        ("file", "not an empty folder"),
        ("file/below", "Cannot write to"),
    ):
        assert main(["export", str(run), str(tmp_path / target)]) == 2
        err = capsys.readouterr().err
        assert says in err
        assert err.count("\n") == 1
    assert main(["export", str(tmp_path / "no" / "such"), str(tmp_path / "out")]) == 2
    assert (tmp_path / "full" / "mine").read_text() == "mine"
    assert not (tmp_path / "out").exists()
    (tmp_path / "empty").mkdir()
    assert main(["export", str(run), str(tmp_path / "empty")]) == 0
