"""The command: what it writes, and one sentence for everything it cannot do."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizerFast,
)

import softmax_rnn as sr
from softmax_rnn.microscope import main, results

from .conftest import ONE_LAYER

WORDS = ["the", "sun", "is", "a", "star", "and", "earth", "goes", "around", "it", "once", "year", "while", "moon"]


def save_with_tokenizer(model: Any, folder: Path) -> str:
    words = {w: i for i, w in enumerate(["[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    order = torch.randint(len(WORDS), (300,), generator=torch.Generator().manual_seed(3)).tolist()
    path.write_text(" ".join(WORDS[i] for i in order))
    return str(path)


@pytest.fixture
def folder(llama: Any, tmp_path: Path) -> str:
    return save_with_tokenizer(llama, tmp_path / "llama")


QUICK = ["--orders", "16", "--max-tokens", "64", "--layer-tokens", "16", "--quiet"]


@pytest.mark.slow
def test_a_decoder(folder: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main([folder, "--text", text, "--out", str(out), *QUICK]) == 0
    said = capsys.readouterr().out
    assert "Keys less a learned constant: the median head needs" in said
    assert said.endswith("index.html\n")
    found = json.loads((out / "inspection.json").read_text())
    assert found["tokens"] == 64
    assert found["calibration"] == "text.txt, after the inspected part, 64 tokens"
    assert found["command"].startswith("softmax-rnn inspect ")
    assert (out / "calibration.safetensors").exists()


def test_an_encoder(bert: Any, text: str, tmp_path: Path) -> None:
    where = save_with_tokenizer(bert, tmp_path / "bert")
    out = tmp_path / "out"
    assert main([where, "--text", text, "--out", str(out), "--center", "none", *QUICK]) == 0
    found = json.loads((out / "inspection.json").read_text())
    assert (found["metric"], found["model_type"]) == ("cosine", "bert")
    assert list(found["needed"]) == ["none"]


def test_a_run_that_cannot_be_centred_says_so(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = sr.SoftmaxRnnConfig(**ONE_LAYER, mechanism="linear_elu")
    where = save_with_tokenizer(sr.SoftmaxRnnForCausalLM(config), tmp_path / "run" / "checkpoint-20")
    assert main([str(Path(where).parent), "--text", text, "--out", str(tmp_path / "out"), *QUICK]) == 0
    assert "left out" in capsys.readouterr().err


def refused(*argv: str) -> str:
    with pytest.raises((sr.UserError, sr.MechanismError)) as caught:
        main(list(argv))
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_texts_that_will_not_do(folder: str, text: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    bad = tmp_path / "bad.txt"
    rest = ["--out", str(out), *QUICK]
    bad.write_text("")
    assert "is empty" in refused(folder, "--text", str(bad), *rest)
    bad.write_text(" \n")
    assert "is empty" in refused(folder, "--text", str(bad), *rest)
    bad.write_text("the sun is a star")
    assert "too short: 5 tokens" in refused(folder, "--text", str(bad), *rest)
    assert "too short" in refused(folder, "--text", text, "--calibrate", str(bad), *rest)
    bad.write_bytes(b"\xff\xfe\x00\x01" * 20)
    assert "not text" in refused(folder, "--text", str(bad), *rest)
    assert "Cannot read" in refused(folder, "--text", str(tmp_path / "none.txt"), *rest)
    bad.write_text("the sun is a star " * 5)
    assert "--calibrate" in refused(folder, "--text", str(bad), "--center", "mean", *rest)
    assert not out.exists()


def test_models_that_will_not_do(text: str, tmp_path: Path) -> None:
    rest = ["--text", text, "--out", str(tmp_path / "out"), *QUICK]
    bloom = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4))
    assert "'bloom' models" in refused(save_with_tokenizer(bloom, tmp_path / "bloom"), *rest)
    mamba = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4))
    assert "'mamba' models" in refused(save_with_tokenizer(mamba, tmp_path / "mamba"), *rest)
    bare = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=0))
    assert "none of the modules" in refused(save_with_tokenizer(bare, tmp_path / "bare"), *rest)
    assert "does not exist" in refused(str(tmp_path / "no" / "such" / "folder"), *rest)
    (tmp_path / "empty").mkdir()
    assert "no checkpoint" in refused(str(tmp_path / "empty"), *rest)
    assert not (tmp_path / "out").exists()


def test_options_that_will_not_do(folder: str, text: str, tmp_path: Path) -> None:
    assert "must be a whole number from 1" in refused(folder, "--text", text, "--max-tokens", "0")
    assert "to 128" in refused(folder, "--text", text, "--orders", "500", "--out", str(tmp_path / "out"))
    assert "is a file" in refused(folder, "--text", text, "--out", text)
    assert "--text" in refused(folder)
    assert "softmax-rnn inspect MODEL --text FILE" in refused("--text", text)


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(
    folder: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softmax_rnn.microscope.open_model", lambda name: pytest.fail("the work had begun"))
    assert "Cannot write to" in refused(folder, "--text", text, "--out", f"{text}/out", *QUICK)

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    out = tmp_path / "new" / "out"
    assert "No space left" in refused(folder, "--text", text, "--out", str(out), *QUICK)
    assert not out.parent.exists()


def test_what_is_made_again_must_be_there(tmp_path: Path) -> None:
    for option in ("--redraw", "--compare"):
        assert "no inspection in" in refused(option, str(tmp_path))
    (tmp_path / "inspection.json").write_text("{")
    for option in ("--redraw", "--compare"):
        assert "holds no whole inspection" in refused(option, str(tmp_path))


def test_the_sentences_are_plain() -> None:
    needs = {"median": None, "model": 24, "share_within_10": 0.03, "largest": None, "unreached_heads": 1}
    summary = {
        "orders": [0, 12],
        "tokens": 64,
        "layers": 2,
        "heads": 4,
        "metric": "loss",
        "untouched": 3.0,
        "needed": {"none": needs},
    }
    assert results.sentences(summary)[1] == (
        "Keys as they are: the median head needs an order above 12, the whole model order 24; order 10 is enough for 3% of the heads."
    )
