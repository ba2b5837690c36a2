"""Symmetric powers: appendix A, and declared size = real size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import softmax_rnn as sr
from softmax_rnn.backends.powers import multiplicities


def kronecker_power(x, n):
    out = torch.ones(1, dtype=x.dtype)
    for _ in range(n):
        out = torch.kron(out, x)
    return out


@given(d=st.integers(1, 6), n=st.integers(0, 5), seed=st.integers(0, 99))
def test_inner_products_of_powers_are_powers_of_inner_products(d, n, seed):
    a, b = torch.randn(2, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).unbind()
    want = (a @ b) ** n
    torch.testing.assert_close(sr.symmetric_power(a, n) @ sr.symmetric_power(b, n), want)
    torch.testing.assert_close(kronecker_power(a, n) @ kronecker_power(b, n), want)


@given(d=st.integers(1, 9), n=st.integers(0, 5))
def test_declared_size_is_real_size(d, n):
    x = torch.ones(2, 3, d)
    assert sr.symmetric_power(x, n).shape == (2, 3, sr.symmetric_dim(d, n))


@given(d=st.integers(1, 6), n=st.integers(0, 5))
def test_every_factor_order_is_counted_once(d, n):
    assert multiplicities(d, n).sum() == d**n


def test_orders_together():
    assert sum(sr.symmetric_dim(16, n) for n in range(3)) == 153  # C(16 + 2, 2)


@pytest.mark.parametrize(("d", "n"), [(0, 1), (3, -1)])
def test_impossible_sizes(d, n):
    with pytest.raises(sr.MechanismError, match=f"d={d}, n={n}"):
        sr.symmetric_dim(d, n)


def test_queries_without_keys_stand_at_the_last_token():
    q, k, v = torch.randn(3, 1, 2, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).unbind()
    whole, state = sr.attention(q, k, v, "cosformer", return_state=True)
    again = sr.attention(q[:, :, [5, 5]], k[:, :, :0], v[:, :, :0], "cosformer", state=state)
    torch.testing.assert_close(again, whole[:, :, [5, 5]])


def test_more_queries_than_a_map_is_for():
    m = sr.Mechanism(sr.Linear(sr.CosReweighted(8)), sr.Sum())
    q, k = torch.ones(1, 1, 9, 4), torch.ones(1, 1, 3, 4)
    with pytest.raises(sr.MechanismError, match="at most 8 tokens, got 9"):
        sr.attention(q, k, k, m, causal=False)
