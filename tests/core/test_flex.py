"""The path that CUDA takes, on the CPU: FlexAttention's eager forward against the reference."""

import pytest
import torch

import softmax_rnn as sr
from softmax_rnn.backends.flex import flex_lse
from softmax_rnn.context import Context
from softmax_rnn.forms.reference import dense_sums

CASES = {
    "causal": {},
    "bidirectional": {"causal": False},
    "padding": {"keep": torch.arange(24)[None] >= torch.tensor([[0], [5]])},
    "documents": {"documents": torch.arange(24)[None].expand(2, -1) // 7},
    "cache": {"queries": 8},
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("clamp", [None, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_flex_equals_reference(case, clamp):
    options = {"queries": 24, "keys": 24, "causal": True, "device": torch.device("cpu"), **CASES[case]}
    see = Context(**options)
    q, k, v = torch.randn(2, 4, see.queries, 16), torch.randn(2, 2, 24, 16), torch.randn(2, 2, 24, 16)
    out, lse = flex_lse(q, k, v, see, 0.25, clamp)
    want = dense_sums(q, k, v, see, sr.Exp(clamp=clamp), 0.25)
    if clamp is None:
        torch.testing.assert_close(out, want.numerator, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse, want.lse, atol=1e-5, rtol=1e-5)
    else:
        torch.testing.assert_close(out * lse.exp() * (see.count() > 0), want.numerator, atol=1e-4, rtol=1e-5)
