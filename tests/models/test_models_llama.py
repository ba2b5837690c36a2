"""The model: configuration, saving and loading, equality with Llama, initialisation, wrong input."""

import json
import math

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import softmax_rnn as sr
from softmax_rnn.models import SIZES, SoftmaxRnnConfig, SoftmaxRnnForCausalLM, parameter_count
from softmax_rnn.slots.presets import PRESETS

EVERY = [*PRESETS, "taylor2", "taylor3_norm", "elu2", "relu2_norm", "cosine2"]


def twins(make, small, **changes):
    """Ours with softmax, and Llama with the same weights."""
    ours = make("softmax", **changes)
    llama = LlamaForCausalLM(LlamaConfig(**{**small, **changes})).eval()
    llama.load_state_dict(ours.state_dict())
    return ours, llama


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def compare(ours, llama, ids, where=None, **inputs):
    """Logits and all gradients, where ``where`` is True."""
    where = torch.ones_like(ids, dtype=torch.bool) if where is None else where
    labels = ids.masked_fill(~where, -100)
    outs = [m(input_ids=ids, labels=labels, use_cache=False, **inputs) for m in (ours, llama)]
    close(outs[0].logits[where], outs[1].logits[where])
    for out in outs:
        out.loss.backward()
    for (name, p), q in zip(ours.named_parameters(), llama.parameters(), strict=True):
        assert p.grad is not None, name
        close(p.grad, q.grad)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_softmax_equals_llama(make, small, ids, kv_heads):
    compare(*twins(make, small, num_key_value_heads=kv_heads), ids)


@pytest.mark.parametrize("side", ["left", "right"])
def test_softmax_equals_llama_padded(make, small, ids, side):
    mask = torch.ones_like(ids)
    mask[0, slice(0, 4) if side == "left" else slice(7, None)] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    # The first real token predicts from itself alone; labels of padding are ignored on both sides.
    compare(*twins(make, small), ids, where=mask.bool(), attention_mask=mask, position_ids=positions)


def test_softmax_equals_llama_packed(make, small, ids):
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 0]])
    ours, llama = twins(make, small)
    compare(ours, llama, ids, position_ids=positions)
    alone = ours(ids[:1, 4:7]).logits
    packed = ours(ids, position_ids=positions).logits
    close(packed[:1, 4:7], alone)


@pytest.mark.parametrize("name", EVERY)
def test_packed_documents_do_not_see_one_another(make, ids, name):
    model = make(name).double()  # what is seen is the question here, not how it is rounded
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 0]])
    packed = model(ids, position_ids=positions).logits
    close(packed[:1, 4:7], model(ids[:1, 4:7]).logits)
    close(packed[1:, 2:10], model(ids[1:, 2:10]).logits)


@pytest.mark.parametrize("name", EVERY)
def test_padding_changes_nothing(make, ids, left_padding, name):
    model = make(name)
    positions = (left_padding.cumsum(-1) - 1).clamp(min=0)
    padded = model(ids, attention_mask=left_padding, position_ids=positions).logits
    assert padded.isfinite().all()
    close(padded[:1, 4:], model(ids[:1, 4:]).logits)


@pytest.mark.parametrize("name", EVERY)
def test_saved_and_loaded(make, ids, tmp_path, name):
    model = make(name)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, SoftmaxRnnConfig)
    assert config.mechanism == name
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(loaded, SoftmaxRnnForCausalLM)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.generation_config.use_cache


def test_mechanism_values_and_hybrids_are_saved(make, ids, tmp_path):
    hybrid = ["softmax", sr.Mechanism(sr.Taylor(2), sr.Length(), output_gate="after_norm", norm="rms")]
    model = make(hybrid)
    assert model.config.layer_mechanisms() == [sr.mechanism("softmax"), hybrid[1]]
    model.save_pretrained(tmp_path)
    loaded = SoftmaxRnnForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.config.layer_mechanisms() == model.config.layer_mechanisms()
    assert not hasattr(loaded.model.layers[0].self_attn, "out_gate_proj")
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_another_mechanism_for_the_same_weights(make, ids, tmp_path):
    model = make("softmax")
    model.save_pretrained(tmp_path)
    other = SoftmaxRnnForCausalLM.from_pretrained(tmp_path, mechanism=sr.mechanism("taylor8")).eval()
    assert other.config.layer_mechanisms()[0] == sr.mechanism("taylor8")
    assert not torch.equal(other(ids).logits, model(ids).logits)
    other.save_pretrained(tmp_path / "other")
    assert SoftmaxRnnConfig.from_pretrained(tmp_path / "other").layer_mechanisms() == other.config.layer_mechanisms()


def test_a_gate_that_cancels_warns_once_not_at_every_load(make, tmp_path):
    with pytest.warns(sr.MechanismWarning):
        mechanism = sr.Mechanism(sr.Exp(), sr.Unnormalised(), output_gate="before_norm", norm="l2")
    model = make(mechanism)
    model.save_pretrained(tmp_path)
    SoftmaxRnnForCausalLM.from_pretrained(tmp_path)  # warnings are errors here


def test_initialisation(small):
    torch.manual_seed(0)
    config = SoftmaxRnnConfig(
        **{**small, "hidden_size": 256, "num_attention_heads": 16}, mechanism=["in_out_gate_layer", "linear_cosine"]
    )
    model = SoftmaxRnnForCausalLM(config)
    gated, cosine = (layer.self_attn for layer in model.model.layers)
    for linear in (gated.q_proj, gated.o_proj, gated.in_gate_proj, gated.out_gate_proj, model.lm_head):
        assert math.isclose(linear.weight.std().item(), 0.02, rel_tol=0.15)
    assert (gated.in_gate_proj.bias == 0).all()
    assert (gated.out_gate_proj.bias == 0).all()
    assert (gated.out_norm.weight == 1).all()
    assert (gated.out_norm.bias == 0).all()
    assert (cosine.norm_const == 0.5).all()
    assert cosine.norm_const.shape == (1, 16, 1, 1)
    assert gated.in_gate_proj.weight.shape == (2, 256)


def test_parameters_only_where_the_mechanism_wants_them(make):
    def extra(name):
        return {
            n.rsplit("layers.0.self_attn.")[-1] for n, _ in make(name).named_parameters() if "layers.0.self_attn" in n
        } - {f"{p}_proj.weight" for p in "qkvo"}

    assert extra("softmax") == extra("norm") == extra("taylor2") == set()
    assert extra("gate") == {"out_gate_proj.weight", "out_gate_proj.bias"}
    assert extra("in_gate") == {"in_gate_proj.weight", "in_gate_proj.bias"}
    assert extra("rms") == {"out_norm.weight"}
    assert extra("layer_length") == {"out_norm.weight", "out_norm.bias"}
    assert extra("linear_cosine") == {"norm_const"}


@pytest.mark.parametrize("name", EVERY)
def test_every_parameter_gets_a_gradient(make, ids, name):
    model = make(name)
    model(ids, labels=ids).loss.backward()
    for parameter_name, p in model.named_parameters():
        assert p.grad is not None, parameter_name
        assert p.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("size", SIZES)
def test_sizes(size):
    config = SoftmaxRnnConfig(**SIZES[size], vocab_size=32000)
    d, mlp, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    assert parameter_count(size) == 2 * 32000 * d + layers * (4 * d * d + 3 * d * mlp + 2 * d) + d
    assert config.head_dim % 2 == 0


@pytest.mark.parametrize("name", ["softmax", "in_out_gate_layer", "linear_cosine"])
def test_declared_size_is_real_size(name):
    model = SoftmaxRnnForCausalLM(SoftmaxRnnConfig(**SIZES["nano"], vocab_size=100, mechanism=name))
    assert parameter_count("nano", 100, name) == sum(p.numel() for p in model.parameters())


def test_the_papers_sizes():
    assert 2.7e8 < parameter_count("small") < 3.1e8
    assert 1.9e9 < parameter_count("large") < 2.2e9


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mechanism": "sotfmax"}, "did you mean softmax"),
        ({"mechanism": 3}, "a name or a Mechanism"),
        ({"mechanism": {"kernel": {"type": "Cosh"}, "denominator": {"type": "Sum"}}}, "Unknown kernel type 'Cosh'"),
        ({"mechanism": ["softmax"]}, "a list of 1, but the model has 2 layers"),
        ({"num_attention_heads": 5}, "not a multiple of num_attention_heads 5"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3"),
        ({"num_attention_heads": 32, "num_key_value_heads": 32}, "head_dim must be even"),
        ({"attention_dropout": 0.1}, "attention_dropout must be 0"),
        ({"num_hidden_layers": 0}, "at least one head and one layer"),
    ],
)
def test_wrong_configurations_get_one_sentence(small, changes, says):
    with pytest.raises(sr.MechanismError, match=says) as error:
        SoftmaxRnnConfig(**{**small, **changes})
    assert "\n" not in str(error.value)


def test_unknown_mechanism_in_config_json(make, tmp_path):
    make().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "mechanism": "norn"}))
    with pytest.raises(sr.MechanismError, match="Unknown mechanism 'norn'"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_other_implementations_are_refused(make, small, ids):
    with pytest.raises(sr.MechanismError, match="leave it out"):
        SoftmaxRnnForCausalLM(SoftmaxRnnConfig(**small, attn_implementation="flash_attention_2"))
    model = make("norm")
    with pytest.raises(sr.MechanismError, match="score mask"):
        model(ids, attention_mask=torch.zeros(2, 1, 11, 11))


def test_a_llama_with_our_config_object_does_not_compute_in_silence(make, ids):
    llama = LlamaForCausalLM(make("norm").config)
    with pytest.raises(sr.MechanismError, match="a config of its own"):
        llama(ids)


def test_bidirectional(make, ids):
    model = make("norm")
    logits = model(ids, is_causal=False).logits
    changed = ids.clone()
    changed[:, -1] = 3 + (changed[:, -1] - 2) % 40
    assert not torch.allclose(logits[:, 0], model(changed, is_causal=False).logits[:, 0])
    assert torch.equal(model(ids).logits[:, 0], model(changed).logits[:, 0])
