"""The reference against formulas written out here by hand, one per variant of the paper: who checks the specification."""

import pytest
import torch
import torch.nn.functional as F

import softmax_rnn as sr

from .problems import Problem

T, D, E = 9, 4, 3


@pytest.fixture
def qkv():
    args = Problem(H=2, Hkv=2, Tq=T, D=D, E=E).arguments("softmax", leaves=False)
    return args["q"], args["k"], args["v"]


def dense(q, k, scale=D**-0.5):
    return q @ k.mT * scale, torch.ones(T, T, dtype=torch.bool).tril()


def gate(*shape):
    return torch.sigmoid(torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))


LENGTH = torch.arange(1, T + 1, dtype=torch.float64)[:, None]
G_OUT, G_IN = gate(2, 2, T), gate(2, 2, T)
WEIGHT, BIAS = gate(E), gate(E)


def exp5(q, k):
    x, mask = dense(q, k)
    return x.clamp(max=5).exp() * mask


LITERAL = {
    "softmax": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "norm": lambda q, k, v: F.normalize((dense(q, k)[0].exp() * dense(q, k)[1]) @ v, dim=-1),
    "gate": lambda q, k, v: G_OUT[..., None] * (exp5(q, k) @ v) / LENGTH,
    "gate_nolength": lambda q, k, v: G_OUT[..., None] * (exp5(q, k) @ v),
    "length": lambda q, k, v: exp5(q, k) @ v / LENGTH,
    "clamp_sum": lambda q, k, v: exp5(q, k) @ v / exp5(q, k).sum(-1, keepdim=True).clamp(min=1),
    "detach_sum_gate": lambda q, k, v: G_OUT[..., None] * (exp5(q, k) @ v) / (exp5(q, k).sum(-1, keepdim=True) + 1e-4),
    "in_gate": lambda q, k, v: exp5(q, k) @ (G_IN[..., None] * v) / LENGTH,
    "in_out_gate": lambda q, k, v: G_OUT[..., None] * (exp5(q, k) @ (G_IN[..., None] * v)) / LENGTH,
    "in_out_gate_layer": lambda q, k, v: F.layer_norm(
        G_OUT[..., None] * (exp5(q, k) @ (G_IN[..., None] * v)) / LENGTH, (E,), WEIGHT, BIAS
    ),
    "rms_length": lambda q, k, v: F.rms_norm(exp5(q, k) @ v / LENGTH, (E,), WEIGHT),
    "rms": lambda q, k, v: F.rms_norm(exp5(q, k) @ v, (E,), WEIGHT),
    "norm_post_gate": lambda q, k, v: G_OUT[..., None] * LITERAL["norm"](q, k, v),
    "relu_norm": lambda q, k, v: F.normalize((dense(q.relu(), k.relu())[0] * dense(q, k)[1]) @ v, dim=-1),
    "relu_gate": lambda q, k, v: (
        G_OUT[..., None] * ((dense(q.relu(), k.relu())[0].clamp(max=5) * dense(q, k)[1]) @ v) / LENGTH
    ),
    "linear": lambda q, k, v: (dense(q, k)[0] * dense(q, k)[1]) @ v,
}


def extras(name):
    m = sr.mechanism(name)
    found = {}
    if m.input_gate:
        found["input_gate"] = G_IN
    if m.output_gate:
        found["output_gate"] = G_OUT
    if m.norm in ("rms", "layer"):
        found["norm_weight"] = WEIGHT
    if m.norm == "layer":
        found["norm_bias"] = BIAS
    return found


@pytest.mark.parametrize("name", LITERAL)
def test_paper_variant(name, qkv):
    torch.testing.assert_close(sr.attention(*qkv, name, form="reference", **extras(name)), LITERAL[name](*qkv))


@pytest.mark.parametrize(("name", "phi"), [("linear_elu", lambda x: F.elu(x) + 1), ("linear_relu", F.relu)])
def test_linear_attention(name, phi, qkv):
    q, k, v = qkv
    w = (phi(q) @ phi(k).mT).tril()
    want = w @ v / (w.sum(-1, keepdim=True) + (1e-8 if name == "linear_relu" else 0))
    torch.testing.assert_close(sr.attention(q, k, v, name, form="reference"), want)


def test_cosine_with_learned_length(qkv):
    q, k, v = qkv
    c = torch.tensor([0.3, -1.0], dtype=torch.float64)
    w = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).tril()
    want = w @ v / LENGTH ** torch.sigmoid(c)[:, None, None]
    torch.testing.assert_close(sr.attention(q, k, v, "linear_cosine", form="reference", length_exponent=c), want)


@pytest.mark.parametrize("order", [0, 1, 2, 5])
@pytest.mark.parametrize("family", ["taylor", "elu", "relu", "cosine"])
def test_series(family, order, qkv):
    q, k, v = qkv
    phi = {
        "taylor": lambda x: x,
        "elu": lambda x: F.elu(x) + 1,
        "relu": F.relu,
        "cosine": lambda x: F.normalize(x, dim=-1),
    }[family]
    x = phi(q) @ phi(k).mT * (D**-0.5 if family == "taylor" else 1)
    w = sum(x**n / torch.lgamma(torch.tensor(n + 1.0, dtype=torch.float64)).exp() for n in range(order + 1)).tril()
    found = sr.attention(q, k, v, f"{family}{order}_norm", form="reference")
    torch.testing.assert_close(found, F.normalize(w @ v, dim=-1))
    if order % 2 == 0:
        found = sr.attention(q, k, v, f"{family}{order}", form="reference")
        torch.testing.assert_close(found, w @ v / w.sum(-1, keepdim=True))


def test_detached_sum_has_the_gradient_of_the_numerator_alone(qkv):
    q, k, v = (x.clone().requires_grad_() for x in qkv)
    w = exp5(q, k)
    want = torch.autograd.grad((w @ v / w.sum(-1, keepdim=True).clamp(min=1).detach()).square().sum(), (q, k, v))
    found = torch.autograd.grad(sr.attention(q, k, v, "detach_sum", form="reference").square().sum(), (q, k, v))
    torch.testing.assert_close(found, want)
