"""The whole inspection: what it says about the model, centring, and that it leaves the model alone."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

import softmax_rnn as sr
from softmax_rnn.microscope import main
from softmax_rnn.microscope.heads import save_centers
from softmax_rnn.microscope.inspection import SETTLED, inspect
from softmax_rnn.microscope.results import cache_bytes, load, save, state_bytes

from .conftest import ONE_LAYER, SIZES

QUICK: dict[str, Any] = {"orders": 32, "layer_orders": (2,), "layer_tokens": 16}


def test_the_curve_ends_at_the_models_own_loss(llama: Any, ids: Tensor) -> None:
    found = inspect(llama, ids, layer_orders=(2, 128), layer_tokens=16).summary
    with torch.no_grad():
        own = llama(ids, labels=ids).loss.item()
    assert found["metric"] == "loss"
    assert found["untouched"] == pytest.approx(own, abs=1e-4)
    assert found["all_layers"]["none"]["values"][-1] == pytest.approx(own, abs=SETTLED["loss"])
    for row in found["one_layer"]["none"]:
        assert row["values"][1] == pytest.approx(found["one_layer"]["untouched"], abs=1e-4)
        assert row["values"][0] != pytest.approx(found["one_layer"]["untouched"], abs=1e-3)


def test_the_curve_is_that_of_the_patched_model(llama: Any, ids: Tensor) -> None:
    curve = inspect(llama, ids, **QUICK).summary["all_layers"]["none"]
    sr.patch(llama.double(), "taylor4")
    with torch.no_grad():
        patched = llama(ids, labels=ids, use_cache=False).loss.item()
    assert curve["values"][curve["orders"].index(4)] == pytest.approx(patched, abs=1e-3)


def test_an_encoder_is_compared_with_itself(bert: Any, ids: Tensor) -> None:
    found = inspect(bert, ids, layer_orders=()).summary
    assert (found["metric"], found["causal"]) == ("cosine", False)
    assert found["untouched"] == pytest.approx(1)
    assert found["all_layers"]["none"]["values"][-1] == pytest.approx(1, abs=1e-4)
    assert found["all_layers"]["none"]["values"][0] < 0.99


@pytest.mark.parametrize("mechanism", ["softmax", "norm", "gate", "linear_elu", "linear_relu", "linear_cosine"])
def test_models_of_ours(mechanism: str, ids: Tensor) -> None:
    config = sr.SoftmaxRnnConfig(**SIZES, mechanism=mechanism)
    model = sr.SoftmaxRnnForCausalLM(config)
    found = inspect(model, ids, **QUICK)
    assert model.training  # as it was
    assert found.summary["mechanism"] == str(sr.mechanism(mechanism))
    with torch.no_grad():
        assert found.summary["untouched"] == pytest.approx(model.eval()(ids, labels=ids).loss.item(), abs=1e-4)
    if mechanism in ("linear_elu", "linear_relu"):
        assert min(r["low"] for r in found.heads["none"]) >= 0
    if mechanism == "linear_cosine":
        assert max(r["high"] for r in found.heads["none"]) <= 1 + 1e-6


def test_the_model_is_left_as_it_was(llama: Any, bert: Any, ids: Tensor, other: Tensor) -> None:
    for model in (llama, bert):
        with torch.no_grad():
            before = model(ids)[0]
            implementation = model.config._attn_implementation
            inspect(model, ids, center="mean", calibration_ids=other, **QUICK)
            assert model.config._attn_implementation == implementation
            assert torch.equal(model(ids)[0], before)
    with pytest.raises(sr.UserError):
        inspect(sr.patch(llama, "taylor2"), ids)


@pytest.mark.parametrize("name", ["mean", "best"])
@pytest.mark.parametrize(
    "mechanism", ["softmax", "norm", sr.Mechanism(sr.Exp(), sr.Unnormalised(), norm="rms")], ids=str
)
def test_centring_changes_nothing_for_exp(
    llama: Any, ids: Tensor, other: Tensor, tmp_path: Path, mechanism: Any, name: str
) -> None:
    found = inspect(llama, ids, center="best", calibration_ids=other, **QUICK)
    save_centers(found.centers[name], tmp_path / "c.safetensors")
    model = llama.double()
    with torch.no_grad():
        plain = sr.patch(model, mechanism)(ids, use_cache=False).logits
        centred = sr.patch(model, mechanism, center=tmp_path / "c.safetensors")(ids, use_cache=False).logits
        series = sr.patch(model, "taylor2")(ids, use_cache=False).logits
        moved = sr.patch(model, "taylor2", center=tmp_path / "c.safetensors")(ids, use_cache=False).logits
    torch.testing.assert_close(
        centred, plain, rtol=1e-4, atol=1e-4
    )  # rms and l2 have an epsilon; RoPE and norms are float32
    assert (moved - series).abs().max() > 0.01  # and much for a series


@pytest.mark.slow
def test_centring_saves_orders_where_keys_share_a_direction(llama: Any, ids: Tensor, other: Tensor) -> None:
    """Scores far below 0 for all keys alike: nothing for softmax, hopeless for a series, until they are centred."""
    for layer in llama.model.layers:
        layer.self_attn.k_proj.bias = torch.nn.Parameter(torch.full((16,), 6.0))
    found = inspect(llama, ids, center="best", calibration_ids=other, layer_orders=())
    median = {v: n["median"] or 1000 for v, n in found.summary["needed"].items()}
    assert median["mean"] < median["none"]
    assert median["best"] <= median["mean"]
    assert found.heads["mean"][0]["entropy"] == pytest.approx(found.heads["none"][0]["entropy"], rel=1e-3)


@pytest.mark.slow
def test_the_saved_files(
    llama: Any, ids: Tensor, other: Tensor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspect(llama, ids, center="best", calibration_ids=other, **QUICK)
    parent, tmp_path = tmp_path, tmp_path / "tiny"
    save(found, {"model": "<tiny>", "command": "inspect <tiny>"}, tmp_path)
    summary, heads = load(tmp_path)
    assert summary["needed"] == found.summary["needed"]
    assert heads == found.heads
    page = (tmp_path / "index.html").read_text()
    assert "&lt;tiny&gt;" in page
    assert "<tiny>" not in page
    assert page.count("<svg") == 6
    assert 'src="' not in page  # nothing to fetch
    assert {p.name for p in tmp_path.glob("*.svg")} >= {"dominant.svg", "terms.svg", "quality.svg", "heads.svg"}
    json.dumps(summary, allow_nan=False)
    sr.patch(llama, "taylor2", center=tmp_path / "calibration.safetensors")

    assert main(["--compare", str(parent)]) == 0
    assert "| tiny | learned |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"orders": 129}, "from 1 to 128"),
        ({"tolerance": 0.0}, "between 0 and 1"),
        ({"center": "median"}, "one of none, mean, best"),
        ({"center": "mean"}, "other text"),
        ({"attention_mask": torch.ones(1, 3)}, "shape"),
    ],
)
def test_bad_arguments_are_one_sentence(llama: Any, ids: Tensor, change: dict[str, Any], said: str) -> None:
    with pytest.raises(sr.UserError, match=said):
        inspect(llama, ids, **change)


def test_what_cannot_be_centred_is_refused(ids: Tensor, other: Tensor) -> None:
    config = sr.SoftmaxRnnConfig(**ONE_LAYER, mechanism="gate")
    with pytest.raises(sr.UserError, match="Centring would change"):
        inspect(sr.SoftmaxRnnForCausalLM(config), ids, center="mean", calibration_ids=other)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("fox", "decays"),
        ("wall", "decays"),
        ("delta_softmax", "delta rule"),
        ("near2", "exact weights near"),
        ("sink", "a sink"),
    ],
)
def test_attention_that_scores_do_not_explain_is_refused(name: str, what: str, ids: Tensor) -> None:
    config = sr.SoftmaxRnnConfig(**ONE_LAYER, mechanism=name)
    with pytest.raises(sr.UserError, match=what):
        inspect(sr.SoftmaxRnnForCausalLM(config), ids)


def test_a_window_is_seen(ids: Tensor) -> None:
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**ONE_LAYER, num_key_value_heads=2, sliding_window=5)).eval()
    found = inspect(model, ids, orders=32, layer_orders=())
    assert found.summary["all_layers"]["none"]["values"][-1] == pytest.approx(found.summary["untouched"], abs=1e-4)
    counts = [min(t + 1, 5) for t in range(24)]
    assert found.heads["none"][0]["uniform"] == pytest.approx(sum(math.log(n) for n in counts) / 24, rel=1e-3)


def test_capped_scores_are_refused(ids: Tensor) -> None:
    model = Gemma2ForCausalLM(Gemma2Config(**ONE_LAYER, num_key_value_heads=2, head_dim=8)).eval()
    with pytest.raises(sr.UserError, match="caps its scores"):
        inspect(model, ids)


def test_a_convolution_and_no_rope_change_nothing_for_the_microscope(ids: Tensor) -> None:
    config = sr.SoftmaxRnnConfig(**ONE_LAYER, conv=3, rope=False)
    model = sr.SoftmaxRnnForCausalLM(config).eval()
    found = inspect(model, ids, orders=32, layer_orders=()).summary
    assert found["all_layers"]["none"]["values"][-1] == pytest.approx(model(ids, labels=ids).loss.item(), abs=1e-4)


def test_state_sizes_are_real() -> None:
    q, k, v = torch.randn(3, 1, 1, 6, 8).unbind()
    for order in (1, 2, 3):
        m = sr.Mechanism(sr.Taylor(order), sr.Sum(), allow_signed=True)
        _, state = sr.attention(q, k, v, m, return_state=True)
        assert state.nbytes == pytest.approx(state_bytes(8, 8, order), abs=64)  # the state also counts tokens
        features = sum(sr.symmetric_power(q, n).shape[-1] for n in range(order + 1))
        assert state_bytes(8, 8, order) == features * 9 * 4
    assert cache_bytes(64, 64, 1024) == 1024 * 128 * 2
