"""``generate --mechanism`` says what swapping did to the weights, and what to run; ``generate`` and ``export`` say that they load."""

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from softmax_rnn import cli
from softmax_rnn.cli import main

from .test_models_loading import tokenizer

COMMAND = "softmax-rnn train --model.init {} --model.mechanism {} --data.source YOUR_TEXT"


@pytest.fixture
def llama(small, tmp_path):
    folder = tmp_path / "llama"
    LlamaForCausalLM(LlamaConfig(**small | {"initializer_range": 0.3})).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def write(capsys):
    def run(model, *options, code=0):
        assert main(["generate", str(model), "--max-new-tokens", "2", *options]) == code
        return capsys.readouterr()

    return run


def test_the_rise_of_the_loss_and_what_to_run(llama, write):
    said = write(llama, "--prompt", "w3 w4 w5 w6", "--mechanism", "norm").err
    assert f"The weights of {llama} were not trained with norm: its loss on the prompt " in said
    assert COMMAND.format(llama, "norm") in said
    assert said.count("\n") == 1
    before, after = (float(part.split()[0]) for part in said.partition("from ")[2].split(" to ")[:2])
    assert before != after


def test_the_same_attention_is_not_mentioned(llama, write):
    assert write(llama, "--prompt", "w3 w4 w5 w6", "--mechanism", "softmax").err == ""
    assert write(llama, "--prompt", "w3 w4 w5 w6").err == ""


def test_a_loss_that_stays(llama, write):
    said = write(llama, "--prompt", "w3 w4 w5 w6", "--mechanism", "taylor40").err
    assert "its loss on the prompt stays at" in said


def test_without_a_prompt_the_model_begins_a_text(llama, write):
    assert write(llama).out.strip()
    assert "a longer --prompt shows by how much" in write(llama, "--mechanism", "norm").err


def test_what_cannot_be_swapped_says_how_to_train_it(llama, make, tmp_path, write):
    said = write(llama, "--prompt", "w3", "--mechanism", "gate", code=2).err
    assert "needs output_gate" in said
    assert COMMAND.format(llama, "gate") in said
    make("softmax").save_pretrained(tmp_path / "ours")
    tokenizer().save_pretrained(tmp_path / "ours")
    said = write(tmp_path / "ours", "--prompt", "w3", "--mechanism", "norm", code=2).err
    assert "with a mechanism of its own" in said
    assert COMMAND.format(tmp_path / "ours", "norm") in said


def test_models_that_our_lab_does_not_train(small, tmp_path, write):
    Qwen2ForCausalLM(Qwen2Config(**small)).save_pretrained(tmp_path / "qwen")
    tokenizer().save_pretrained(tmp_path / "qwen")
    said = write(tmp_path / "qwen", "--prompt", "w3 w4 w5", "--mechanism", "norm").err
    assert "softmax_rnn.patch" in said
    assert "model.init" not in said


def test_a_terminal_hears_that_something_loads(llama, write, tmp_path, monkeypatch):
    monkeypatch.setattr(cli.sys.stderr, "isatty", lambda: True, raising=False)
    assert "loading torch, transformers and" in write(llama, "--prompt", "w3").err
