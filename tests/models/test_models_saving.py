"""What a folder says about its model: patched models come back patched, foreign code is not run, configs stay true."""

import copy
import importlib
import json

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import softmax_rnn as sr
from softmax_rnn.cli import main
from softmax_rnn.models import SoftmaxRnnConfig, SoftmaxRnnForCausalLM, load_model, load_tokenizer, restore


@pytest.fixture
def llama(small):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**small, "initializer_range": 0.3})).eval()


def centers():
    return {1: torch.randn(2, 8, generator=torch.Generator().manual_seed(1))}


@pytest.mark.parametrize("center", [None, centers()], ids=["plain", "centred"])
def test_a_patched_model_comes_back_patched(llama, ids, tmp_path, center):
    own = llama(ids).logits
    patched = sr.patch(llama, "taylor4", center=center)(ids).logits
    with pytest.warns(sr.MechanismWarning, match="plain transformers does not know of it") as said:
        llama.save_pretrained(tmp_path)
    assert "\n" not in str(said[0].message)
    assert torch.equal(load_model(tmp_path).eval()(ids).logits, patched)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(plain(ids).logits, own)
    assert torch.equal(restore(plain)(ids).logits, patched)
    assert restore(plain) is plain


def test_a_copy_and_an_unpatched_model_say_what_they_are(llama, ids, tmp_path):
    twin = copy.deepcopy(sr.patch(llama, "norm"))
    expected = twin(ids).logits
    with pytest.warns(sr.MechanismWarning):
        twin.save_pretrained(tmp_path / "twin")
    assert torch.equal(load_model(tmp_path / "twin").eval()(ids).logits, expected)
    sr.unpatch(llama).save_pretrained(tmp_path / "own")  # warnings are errors here
    assert "softmax_rnn" not in json.loads((tmp_path / "own" / "config.json").read_text())


def test_encoders_too(ids, tmp_path):
    from softmax_rnn.microscope import open_model

    config = BertConfig(vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    model = sr.patch(BertModel(config).eval(), "norm")
    with pytest.warns(sr.MechanismWarning):
        model.save_pretrained(tmp_path)
    loaded, _ = open_model(str(tmp_path))
    assert torch.equal(loaded(ids).last_hidden_state, model(ids).last_hidden_state)


@pytest.mark.parametrize("record", [{}, 3, {"mechanism": {"kernel": "exp"}}, {"mechanism": "norm", "centers": [1]}])
def test_a_damaged_record_gets_one_sentence(llama, tmp_path, record):
    llama.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "softmax_rnn": record}))
    with pytest.raises(sr.MechanismError) as error:
        load_model(tmp_path)
    assert "\n" not in str(error.value)


CODE = """
import pathlib
pathlib.Path({marker!r}).write_text("was run")
from transformers import PretrainedConfig, LlamaForCausalLM, LlamaConfig, PreTrainedTokenizerFast
class TheirConfig(LlamaConfig):
    model_type = "theirs"
class TheirModel(LlamaForCausalLM):
    config_class = TheirConfig
class TheirTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def foreign(llama, tmp_path):
    """A folder whose model, config and tokenizer are Python files that lie in it."""
    from tokenizers import Tokenizer, models

    folder, marker = tmp_path / "foreign", tmp_path / "was_run"
    llama.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    ).save_pretrained(folder)
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | {"model_type": "theirs", "architectures": ["TheirModel"]}
    fields["auto_map"] = {"AutoConfig": "code.TheirConfig", "AutoModelForCausalLM": "code.TheirModel"}
    path.write_text(json.dumps(fields))
    path = folder / "tokenizer_config.json"
    fields = json.loads(path.read_text()) | {"tokenizer_class": "TheirTokenizer"}
    fields["auto_map"] = {"AutoTokenizer": [None, "code.TheirTokenizer"]}
    path.write_text(json.dumps(fields))
    (folder / "code.py").write_text(CODE.format(marker=str(marker)))
    return folder, marker


def test_foreign_code_is_not_run(foreign, monkeypatch, capsys):
    folder, marker = foreign
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked a question"))
    for load in (load_model, load_tokenizer):
        with pytest.raises(sr.UserError, match="--trust-remote-code"):
            load(folder)
    assert main(["generate", str(folder), "--prompt", "y"]) == 2
    assert main(["inspect", str(folder), "--text", str(folder / "config.json"), "--out", str(folder / "out")]) == 2
    assert capsys.readouterr().err.count("trust") >= 1
    assert not marker.exists()


def test_foreign_code_is_run_where_a_flag_says_so(foreign, monkeypatch, tmp_path):
    folder, marker = foreign
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    assert type(load_model(folder, trust_remote_code=True)).__name__ == "TheirModel"
    assert marker.exists()


def test_ours_from_a_folder_of_llamas(llama, ids, tmp_path):
    """It is ours whatever the folder calls itself: patch says so, and saving it keeps the mechanism."""
    llama.save_pretrained(tmp_path / "llama")
    model = SoftmaxRnnForCausalLM.from_pretrained(tmp_path / "llama", mechanism="norm").eval()
    assert model.config.model_type == "softmax_rnn"
    with pytest.raises(sr.MechanismError, match="has a mechanism already"):
        sr.patch(model, "softmax")
    model.save_pretrained(tmp_path / "ours")
    assert torch.equal(load_model(tmp_path / "ours").eval()(ids).logits, model(ids).logits)


def test_layer_types_of_other_configs_are_left_behind(small):
    fields = {**LlamaConfig(**small).to_dict(), "layer_types": ["full_attention", "full_attention"]}
    for config in (SoftmaxRnnConfig.from_dict(fields), SoftmaxRnnConfig(**small, layer_types=["full_attention"] * 2)):
        assert config.layer_types == ["full_attention"] * 2
        config.mechanism = "taylor2"
        assert config.layer_types != ["full_attention"] * 2


def test_usual_implementations_are_accepted_with_a_warning(make, small, ids, tmp_path):
    model = make("norm")
    model.save_pretrained(tmp_path)
    for name in ("sdpa", "eager"):
        with pytest.warns(sr.MechanismWarning, match="has no effect"):
            loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=name).eval()
        assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_a_mechanism_changed_afterwards_is_refused(make, ids):
    model = make("softmax")
    model.config.mechanism = "taylor2"
    for call in (lambda: model(ids), lambda: model.generate(ids, max_new_tokens=2)):
        with pytest.raises(sr.MechanismError, match="changed after the model was built"):
            call()
    model.config.mechanism = "softmax"
    model(ids)


def test_patch_is_a_function_everywhere():
    models = importlib.import_module("softmax_rnn.models")
    assert models.patch is sr.patch
    assert callable(models.patch)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("softmax_rnn.models.patch")
