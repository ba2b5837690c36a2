"""Every preset of the field as a model: it trains, streams, saves and loads; convolutions and decay live in the cache."""

from dataclasses import replace

import pytest
import torch

import softmax_rnn as sr
from softmax_rnn import SoftmaxRnnConfig, SoftmaxRnnForCausalLM
from softmax_rnn.models import cache_bytes
from softmax_rnn.nn import Attention, make_inputs
from softmax_rnn.slots.presets import PRESETS, _field

from .conftest import check_that_it_learns_and_is_saved

NAMES = [*_field(), "taylor2_decay", "taylor2_norm_decay"]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def build(name, **options):
    torch.manual_seed(0)
    model = SoftmaxRnnForCausalLM(SoftmaxRnnConfig(vocab_size=50, mechanism=name, **SIZES, **options)).eval()
    for layer in model.model.layers:
        if layer.self_attn.conv is not None:
            torch.nn.init.normal_(layer.self_attn.conv.weight)
    return model


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("conv", [0, 3])
def test_streams_as_it_reads(name, conv):
    model = build(name, conv=conv, rope=conv == 0)
    ids = torch.randint(3, 50, (2, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        want = model.generate(ids, use_cache=False, **options)
        assert torch.equal(model.generate(ids, **options), want)
        assert torch.equal(model.generate(ids, prefill_chunk_size=4, **options), want)
        beams = model.generate(ids, num_beams=2, use_cache=False, **options)
        assert torch.equal(model.generate(ids, num_beams=2, **options), beams)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_learns_and_is_saved(name, tmp_path):
    model = build(name, conv=2)
    ids = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(1))
    check_that_it_learns_and_is_saved(model, ids, tmp_path)


@pytest.mark.parametrize("name", ["taylor2_decay", "mamba2", "near2", "gla"])
def test_a_constant_state_stays_constant(name):
    model = build(name, conv=3)
    sizes = set()
    for length in (70, 90):
        ids = torch.randint(3, 50, (1, length), generator=torch.Generator().manual_seed(1))
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 2, "pad_token_id": 0}
        sizes.add(cache_bytes(model.generate(ids, return_dict_in_generate=True, **options).past_key_values))
    assert len(sizes) == 1


def test_a_convolution_stays_within_documents_and_padding():
    model = build("softmax", conv=3)
    ids = torch.randint(3, 50, (1, 10), generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5]])
    with torch.no_grad():
        packed = model(ids, position_ids=positions).logits
        alone = model(ids[:, 4:], position_ids=positions[:, 4:]).logits
    torch.testing.assert_close(packed[:, 4:], alone)


def test_a_plain_cache_is_refused_where_it_would_forget():
    from transformers import DynamicCache

    model = build("fox")
    ids = torch.randint(3, 50, (1, 5))
    with pytest.raises(sr.MechanismError, match="remembers more than keys and values"):
        model(ids, past_key_values=DynamicCache())


@pytest.mark.parametrize("name", [*PRESETS, "taylor2_decay"])
def test_the_module_streams_as_it_reads(name):
    torch.manual_seed(0)
    layer = Attention(16, 4, name, kv_heads=2, conv=3, rope=100.0).double()
    torch.nn.init.normal_(layer.conv.weight)
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    want = layer(x)
    state, parts = None, []
    for begin, end in ((0, 4), (4, 5), (5, 9)):
        out, state = layer(x[:, begin:end], state=state, return_state=True)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 1), want, rtol=1e-9, atol=1e-9)
    want.sum().backward()
    assert [n for n, p in layer.named_parameters() if p.grad is None] == []


def test_decay_as_in_mamba2_spreads_over_the_heads_and_learns_its_rate():
    layer = Attention(16, 4, "mamba2")
    x = torch.randn(2, 9, 16)
    with torch.no_grad():
        layer.decay_proj.weight.zero_()
    made = make_inputs(layer, layer.mechanism, x, 4, 4)["log_decay"]
    torch.testing.assert_close(made[0, :, 0], -torch.logspace(-3, -1, 4) * torch.linspace(1, 16, 4))
    layer(x).square().sum().backward()
    assert layer.decay_rate.grad.abs().min() > 0
    channels = replace(sr.mechanism("gla"), decay_from="softplus")
    assert make_inputs(Attention(16, 4, channels), channels, x, 4, 4)["log_decay"].shape == (2, 4, 9, 4)


@pytest.mark.parametrize("decay", [None, "head"])
def test_softplus_needs_a_decay_that_follows_the_tokens(decay):
    with pytest.raises(sr.MechanismError, match="needs decay='token' or 'channel'"):
        replace(sr.mechanism("linear"), decay=decay, decay_from="softplus")
    with pytest.raises(sr.MechanismError, match="decay_from must be"):
        replace(sr.mechanism("fox"), decay_from="tanh")
