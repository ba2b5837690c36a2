"""What users get wrong, and the sentence they see."""

import pytest
import torch

import softmax_rnn as sr

from .problems import Problem

BASE = Problem(dtype=torch.float32).arguments(
    "softmax", leaves=False
)  # q (2, 4, 13, 4), k (2, 2, 13, 4), v (2, 2, 13, 3)
GATE = torch.ones(2, 4, 13)
BOOL = torch.ones(2, 13, dtype=torch.bool)


def state_of(mechanism, **changes):
    args = {**BASE, **changes}
    return sr.attention(mechanism=mechanism, return_state=True, **args)[1]


CASES = {
    "rank": ({"q": BASE["q"][0]}, r"q must have shape \(batch, heads, tokens, dim\)"),
    "not a tensor": ({"v": [1.0]}, "v must be a torch.Tensor, got list"),
    "dtypes differ": ({"k": BASE["k"].double()}, "share one floating dtype"),
    "integers": ({n: BASE[n].long() for n in "qkv"}, "floating dtype"),
    "devices differ": ({"k": BASE["k"].to("meta")}, "on one device"),
    "head dim": ({"k": BASE["k"][..., :2]}, r"k must have shape \(2, 2, 13, 4\)"),
    "lengths of k and v": ({"v": BASE["v"][:, :, :5]}, "k must have shape"),
    "batch": ({"v": BASE["v"][:1], "k": BASE["k"][:1]}, "v must have the batch size of q, 2, got 1"),
    "mask is a list": ({"key_padding_mask": [True]}, "key_padding_mask must be a torch.Tensor, got list"),
    "gate is a number": ({"mechanism": "gate", "output_gate": 0.5}, "output_gate must be a torch.Tensor, got float"),
    "causal": ({"causal": None}, "causal must be True or False, got None"),
    "scale is a bool": ({"scale": True}, "scale must be a finite number"),
    "negative scale of a positive kernel": ({"mechanism": "linear_elu", "scale": -1.0}, "With scale=-1.0 the weights"),
    "large scale of a cosine": ({"mechanism": "cosine3", "scale": 5.0}, "With scale=5.0 the weights"),
    "heads": ({"q": BASE["q"][:, :3]}, "3 query heads must be a multiple of the 2 key/value heads"),
    "no channels": ({n: BASE[n][..., :0] for n in "qkv"}, "at least 1"),
    "causal lengths": ({"q": BASE["q"][:, :, :5]}, "5 queries over 13 keys needs a state"),
    "form": ({"form": "fast"}, "form must be one of auto, parallel"),
    "chunked exp": ({"form": "chunked"}, "no finite recurrent state"),
    "recurrent clamp": ({"mechanism": "length", "form": "recurrent"}, "there is no recurrent state"),
    "recurrent bidirectional": ({"form": "recurrent", "causal": False}, "goes forward in time"),
    "name": ({"mechanism": "softmin"}, "Unknown mechanism"),
    "scale": ({"scale": float("inf")}, "scale must be a finite number"),
    "chunk": ({"chunk_size": 0}, "chunk_size"),
    "gate missing": ({"mechanism": "gate"}, r"needs output_gate= of shape \(2, 4, 13\)"),
    "gate unwanted": ({"output_gate": GATE}, "has no use for output_gate="),
    "gate shape": ({"mechanism": "gate", "output_gate": GATE[:, :1]}, r"output_gate must have shape \(2, 4, 13\)"),
    "norm weight unwanted": ({"mechanism": "norm", "norm_weight": torch.ones(3)}, "no use for norm_weight"),
    "exponent missing": ({"mechanism": "linear_cosine"}, r"needs length_exponent= of shape \(4,\)"),
    "float mask": ({"key_padding_mask": torch.full((2, 13), torch.nan)}, "must be bool with True = keep, got torch.float32"),
    "mask shape": ({"key_padding_mask": BOOL[:, :5]}, "key_padding_mask must have shape"),
    "mask device": ({"key_padding_mask": BOOL.to("meta")}, "key_padding_mask is on meta"),
    "float segments": ({"segment_ids": torch.zeros(2, 13)}, "segment_ids must be whole numbers"),
    "segments of cross-attention": (
        {"segment_ids": BOOL.long(), "causal": False, "q": BASE["q"][:, :, :3]}, "as many queries as keys",
    ),
    "centre of a clamp": ({"mechanism": "length", "center": torch.zeros(2, 4)}, "for exp and its Taylor series"),
    "centre of a linear map": ({"mechanism": "linear_elu", "center": torch.zeros(2, 4)}, "for exp and its Taylor series"),
    "centre that nothing cancels": (
        {"mechanism": sr.Mechanism(sr.Exp(), sr.Length()), "center": torch.zeros(2, 4)}, "only a plain Sum",
    ),
    "centre and a stopped gradient": (
        {"mechanism": sr.Mechanism(sr.Exp(), sr.Sum(detach=True)), "center": torch.zeros(2, 4)}, "only a plain Sum",
    ),
    "centre shape": ({"center": torch.zeros(4, 4)}, r"center must have shape \(2, 4\)"),
    "bidirectional state": ({"causal": False, "return_state": True}, "needs causal=True"),
    "not a state": ({"state": "yesterday"}, "state must come from attention"),
    "state of another mechanism": ({"state": state_of("norm")}, "The state belongs to"),
    "state of another form": ({"mechanism": "taylor2", "state": state_of("taylor2"), "form": "parallel"}, "cannot be continued"),
    "state of another batch": ({"state": state_of("softmax", **{n: x[:1] for n, x in BASE.items()})}, "The state is for batch 1"),
    "state without segments": ({"state": state_of("softmax"), "segment_ids": BOOL.long()}, "without segment_ids"),
    "state without centre": ({"state": state_of("softmax"), "center": torch.zeros(2, 4)}, "without center="),
    "state with another centre": ({"state": state_of("softmax", center=torch.ones(2, 4)), "center": torch.zeros(2, 4)}, "another center"),
    "state of another dtype": (
        {"state": state_of("softmax"), **{n: x.bfloat16() for n, x in BASE.items()}}, "holds torch.float32 numbers",
    ),
    "state on another device": ({"mechanism": "taylor2", "state": state_of("taylor2").to("meta")}, "The state is on meta"),
    "too many queries": ({"state": state_of("softmax"), "k": BASE["k"][:, :, :2], "v": BASE["v"][:, :, :2]}, "as many new keys or none"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_one_clear_sentence(case, monkeypatch):
    changes, words = CASES[case]
    args = {"mechanism": "softmax", **BASE, **changes}
    unchecked = getattr(sr.attention, "__wrapped__", sr.attention)  # users do not run with checked shapes
    with pytest.raises(sr.MechanismError, match=words) as error:
        unchecked(**args)
    assert "\n" not in str(error.value)


def test_a_state_that_cannot_fit_says_what_would():
    q = torch.zeros(1, 8, 4, 64)
    with pytest.raises(sr.MechanismError) as error:
        sr.attention(q, q, q, "taylor10", form="chunked")
    text = str(error.value)
    assert "at head size 64 would take" in text
    assert "order 4 would fit" in text
    assert "a head size of" in text


def test_a_state_keeps_its_precision():
    with pytest.raises(sr.MechanismError, match="to\\(\\) takes a device"):
        state_of("taylor2").to(torch.float16)


@pytest.mark.parametrize("x", [torch.tensor([1, 2, 3]), torch.tensor(1.0), [1.0]])
def test_symmetric_power_refuses_nonsense(x):
    unchecked = getattr(sr.symmetric_power, "__wrapped__", sr.symmetric_power)
    with pytest.raises(sr.MechanismError, match="floating tensor"):
        unchecked(x, 2)


@pytest.mark.parametrize("name", ["norm", "length", "taylor2", "softmax"])
def test_double_backward_raises(name):
    args = Problem().arguments(name)
    (grad,) = torch.autograd.grad(sr.attention(mechanism=name, **args).sum(), args["q"], create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(grad.sum(), args["q"])


@pytest.mark.parametrize("sizes", [(0, 1, 1, 1, 1), (1, 1, 1, 1, -1), ("1", 1, 1, 1, 1)])
def test_explain_refuses_nonsense(sizes):
    with pytest.raises(sr.MechanismError, match="sizes >= 1"):
        sr.explain("softmax", *sizes)


@pytest.mark.parametrize("orders", [-1, [], [2, -1], "2", 2.0])
def test_terms_refuse_nonsense(orders):
    unchecked = getattr(sr.taylor_terms, "__wrapped__", sr.taylor_terms)
    with pytest.raises(sr.MechanismError, match="orders must be"):
        unchecked(BASE["q"], BASE["k"], BASE["v"], orders)
