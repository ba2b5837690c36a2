"""Other heads on the same body, attention weights, and folders that every Auto class opens."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
)

import softmax_rnn as sr
from softmax_rnn.models.folders import AUTO_MAP
from tests import PATIENCE

HEADS = {
    AutoModel: sr.SoftmaxRnnModel,
    AutoModelForCausalLM: sr.SoftmaxRnnForCausalLM,
    AutoModelForSequenceClassification: sr.SoftmaxRnnForSequenceClassification,
    AutoModelForTokenClassification: sr.SoftmaxRnnForTokenClassification,
    AutoModelForMaskedLM: sr.SoftmaxRnnForMaskedLM,
}


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def build(cls, small, mechanism="softmax", **changes):
    torch.manual_seed(0)
    return cls(sr.SoftmaxRnnConfig(**{**small, "num_labels": 3, **changes}, mechanism=mechanism)).eval()


def first(out):
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


@pytest.mark.parametrize("auto", HEADS, ids=lambda a: a.__name__)
@pytest.mark.parametrize("name", ["norm", ["taylor2", "in_out_gate_layer"]], ids=str)
def test_saved_and_opened(auto, small, ids, tmp_path, name):
    model = build(HEADS[auto], small, name)
    model.save_pretrained(tmp_path)
    loaded = auto.from_pretrained(tmp_path).eval()
    assert type(loaded) is HEADS[auto]
    assert torch.equal(first(loaded(ids)), first(model(ids)))
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields["auto_map"] == AUTO_MAP
    card = (tmp_path / "README.md").read_text()
    assert auto.__name__ in card
    assert all(str(m) in card for m in model.config.layer_mechanisms())
    (tmp_path / "README.md").write_text("mine")
    loaded.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (sr.SoftmaxRnnForSequenceClassification, LlamaForSequenceClassification),
        (sr.SoftmaxRnnForTokenClassification, LlamaForTokenClassification),
    ],
)
def test_heads_are_those_of_llama(ours, theirs, small, ids, left_padding):
    model = build(ours, small)
    llama = theirs(LlamaConfig(**{**small, "num_labels": 3})).eval()
    llama.load_state_dict(model.state_dict())
    labels = torch.tensor([0, 2]) if "Sequence" in ours.__name__ else ids % 3
    inputs = {"input_ids": ids * left_padding, "attention_mask": left_padding, "labels": labels, "use_cache": False}
    outs = [m(**inputs) for m in (model, llama)]
    close(outs[0].loss, outs[1].loss)
    for out in outs:
        out.loss.backward()
    for p, q in zip(model.parameters(), llama.parameters(), strict=True):
        close(p.grad, q.grad)


@pytest.mark.parametrize("name", ["softmax", "norm", "taylor2", "linear_elu"])
def test_masked_words_see_both_sides(small, ids, left_padding, name):
    model = build(sr.SoftmaxRnnForMaskedLM, small, name, initializer_range=0.3)
    positions = (left_padding.cumsum(-1) - 1).clamp(min=0)
    out = model(ids, attention_mask=left_padding, position_ids=positions, labels=ids.masked_fill(ids > 20, -100))
    assert out.loss.isfinite()
    close(out.logits[:1, 4:], model(ids[:1, 4:]).logits)
    changed = ids.clone()
    changed[:, -1] = 3 + (changed[:, -1] - 2) % 40
    assert not torch.allclose(model(changed).logits[:, 0], model(ids).logits[:, 0])
    body = build(sr.SoftmaxRnnModel, small, name, initializer_range=0.3, is_causal=False)
    body.load_state_dict(model.model.state_dict())
    close(model.lm_head(body(ids).last_hidden_state), model(ids).logits)


def test_weights_are_those_of_llama(make, small, ids, left_padding):
    model = make("softmax")
    fields = {**small, "initializer_range": 0.3}
    llama = LlamaForCausalLM._from_config(LlamaConfig(**fields), attn_implementation="eager").eval()
    llama.load_state_dict(model.state_dict())
    inputs = {"attention_mask": left_padding, "output_attentions": True, "output_hidden_states": True}
    ours, theirs = model(ids, **inputs), llama(ids, **inputs)
    real = left_padding.bool()
    assert len(ours.hidden_states) == len(theirs.hidden_states) == 3
    for a, b in zip(ours.attentions, theirs.attentions, strict=True):
        assert a.shape == b.shape == (2, 4, 11, 11)
        close(a.transpose(1, 2)[real], b.transpose(1, 2)[real])
    options = {"max_new_tokens": 3, "do_sample": False, "return_dict_in_generate": True, "output_attentions": True}
    ours, theirs = (m.generate(ids, attention_mask=torch.ones_like(ids), **options) for m in (model, llama))
    for a, b in zip(ours.attentions[1:], theirs.attentions[1:], strict=True):
        close(a[0], b[0])


@pytest.mark.parametrize("name", ["taylor2", "norm", "length", "relu_gate", "linear_cosine"])
def test_weights_times_values_are_the_output(make, ids, name):
    """Before gates and norm; the layer's own values, caught on their way."""
    model, seen = make(name), {}
    layer = model.model.layers[0].self_attn
    layer.v_proj.register_forward_hook(lambda module, args, out: seen.update(v=out))
    out = model(ids, output_attentions=True)
    v = seen["v"].view(2, 11, 2, 8).transpose(1, 2).repeat_interleave(2, 1)
    weights = out.attentions[0]
    assert torch.equal(weights.triu(1), torch.zeros_like(weights))
    m = sr.mechanism(name)
    plain = sr.Mechanism(m.kernel, m.denominator, allow_signed=True)
    q, k = torch.randn(2, 1, 4, 11, 8)
    options = {"length_exponent": torch.zeros(4)} if plain.parameters else {}
    one = torch.eye(11).expand(1, 4, 11, 11)
    small = sr.attention(q[None, 0], k[None, 0], one, plain, form="reference", **options)
    close(small @ v[:1], sr.attention(q[None, 0], k[None, 0], v[:1], plain, **options))


def test_weights_are_for_short_rows_and_keys(make):
    model = make("taylor2")
    with pytest.raises(sr.MechanismError, match="at most 1,024 tokens, got 1,025"):
        model(torch.ones(1, 1025, dtype=torch.long), output_attentions=True)
    with pytest.raises(sr.MechanismError, match="has no keys to give weights to"):
        model(torch.ones(1, 5, dtype=torch.long), output_attentions=True, use_cache=True)


OPEN = """
import warnings
{imports}
for auto in ({auto},):
    model = auto.from_pretrained({folder!r}{options})
    print(type(model).__name__)
"""


def run(code):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=PATIENCE
    )


@pytest.fixture
def folder(small, tmp_path):
    build(sr.SoftmaxRnnForCausalLM, small, "norm").save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import softmax_rnn; from transformers import AutoConfig, AutoModelForCausalLM, AutoModel",
        "from transformers import AutoConfig, AutoModelForCausalLM, AutoModel; import softmax_rnn",
    ],
)
def test_any_import_order(folder, imports):
    found = run(
        OPEN.format(imports=imports, auto="AutoConfig, AutoModelForCausalLM, AutoModel", folder=folder, options="")
    )
    assert found.stdout.split() == ["SoftmaxRnnConfig", "SoftmaxRnnForCausalLM", "SoftmaxRnnModel"], found.stderr


@pytest.mark.slow
def test_without_the_import(folder, tmp_path):
    """The stub leads to the package where it is installed, and says what to install where it is not."""
    imports = f"import os; os.environ['HF_MODULES_CACHE'] = {str(tmp_path / 'modules')!r}\nfrom transformers import AutoModelForCausalLM"
    code = OPEN.format(imports=imports, auto="AutoModelForCausalLM", folder=folder, options=", trust_remote_code=True")
    code += f"\nmodel.save_pretrained({folder!r} + '/again')"
    found = run(code)
    assert found.stdout.split() == ["SoftmaxRnnForCausalLM"], found.stderr
    assert sorted(p.name for p in (tmp_path / "again").glob("*.py")) == ["modeling_softmax_rnn.py"]
    hidden = "import sys; sys.modules['softmax_rnn'] = None; sys.modules['softmax_rnn.models'] = None\n"
    found = run(hidden + code)
    assert "This model needs the package softmax-rnn: pip install" in found.stderr


def test_importing_the_package_alone_stays_light():
    code = "import sys, softmax_rnn; print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert run(code).stdout.split() == ["False", "False"]


def test_a_masked_model_of_a_causal_config_says_that_it_sees_both_sides(small, tmp_path):
    config = sr.SoftmaxRnnConfig(**small)
    model = sr.SoftmaxRnnForMaskedLM(config)
    model.save_pretrained(tmp_path)
    assert config.is_causal
    assert not sr.SoftmaxRnnConfig.from_pretrained(tmp_path).is_causal
