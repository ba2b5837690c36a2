"""``patch`` in many families: softmax changes nothing; what a mechanism cannot stand in for is refused by name and reason."""

from typing import Any

import pytest
import torch
import transformers as hf

import softmax_rnn as sr

BASE: dict[str, Any] = {
    "vocab_size": 48, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
GQA = {**BASE, "num_key_value_heads": 2}
WIDE = {**GQA, "head_dim": 8}
WINDOW = {**WIDE, "sliding_window": 5}  # shorter than the sequences below
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
ENCODER = {**BASE, "max_position_embeddings": 64}
PAIR = {
    "vocab_size": 48, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "init_std": 0.3, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": None, "decoder_start_token_id": 1,
}  # fmt: skip
MLA = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, **MOE,
}  # fmt: skip

DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**GQA, "sliding_window": 5}),
    "phi": ("PhiForCausalLM", "PhiConfig", GQA),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GQA),
    "olmo3": ("Olmo3ForCausalLM", "Olmo3Config", {**GQA, "sliding_window": 5}),
    "granite": ("GraniteForCausalLM", "GraniteConfig", {**GQA, "attention_multiplier": 0.3}),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", GQA),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", WIDE),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**WINDOW, "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**GQA, "num_local_experts": 4}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**WIDE, "num_experts": 4, **MOE}),
    "gpt2": (
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3, "pad_token_id": 0, "eos_token_id": None},
    ),
    "opt": ("OPTForCausalLM", "OPTConfig", {**BASE, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3}),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", GQA),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", {**GQA, "sliding_window": 5}),
    "cohere": ("CohereForCausalLM", "CohereConfig", GQA),
    "glm": ("GlmForCausalLM", "GlmConfig", WIDE),
    "ministral": ("MinistralForCausalLM", "MinistralConfig", WINDOW),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", {**BASE, **MLA}),
    "gpt_oss": ("GptOssForCausalLM", "GptOssConfig", {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}),
}  # fmt: skip
ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "albert": ("AlbertModel", "AlbertConfig", {**ENCODER, "embedding_size": 16}),  # its layers share one module
    "camembert": ("CamembertModel", "CamembertConfig", ENCODER),
    "modernbert": ("ModernBertModel", "ModernBertConfig", {**ENCODER, "cls_token_id": 1, "sep_token_id": 2}),
    "distilbert": (
        "DistilBertModel", "DistilBertConfig",
        {"vocab_size": 48, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "initializer_range": 0.3, "pad_token_id": 0},
    ),
}  # fmt: skip


def build(family, **changes):
    model, config, fields = {**DECODERS, **ENCODERS}[family]
    torch.manual_seed(0)
    made = getattr(hf, model)(getattr(hf, config)(**{**fields, **changes})).eval()
    if getattr(made, "generation_config", None) is not None:
        made.generation_config.eos_token_id = None
    return made


def tensors(out):
    return [x for x in out.values() if isinstance(x, torch.Tensor)]


def close(a, b):
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS])
def test_softmax_changes_nothing(family, ids, left_padding):
    """With padding on either side, longer than the window where there is one; and back again."""
    model = build(family)
    right = left_padding.flip(1)
    before = [tensors(model(ids, attention_mask=mask))[0] for mask in (left_padding, right)]
    sr.patch(model, "softmax")
    for mask, expected in zip((left_padding, right), before, strict=True):
        close(tensors(model(ids, attention_mask=mask))[0][mask.bool()], expected[mask.bool()])
    sr.unpatch(model)
    assert torch.equal(tensors(model(ids, attention_mask=right))[0], before[1])
    assert not hasattr(model.config, "softmax_rnn")


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("family", DECODERS)
def test_softmax_generates_the_same(family, ids, left_padding, cache):
    model = build(family)
    options = {"attention_mask": left_padding, "max_new_tokens": 6, "do_sample": False, "cache_implementation": cache}
    before = model.generate(ids, **options)
    sr.patch(model, "softmax")
    assert torch.equal(model.generate(ids, **options), before)
    if cache is None:
        assert torch.equal(model.generate(ids, prefill_chunk_size=4, **options), before)


@pytest.mark.parametrize("family", [f for f in [*DECODERS, *ENCODERS] if f not in ("gpt_oss", "gemma2")])
@pytest.mark.parametrize("name", ["norm", "taylor2"])
def test_another_mechanism_is_another_model(family, name, ids, left_padding):
    model = build(family)
    before = tensors(model(ids))[0]
    sr.patch(model, name)
    assert not torch.allclose(tensors(model(ids))[0], before, atol=1e-3)
    if family in DECODERS:
        options = {"attention_mask": left_padding, "max_new_tokens": 4, "do_sample": False}
        expected = model.generate(ids, use_cache=False, **options)
        assert torch.equal(model.generate(ids, **options), expected)


def test_caps_and_sinks_need_the_right_mechanism(ids):
    sr.patch(build("gemma2"), "norm")(ids)
    with pytest.raises(sr.MechanismError, match="caps its scores at 2"):
        sr.patch(build("gemma2"), "taylor2")(ids)
    with pytest.raises(sr.MechanismError, match="has a sink in its sum of weights"):
        sr.patch(build("gpt_oss"), "norm")(ids)


@pytest.mark.parametrize("family", ["granite", "gemma2", "ministral"])
def test_weights_are_the_models_own(family, ids):
    """With its scale, its cap and its window."""
    model, own = build(family), build(family)
    own.set_attn_implementation("eager")
    sr.patch(model, "softmax")
    for a, b in zip(*(m(ids, output_attentions=True).attentions for m in (model, own)), strict=True):
        close(a, b)


def test_windows_that_look_both_ways(ids):
    model = sr.patch(build("modernbert", local_attention=12), "norm")
    model(ids[:, :6])
    with pytest.raises(sr.MechanismError, match="longer than the model's window"):
        model(ids)


def vision():
    config = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    images = {"image_size": 16, "patch_size": 4}
    text = {**config, "vocab_size": 48, "max_position_embeddings": 32, "eos_token_id": 2}
    return {
        "vit": (hf.ViTModel, hf.ViTConfig(**config, **images)),
        "clip": (hf.CLIPModel, hf.CLIPConfig(text_config=text, vision_config={**config, **images}, projection_dim=16)),
    }


@pytest.mark.parametrize("family", ["vit", "clip"])
def test_images(family, ids, left_padding):
    torch.manual_seed(0)
    kind, config = vision()[family]
    model = kind(config).eval()
    inputs = {"pixel_values": torch.randn(2, 3, 16, 16)}
    if family == "clip":
        inputs |= {"input_ids": ids, "attention_mask": left_padding.flip(1)}
    before = tensors(model(**inputs))
    for ours, own in zip(tensors(sr.patch(model, "softmax")(**inputs)), before, strict=True):
        close(ours, own)
    assert not torch.allclose(tensors(sr.patch(model, "norm")(**inputs))[0], before[0])
    for again, own in zip(tensors(sr.unpatch(model)(**inputs)), before, strict=True):
        assert torch.equal(again, own)


@pytest.mark.parametrize("family", ["bart", "whisper"])
def test_encoder_and_decoder(family, ids, left_padding):
    """Self-attention on both sides, and the attention from one to the other."""
    torch.manual_seed(0)
    right = left_padding.flip(1)
    if family == "bart":
        model = hf.BartForConditionalGeneration(
            hf.BartConfig(**PAIR, max_position_embeddings=64, forced_eos_token_id=None)
        )
        inputs = {"input_ids": ids, "attention_mask": right}
    else:
        sizes = {"num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 32}
        model = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**PAIR, **sizes))
        model.generation_config.update(suppress_tokens=None, begin_suppress_tokens=None)
        inputs = {"input_features": torch.randn(2, 8, 24)}
    model.eval().generation_config.eos_token_id = None
    before = model(**inputs, decoder_input_ids=ids).logits
    options = {"max_new_tokens": 6, "do_sample": False}
    text = model.generate(**inputs, **options)
    sr.patch(model, "softmax")
    close(model(**inputs, decoder_input_ids=ids).logits, before)
    assert torch.equal(model.generate(**inputs, **options), text)
    if family == "bart":
        assert torch.equal(model.generate(**inputs, **options, cache_implementation="static"), text)
    assert not torch.allclose(sr.patch(model, "norm")(**inputs, decoder_input_ids=ids).logits, before)


REFUSED = {
    "t5": ("T5Model", "T5Config", {"vocab_size": 48, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}, "a bias"),
    "diffllama": ("DiffLlamaForCausalLM", "DiffLlamaConfig", BASE, "several times and combines"),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"vocab_size": 48, "hidden_size": 32, "n_layer": 1, "n_head": 4}, "none of the modules"),
    "mamba": ("MambaForCausalLM", "MambaConfig", {"vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 1}, "none of the modules"),
}  # fmt: skip


@pytest.mark.parametrize("family", REFUSED)
def test_refused_by_name_and_reason(family):
    model, config, fields, reason = REFUSED[family]
    made = getattr(hf, model)(getattr(hf, config)(**fields)).train()
    before = made.config, made.config._attn_implementation
    with pytest.raises(
        sr.MechanismError, match=f"The attention of '{family}' models cannot be swapped: .*{reason}"
    ) as error:
        sr.patch(made, "softmax")
    assert "\n" not in str(error.value)
    assert (made.config, made.config._attn_implementation) == before
    assert made.training
    assert not any(hasattr(m, "softmax_rnn_swap") for m in made.modules())


def test_a_layer_that_changes_scores_is_found_out():
    """Code that names the function and does something else with its output does not pass the small forward pass."""
    from transformers.models.llama.modeling_llama import LlamaAttention

    class Odd(LlamaAttention):
        def forward(self, hidden_states, **kwargs):  # not ALL_ATTENTION_FUNCTIONS alone
            out, weights = super().forward(hidden_states, **kwargs)
            return (out if self.config._attn_implementation == "sdpa" else 1.5 * out), weights

    llama = hf.LlamaForCausalLM(hf.LlamaConfig(**GQA))
    for i, layer in enumerate(llama.model.layers):
        layer.self_attn = Odd(llama.config, i)
    with pytest.raises(sr.MechanismError, match="off by"):
        sr.patch(llama, "softmax")


def test_a_model_without_weights_is_refused():
    with torch.device("meta"):
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**{**GQA, "vocab_size": 49}))
    with pytest.raises(sr.MechanismError, match="no weights yet"):
        sr.patch(model, "softmax")
