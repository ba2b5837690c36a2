"""Exact gradients: torch's finite-difference check in float64 for every preset in every form that it has."""

import pytest
import torch

import softmax_rnn as sr

from .problems import NAMES, Problem, forms

# A stopped gradient is not the derivative of the output; test_reference.py and test_forms.py hold those presets to theirs.
CHECKED = [n for n in NAMES if not getattr(sr.mechanism(n).denominator, "detach", False)]
CASES = [(name, form) for name in CHECKED for form in ["reference", *forms(name)]]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_gradcheck(name, form):
    args = Problem(B=1, H=2, Hkv=1, Tq=4, D=2, E=2, seed=5).arguments(name)

    def run(*values):
        return sr.attention(mechanism=name, form=form, **dict(zip(args, values, strict=True)))

    assert torch.autograd.gradcheck(run, list(args.values()), atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("name", ["taylor2", "linear_elu", "taylor3_norm"])
@pytest.mark.parametrize("form", ["chunked", "recurrent"])
def test_gradcheck_through_the_state(name, form):
    first = Problem(B=1, H=2, Hkv=1, Tq=3, D=2, E=2, seed=1).arguments(name)
    second = Problem(B=1, H=2, Hkv=1, Tq=3, D=2, E=2, seed=2).arguments(name)

    def run(*values):
        a, b = values[:3], values[3:]
        _, state = sr.attention(*a, name, form=form, return_state=True)
        out, state = sr.attention(*b, name, form=form, state=state, return_state=True)
        return out, state.moments

    assert torch.autograd.gradcheck(run, [*first.values(), *second.values()], atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
def test_gradcheck_symmetric_power(n):
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sr.symmetric_power(x, n), x)
