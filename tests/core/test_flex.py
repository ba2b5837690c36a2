"""The path that CUDA takes, on the CPU: FlexAttention's eager forward against the reference."""

import pytest
import torch

import softmax_rnn as sr
from softmax_rnn.backends import SoftmaxCall, WeightedCall, _flex, _flex_refuses, _flex_weighted, _flex_weighted_refuses
from softmax_rnn.backends.flex import even_taylor
from softmax_rnn.context import Context
from softmax_rnn.forms.reference import dense_sums

CASES = {
    "causal": {},
    "bidirectional": {"causal": False},
    "padding": {"keep": torch.arange(24)[None] >= torch.tensor([[0], [5]])},
    "documents": {"documents": torch.arange(24)[None].expand(2, -1) // 7},
    "cache": {"queries": 8},
}


def problem(case):
    options = {"queries": 24, "keys": 24, "causal": True, "device": torch.device("cpu"), **CASES[case]}
    see = Context(**options)
    return torch.randn(2, 4, see.queries, 16), torch.randn(2, 2, 24, 16), torch.randn(2, 2, 24, 16), see


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("case", CASES)
def test_softmax_equals_reference(case, softcap):
    q, k, v, see = problem(case)
    out, lse = _flex(SoftmaxCall(q, k, v, see, 0.25, softcap, True))
    want = dense_sums(q, k, v, see, sr.Exp(softcap=softcap), 0.25)
    torch.testing.assert_close(out, want.numerator, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse, want.lse, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kernel", [sr.Exp(clamp=0.5), sr.Taylor(0), sr.Taylor(2), sr.Taylor(10)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_weights_equal_reference(case, kernel):
    q, k, v, see = problem(case)
    call = WeightedCall(q, k, v, see, 0.7, kernel.coefficients or (), kernel.limit, True)
    out, total = _flex_weighted(call)
    want = dense_sums(q, k, v, see, kernel, 0.7)
    for found, exact in ((out, want.numerator), (total, want.total)):
        assert (found - exact).abs().max() <= 1e-5 * exact.abs().max()


def test_what_is_positive_everywhere():
    assert [even_taylor(sr.Taylor(n).coefficients) for n in range(5)] == [True, False, True, False, True]
    assert not even_taylor(sr.Power(2).coefficients)


def test_what_it_cannot_do_is_refused():
    q, k, v, see = problem("causal")
    q = torch.empty_like(q, device="meta")
    object.__setattr__(see, "clock", torch.zeros(2, 2, 24, dtype=torch.float64))
    odd = WeightedCall(q, k, v, see, 1.0, sr.Taylor(3).coefficients, None, True)
    assert "positive everywhere" in _flex_weighted_refuses(odd)

    class OnCard:  # a call whose tensors say that they are on a card
        context, q = see, type("q", (), {"device": torch.device("cuda")})

    assert "decay" in _flex_refuses(OnCard)
