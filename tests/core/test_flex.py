"""The path that CUDA takes, on the CPU: FlexAttention's eager forward against the reference."""

import pytest
import torch

import softmax_rnn as sr
from softmax_rnn.ops.flex import flex
from softmax_rnn.ops.reference import sums
from softmax_rnn.ops.visibility import Visibility

CASES = {
    "causal": {},
    "bidirectional": {"causal": False},
    "padding": {"keep": torch.arange(24)[None] >= torch.tensor([[0], [5]])},
    "documents": {"runs": torch.arange(24)[None].expand(2, -1) // 7},
    "cache": {"queries": 8},
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("clamp", [None, 0.5])
@pytest.mark.parametrize("case", CASES)
def test_flex_equals_reference(case, clamp):
    options = {"queries": 24, "keys": 24, "causal": True, "device": torch.device("cpu"), **CASES[case]}
    see = Visibility(**options)
    q, k, v = torch.randn(2, 4, see.queries, 16), torch.randn(2, 2, 24, 16), torch.randn(2, 2, 24, 16)
    out, lse = flex(q, k, v, see, 0.25, clamp)
    want = sums(q * 0.25, k, v, sr.Exp(clamp=clamp), see)
    if clamp is None:
        torch.testing.assert_close(out, want.numerator, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse, want.lse, atol=1e-5, rtol=1e-5)
    else:
        torch.testing.assert_close(out * lse.exp() * (see.count() > 0), want.numerator, atol=1e-4, rtol=1e-5)
