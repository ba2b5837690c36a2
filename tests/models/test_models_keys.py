"""Keys of another width than values, and a delta rule that may turn the old value around."""

import pytest
import torch

from softmax_rnn import SoftmaxRnnConfig, SoftmaxRnnForCausalLM
from softmax_rnn.errors import MechanismError
from softmax_rnn.models import cache_bytes

from .conftest import check_that_it_learns_and_is_saved

SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def build(name, **options):
    torch.manual_seed(0)
    config = SoftmaxRnnConfig(mechanism=name, **{**SIZES, "num_key_value_heads": 2, **options})
    return SoftmaxRnnForCausalLM(config).eval()


def rows(tokens=11):
    return torch.randint(3, 50, (2, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["softmax", "taylor2", "gla", "rms", "near2", "taylor2_norm_delta"])
@pytest.mark.parametrize("options", [{}, {"conv": 2, "rope": False}])
def test_keys_of_another_width_train_stream_and_save(name, options, tmp_path):
    model = build(name, key_dim=4, **options)
    layer = model.model.layers[0].self_attn
    assert layer.q_proj.out_features == 4 * 4
    assert layer.k_proj.out_features == 2 * 4
    assert layer.v_proj.out_features == 2 * 8
    ids = rows()
    want = model.generate(ids, use_cache=False, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0), want)
    check_that_it_learns_and_is_saved(model, ids, tmp_path)


def test_the_state_has_the_width_of_the_keys():
    def size(**options):
        with torch.no_grad():
            return cache_bytes(build("taylor2", **options)(rows(), use_cache=True).past_key_values)

    narrow, wide = size(key_dim=4), size()
    rows_of = {4: 1 + 4 + 10, 8: 1 + 8 + 36}
    assert narrow * rows_of[8] == pytest.approx(wide * rows_of[4], rel=0.02)


def test_the_width_of_heads_changes_nothing():
    with torch.no_grad():
        torch.testing.assert_close(build("softmax", key_dim=8)(rows()).logits, build("softmax")(rows()).logits)


def test_beta_up_to_two():
    one, two = build("deltanet"), build("deltanet", beta_max=2.0)
    hidden = torch.randn(1, 5, 32)
    betas = [m.model.layers[0].self_attn.options(hidden)["beta"] for m in (one, two)]
    torch.testing.assert_close(2 * betas[0], betas[1])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key_dim": 5}, "key_dim must be even"),
        ({"key_dim": 0}, "key_dim must be"),
        ({"beta_max": 3.0}, "beta_max must"),
    ],
)
def test_what_does_not_fit_is_one_sentence(options, said):
    with pytest.raises(MechanismError, match=said):
        build("deltanet", **options)
