"""Caches of every kind: hybrids in static caches, windows, going back (assisted decoding), offloading, stopping early."""

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, StaticCache

import softmax_rnn as sr
from softmax_rnn.models.cache import KroneckerLayer

HYBRIDS = [["taylor2", "softmax"], ["softmax", "taylor2"], ["taylor2", "taylor2_norm"], ["norm", "length"]]


def close(a, b):
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


def tokens(model, ids, mask, **options):
    return model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, **options)


@pytest.mark.parametrize("mechanism", HYBRIDS, ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_static_cache_of_a_hybrid(make, ids, left_padding, mechanism, padded):
    """Each layer cares for its own cache: what the first one keeps says nothing about the others."""
    model = make(mechanism)
    mask = left_padding if padded else torch.ones_like(ids)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    whole = model(ids, attention_mask=mask, position_ids=positions).logits
    cache, parts = StaticCache(config=model.config, max_cache_len=20), []
    for begin, end in ((0, 3), (3, 4), (4, 9), (9, 10), (10, 11)):
        part = {"input_ids": ids[:, begin:end], "position_ids": positions[:, begin:end], "past_key_values": cache}
        parts.append(model(**part, attention_mask=mask[:, :end] if padded else None).logits)
    close(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()])
    expected = tokens(model, ids, mask, use_cache=False)
    assert torch.equal(tokens(model, ids, mask, cache_implementation="static"), expected)
    assert torch.equal(tokens(model, ids, mask, cache_implementation="static"), expected)  # the same cache, used again


@pytest.mark.parametrize("window", [6, 13])
@pytest.mark.parametrize("cache", [None, "static"])
def test_padding_past_the_window(ids, left_padding, window, cache):
    """A window's cache drops old keys; the mask must be cut to what is left once, and not twice."""
    torch.manual_seed(0)
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, initializer_range=0.3, sliding_window=window, pad_token_id=0,
        )
    ).eval()  # fmt: skip
    model.generation_config.eos_token_id = None
    ids, mask = ids[:, : window - 1], left_padding[:, : window - 1]
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "cache_implementation": cache}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    before = model.generate(ids, **options)
    after = sr.patch(model, "softmax").generate(ids, **options)
    assert torch.equal(after.sequences, before.sequences)
    close(torch.stack(after.logits), torch.stack(before.logits))


@pytest.mark.parametrize("mechanism", ["taylor2", "linear_cosine", "in_out_gate", ["taylor2", "softmax"]], ids=str)
def test_going_back(make, ids, left_padding, mechanism):
    """Tokens that are read and cropped leave no trace, in whatever pieces they came."""
    model = make(mechanism)
    positions = (left_padding.cumsum(-1) - 1).clamp(min=0)
    whole = model(ids, attention_mask=left_padding, position_ids=positions).logits
    cache = DynamicCache(config=model.config)
    cache.activate_past_recording()

    def read(begin, end):
        inputs = {"input_ids": ids[:, begin:end], "position_ids": positions[:, begin:end]}
        return model(**inputs, attention_mask=left_padding[:, :end], past_key_values=cache).logits

    read(0, 9)
    cache.crop(-4)  # into the middle of a piece
    close(read(5, 6), whole[:, 5:6])
    for t in range(6, 11):
        read(t, t + 1)
    cache.crop(-3)  # several pieces back
    assert cache.get_seq_length() == 8
    cache.crop(0)
    close(read(8, 11), whole[:, 8:11])


def test_going_back_needs_a_record(make, ids):
    model = make("taylor2")
    cache = model(ids, use_cache=True).past_key_values
    assert cache.is_croppable
    cache.crop(0)
    with pytest.raises(sr.MechanismError, match="activate_past_recording"):
        cache.crop(-2)
    with pytest.raises(sr.MechanismError, match="minus the number"):
        cache.crop(2)
    assert cache.get_seq_length() == ids.shape[1]


@pytest.mark.parametrize("mechanism", ["taylor2", "softmax", ["taylor2", "softmax"]], ids=str)
@pytest.mark.parametrize("way", ["llama with our assistant", "our model with an assistant", "prompt look-up"])
def test_speculative_decoding(make, ids, small, mechanism, way):
    """Candidates that another model or the prompt proposes change the time it takes, never the tokens."""
    model, options = make(mechanism), {}
    ids = ids[:1]
    if way == "llama with our assistant":
        torch.manual_seed(1)
        options["assistant_model"] = model
        model = LlamaForCausalLM(LlamaConfig(**{**small, "initializer_range": 0.3, "eos_token_id": None})).eval()
    elif way == "our model with an assistant":
        options["assistant_model"] = make("taylor2", num_hidden_layers=1)
    else:
        ids = torch.cat([ids, ids[:, :6]], 1)  # something to look up
        options["prompt_lookup_num_tokens"] = 3
    expected = model.generate(ids, max_new_tokens=16, do_sample=False)
    assert torch.equal(model.generate(ids, max_new_tokens=16, do_sample=False, **options), expected)


def test_an_assistant_that_agrees_is_believed(make, ids):
    """With the model itself as assistant every candidate is accepted, and nothing is cropped but the last."""
    model = make("taylor2")
    expected = model.generate(ids[:1], max_new_tokens=16, do_sample=False)
    assert torch.equal(model.generate(ids[:1], max_new_tokens=16, do_sample=False, assistant_model=model), expected)


@pytest.mark.parametrize("mechanism", [["taylor2", "softmax", "norm"], "taylor2"], ids=str)
def test_early_exit(make, ids, mechanism):
    model = make(mechanism, num_hidden_layers=3)
    expected = model.generate(ids[:1], max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(ids[:1], max_new_tokens=8, do_sample=False, assistant_early_exit=1), expected)


class FakeStream:
    def wait_stream(self, other):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_offloaded_hybrid(make, ids, monkeypatch):
    """Each layer's turn brings the next one back, whatever it holds."""
    monkeypatch.setattr(torch, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device=None: FakeStream())
    model = make(["softmax", "taylor2", "softmax", "taylor2"], num_hidden_layers=4)
    cache, events = DynamicCache(config=model.config, offloading=True), []
    for index, layer in enumerate(cache.layers):
        for name in ("offload", "prefetch"):
            original = getattr(layer, name)
            monkeypatch.setattr(layer, name, lambda i=index, n=name, f=original: (events.append((n, i)), f())[1])
    for t in range(3):
        out = model(ids[:, t : t + 1], past_key_values=cache).logits
    assert events[-8:] == [
        ("prefetch", 1), ("offload", 0), ("prefetch", 2), ("offload", 1), ("prefetch", 3), ("offload", 2), ("prefetch", 0), ("offload", 3),
    ]  # fmt: skip
    close(out, model(ids[:, :3]).logits[:, -1:])
    assert isinstance(cache.layers[1], KroneckerLayer)
