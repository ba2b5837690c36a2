"""Generation: with a cache, tokens are those of the computation without one; and a Kronecker cache does not grow."""

import pytest
import torch
from transformers import DynamicCache

import softmax_rnn as sr
from softmax_rnn.models import cache_bytes
from softmax_rnn.models.cache import KroneckerLayer
from softmax_rnn.slots.presets import PRESETS

EVERY = [*PRESETS, "taylor2", "taylor2_norm", "taylor3_norm", "elu2", "relu2_norm", "cosine2"]
HYBRID = ["taylor2", "in_out_gate"]
FINITE = [name for name in EVERY if sr.mechanism(name).kernel.finite]

WAYS = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_k": 20},
    "beams": {"do_sample": False, "num_beams": 3},
    "sampled_beams": {"do_sample": True, "num_beams": 2, "num_return_sequences": 2},
}


def tokens(model, ids, mask, **options):
    torch.manual_seed(7)
    return model.generate(ids, attention_mask=mask, max_new_tokens=6, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*EVERY, HYBRID], ids=str)
def test_cache_gives_the_same_tokens(make, ids, left_padding, name, way):
    model = make(name)
    expected = tokens(model, ids, left_padding, use_cache=False, **WAYS[way])
    assert torch.equal(tokens(model, ids, left_padding, **WAYS[way]), expected)
    assert torch.equal(tokens(model, ids, left_padding, prefill_chunk_size=4, **WAYS[way]), expected)


@pytest.mark.parametrize("name", [*EVERY, HYBRID], ids=str)
def test_cache_gives_the_same_logits(make, ids, left_padding, name):
    model = make(name)
    positions = (left_padding.cumsum(-1) - 1).clamp(min=0)
    whole = model(ids, attention_mask=left_padding, position_ids=positions).logits
    past, parts = None, []
    for begin, end in ((0, 3), (3, 4), (4, 9), (9, 10), (10, 11)):
        out = model(
            ids[:, begin:end], attention_mask=left_padding[:, :end], position_ids=positions[:, begin:end],
            past_key_values=past, use_cache=True,
        )  # fmt: skip
        past = out.past_key_values
        parts.append(out.logits)
    real = left_padding.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[real], whole[real], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["softmax", "relu_gate", "taylor2", "linear_cosine"])
@pytest.mark.parametrize("cache", ["plain", "static"])
def test_other_caches(make, ids, left_padding, name, cache):
    """A cache of keys and values serves finite kernels, too; so does a static one serve all."""
    model = make(name)
    expected = tokens(model, ids, left_padding, use_cache=False, do_sample=False)
    options = {"cache_implementation": "static"} if cache == "static" else {"past_key_values": DynamicCache()}
    for chunk in (None, 4):
        if cache == "plain":
            options = {"past_key_values": DynamicCache()}
        got = tokens(model, ids, left_padding, do_sample=False, prefill_chunk_size=chunk, **options)
        assert torch.equal(got, expected)


def bytes_after(model, length):
    ids = torch.randint(3, 48, (1, length))
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False, prefill_chunk_size=512,
        return_dict_in_generate=True,
    )  # fmt: skip
    return cache_bytes(out.past_key_values)


@pytest.mark.parametrize("name", ["taylor2", "linear_elu", "linear_cosine", "relu_norm"])
def test_state_does_not_grow(make, name):
    model = make(name)
    assert bytes_after(model, 64) == bytes_after(model, 4096) > 0


def test_keys_and_values_do_grow(make):
    model = make("softmax")
    assert bytes_after(model, 512) > 7 * bytes_after(model, 64)


def test_hybrid_cache_has_both_kinds(make, ids):
    cache = make(HYBRID)(ids, use_cache=True).past_key_values
    assert [isinstance(layer, KroneckerLayer) for layer in cache.layers] == [True, False]


@pytest.mark.parametrize("name", FINITE)
def test_finite_kernels_stream(make, ids, name):
    cache = make(name)(ids, use_cache=True).past_key_values
    assert all(isinstance(layer, KroneckerLayer) for layer in cache.layers)
    assert cache.get_seq_length() == ids.shape[1]
    cache.batch_repeat_interleave(2)
    assert cache.layers[0].state.batch == 4
    cache.batch_select_indices(torch.tensor([3]))
    assert cache.layers[0].state.batch == 1
    cache.reset()
    assert (cache.get_seq_length(), cache_bytes(cache)) == (0, 0)


def test_a_plain_forward_makes_no_cache(make, ids):
    assert make("taylor2")(ids).past_key_values is None


def test_a_state_that_does_not_fit_says_what_would(make, ids):
    model = make("taylor12", hidden_size=128, num_attention_heads=2, num_key_value_heads=2)
    model(ids)  # the parallel form needs no state
    with pytest.raises(
        sr.MechanismError, match=r"head size 64 would take .* order \d+ would fit, a head size of \d+ would fit"
    ) as error:
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2)
    assert "\n" not in str(error.value)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, past_key_values=DynamicCache())
    assert out.shape == (2, 13)


def test_many_layers_count_together(make, ids):
    """One layer's state would fit in 8 GB, those of all layers together would not."""
    model = make("taylor4", hidden_size=128, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=24)
    with pytest.raises(sr.MechanismError, match="order"):
        model(ids, use_cache=True)


def test_bidirectional_with_a_cache_is_refused(make, ids):
    with pytest.raises(sr.MechanismError, match="causal"):
        make("norm")(ids, use_cache=True, is_causal=False)


def test_constant_cache_in_another_model_is_refused(make, ids, small):
    from transformers import LlamaConfig, LlamaForCausalLM

    cache = DynamicCache(config=make("taylor2").config)
    with pytest.raises(sr.MechanismError, match="keeps no keys"):
        LlamaForCausalLM(LlamaConfig(**small))(ids, past_key_values=cache)
