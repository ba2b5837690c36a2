"""``patch``: softmax changes nothing in any family, other mechanisms respect padding, errors leave the model untouched."""

import copy

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    BertModel,
    DynamicCache,
    ElectraConfig,
    ElectraModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

import softmax_rnn as sr
from softmax_rnn.slots.presets import PRESETS

from .test_models_families import BASE, ENCODER, GQA

DECODERS = {
    "llama": (LlamaForCausalLM, LlamaConfig, GQA),
    "mistral": (MistralForCausalLM, MistralConfig, {**GQA, "sliding_window": None, "head_dim": 8}),
    "mistral_window": (MistralForCausalLM, MistralConfig, {**GQA, "sliding_window": 64, "head_dim": 8}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, GQA),
    "qwen2_window": (
        Qwen2ForCausalLM, Qwen2Config, {**GQA, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
    ),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {**GQA, "head_dim": 8}),
    "gpt_neox": (GPTNeoXForCausalLM, GPTNeoXConfig, {**BASE, "rotary_pct": 0.5}),
    "bert_decoder": (BertLMHeadModel, BertConfig, {**ENCODER, "is_decoder": True}),
}  # fmt: skip
ENCODERS = {
    "bert": (BertModel, BertConfig, ENCODER),
    "bert_mlm": (BertForMaskedLM, BertConfig, ENCODER),
    "roberta": (RobertaModel, RobertaConfig, ENCODER),
    "xlm_roberta": (XLMRobertaModel, XLMRobertaConfig, ENCODER),
    "electra": (ElectraModel, ElectraConfig, {**ENCODER, "embedding_size": 32}),
}
PLAIN = [name for name, m in PRESETS.items() if not m.parameters] + [
    "taylor2",
    "taylor3_norm",
    "elu2",
    "cosine2_norm",
]


def build(family, **changes):
    torch.manual_seed(0)
    model, config, fields = {**DECODERS, **ENCODERS}[family]
    return model(config(**{**fields, **changes})).eval()


def result(model, ids, **inputs):
    out = model(ids, **inputs)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def gradients(model, ids, where, **inputs):
    model.zero_grad()
    result(model, ids, **inputs)[where].square().mean().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS])
def test_softmax_changes_nothing(family, padding, ids):
    model = build(family)
    mask = torch.ones_like(ids)
    if padding != "none":
        mask[0, slice(0, 4) if padding == "left" else slice(7, None)] = 0
    where, inputs = mask.bool(), {"attention_mask": mask}
    before, slopes = result(model, ids, **inputs), gradients(model, ids, where, **inputs)
    sr.patch(model, "softmax")
    assert model.config._attn_implementation == "softmax_rnn"
    close(result(model, ids, **inputs)[where], before[where])
    for name, slope in gradients(model, ids, where, **inputs).items():
        close(slope, slopes[name])
    sr.unpatch(model)
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(result(model, ids, **inputs), before)
    assert not any(hasattr(m, "softmax_rnn_swap") for m in model.modules())


@pytest.mark.parametrize("family", [f for f in DECODERS if f != "bert_decoder"])
def test_softmax_changes_nothing_packed(family, ids):
    model = build(family)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 0]])
    inputs = {"position_ids": positions, "use_cache": False}
    before = result(model, ids, **inputs)
    assert not torch.allclose(before[:, -1], result(model, ids, use_cache=False)[:, -1])
    close(result(sr.patch(model, "softmax"), ids, **inputs), before)


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"prefill_chunk_size": 4}, {"cache_implementation": "static"}], ids=str
)
@pytest.mark.parametrize("family", DECODERS)
def test_softmax_generates_the_same(family, ids, left_padding, options):
    model = build(family)
    inputs = {"attention_mask": left_padding, "max_new_tokens": 6, "do_sample": False}
    before = model.generate(ids, **inputs, **options)
    assert torch.equal(sr.patch(model, "softmax").generate(ids, **inputs, **options), before)


def test_one_window_inside_another_is_refused():
    with pytest.raises(sr.MechanismError, match="layer 0 of this model has a sliding window"):
        sr.patch(build("mistral_window"), "near2")


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "bert"])
def test_padding_and_cache_are_respected(family, name, ids, left_padding):
    if family == "bert" and name == "near2":
        with pytest.raises(sr.MechanismError, match="reads both ways"):
            sr.patch(build(family), name)
        return
    model = sr.patch(build(family), name)
    positions = (left_padding.cumsum(-1) - 1).clamp(min=0)
    padded = result(model, ids, attention_mask=left_padding, position_ids=positions)
    assert padded.isfinite().all()
    close(padded[:1, 4:], result(model, ids[:1, 4:]))
    if family != "bert":
        options = {"attention_mask": left_padding, "max_new_tokens": 4, "do_sample": False}
        expected = model.generate(ids, use_cache=False, **options)
        assert torch.equal(model.generate(ids, **options), expected)
        assert torch.equal(model.generate(ids, prefill_chunk_size=4, **options), expected)


@pytest.mark.parametrize("name", PLAIN)
def test_the_mechanism_is_the_one_asked_for(name, ids):
    """The first layer's output against the formula, from the model's own projections."""
    model = sr.patch(build("llama"), name)
    layer = model.model.layers[0].self_attn
    seen = {}
    layer.o_proj.register_forward_pre_hook(lambda module, args: seen.update(out=args[0]))
    layer.register_forward_pre_hook(lambda module, args, kwargs: seen.update(kwargs), with_kwargs=True)
    model(ids)
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    h = seen["hidden_states"]
    q, k, v = (p(h).view(2, 11, -1, 8).transpose(1, 2) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    q, k = apply_rotary_pos_emb(q, k, *seen["position_embeddings"])
    expected = sr.attention(q, k, v, name, form="reference").transpose(1, 2).flatten(2)
    torch.testing.assert_close(seen["out"], expected, atol=1e-5, rtol=1e-4)


def test_bidirectional_sees_both_sides(ids):
    model = sr.patch(build("bert"), "norm")
    changed = ids.clone()
    changed[:, -1] = 3 + (changed[:, -1] - 2) % 40
    assert not torch.allclose(result(model, ids)[:, 0], result(model, changed)[:, 0])


def test_cross_attention(ids):
    model = build("bert_decoder", add_cross_attention=True)
    memory = torch.randn(2, 7, 32)
    memory_mask = torch.ones(2, 7, dtype=torch.long)
    memory_mask[1, 5:] = 0
    inputs = {"encoder_hidden_states": memory, "encoder_attention_mask": memory_mask}
    before = result(model, ids, **inputs)
    close(result(sr.patch(model, "softmax"), ids, **inputs), before)


@pytest.mark.parametrize("family", ["mistral_window", "qwen2_window"])
@pytest.mark.parametrize("chunk", [None, 4])
def test_sliding_windows_are_kept(family, ids, left_padding, chunk):
    """Sequences longer than the window, whole, in chunks and token by token: the cache drops old keys."""
    model = build(family, sliding_window=5)
    inputs = {"attention_mask": left_padding, "do_sample": False, "max_new_tokens": 8, "prefill_chunk_size": chunk}
    before, text = result(model, ids, attention_mask=left_padding), model.generate(ids, **inputs)
    every = build(family, sliding_window=64)
    assert not torch.allclose(before, result(every, ids, attention_mask=left_padding))
    sr.patch(model, "softmax")
    real = left_padding.bool()
    close(result(model, ids, attention_mask=left_padding)[real], before[real])
    assert torch.equal(model.generate(ids, **inputs), text)
    packed = {"position_ids": torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3]]).expand(2, -1), "use_cache": False}
    ours = result(model, ids, **packed)
    close(ours, result(sr.unpatch(model), ids, **packed))


def test_two_models_with_one_config(ids):
    config = LlamaConfig(**GQA)
    torch.manual_seed(0)
    one, other = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    before = result(other, ids)
    sr.patch(one, "linear_elu")
    assert other.config is config
    assert config._attn_implementation == "sdpa"
    assert torch.equal(result(other, ids), before)
    assert all(m.config is one.config for m in one.modules() if hasattr(m, "config"))


def test_patch_again_copy_and_save(ids, tmp_path):
    model = build("llama")
    before = result(model, ids)
    norm = result(sr.patch(model, "norm"), ids)
    assert not torch.allclose(norm, before)
    twin = copy.deepcopy(model)
    close(result(sr.patch(model, "softmax"), ids), before)
    assert torch.equal(result(twin, ids), norm)
    with pytest.warns(sr.MechanismWarning, match="plain transformers"):
        twin.save_pretrained(tmp_path)
    close(result(LlamaForCausalLM.from_pretrained(tmp_path).eval(), ids), before)
    assert torch.equal(result(sr.unpatch(sr.unpatch(model)), ids), before)


def test_half_precision(ids):
    model = build("llama").to(torch.bfloat16)
    before = result(model, ids)
    after = result(sr.patch(model, "softmax"), ids)
    assert after.dtype == torch.bfloat16
    torch.testing.assert_close(after, before, atol=0.1, rtol=0.05)  # a few steps of bfloat16 on logits of size 5


def centers(scale=1.0):
    return {i: scale * torch.randn(2, 8, generator=torch.Generator().manual_seed(i)) for i in range(2)}


def test_centring_changes_nothing_for_exp(ids, left_padding):
    model = build("llama")
    inputs = {"attention_mask": left_padding, "max_new_tokens": 5, "do_sample": False}
    before, text = result(model, ids), model.generate(ids, **inputs)
    sr.patch(model, "softmax", center=centers())
    close(result(model, ids), before)
    assert torch.equal(model.generate(ids, prefill_chunk_size=4, **inputs), text)
    assert torch.equal(model.generate(ids, past_key_values=DynamicCache(), **inputs), text)


def test_centring_reaches_series_and_files(ids, tmp_path):
    model = build("llama")
    plain = result(sr.patch(model, "taylor2"), ids)
    centred = result(sr.patch(model, "taylor2", center={1: centers()[1]}), ids)
    assert not torch.allclose(plain, centred)
    save_file({"layers.1.center": centers()[1]}, tmp_path / "centers.safetensors")
    assert torch.equal(result(sr.patch(model, "taylor2", center=tmp_path / "centers.safetensors"), ids), centred)


def test_wrong_calls_leave_the_model_untouched(ids, tmp_path):
    model = build("llama")
    before = result(model, ids)
    save_file({"center.1": torch.zeros(2, 8)}, tmp_path / "names.safetensors")
    (tmp_path / "damaged.safetensors").write_bytes(b"nothing")
    cases = [
        (("gate",), "needs output_gate"),
        (("linear_cosine",), "needs length_exponent"),
        (("softmux",), "did you mean"),
        (("softmax", {0: torch.zeros(4, 8)}), "center must have shape"),
        (("softmax", {5: torch.zeros(2, 8)}), "for layer 5"),
        (("linear_elu", {0: torch.zeros(2, 8)}), "center= is for exp"),
        (("length", {0: torch.zeros(2, 8)}), "center="),
        (("softmax", tmp_path / "missing.safetensors"), "Cannot read centers"),
        (("softmax", tmp_path / "damaged.safetensors"), "Cannot read centers"),
        (("softmax", tmp_path / "names.safetensors"), "layers.0.center"),
    ]
    config = model.config
    for args, says in cases:
        with pytest.raises(sr.MechanismError, match=says) as error:
            sr.patch(model, *args)
        assert "\n" not in str(error.value)
        assert model.config is config
        assert config._attn_implementation == "sdpa"
        assert torch.equal(result(model, ids), before)


def test_what_is_not_a_model_to_patch(make):
    with pytest.raises(sr.MechanismError, match="has a mechanism already"):
        sr.patch(make("norm"), "softmax")
    with pytest.raises(sr.MechanismError, match="takes a Hugging Face model"):
        sr.patch(torch.nn.Linear(2, 2), "softmax")


def test_dropout_and_weights_are_refused_where_they_are_asked_for(ids):
    model = sr.patch(build("bert"), "softmax")
    result(model.eval(), ids)
    with pytest.raises(sr.MechanismError, match=r"no dropout on weights, and this model was made with 0\.1"):
        model.train()(ids)
    with pytest.raises(sr.MechanismError, match="score mask"):
        model.eval()(ids, attention_mask=torch.ones(2, 1, 11, 11))
    eager = build("bert")
    eager.set_attn_implementation("eager")
    ours, own = (m(ids, output_attentions=True).attentions for m in (model, eager))
    for a, b in zip(ours, own, strict=True):
        close(a, b)
