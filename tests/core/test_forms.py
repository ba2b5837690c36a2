"""Every form of every preset equals the dense reference: outputs and gradients, over drawn shapes and masks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import softmax_rnn as sr

from .problems import FINITE, NAMES, Problem, assert_same, forms, looks_back, outputs_and_gradients

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


# Values have at least two channels: a vector norm of one channel is a sign, its gradient 0 and only rounding is left of it.
@st.composite
def problems(draw, causal=None, dtype=torch.float64):
    kv_heads = draw(st.integers(1, 2))
    problem = Problem(
        B=draw(st.integers(1, 3)), H=kv_heads * draw(st.integers(1, 3)), Hkv=kv_heads, Tq=draw(st.sampled_from([1, 2, 7, 16, 23])),
        D=draw(st.integers(1, 5)), E=draw(st.integers(2, 5)), dtype=dtype, seed=draw(st.integers(0, 99)),
    )  # fmt: skip
    causal = draw(st.booleans()) if causal is None else causal
    problem.options["causal"] = causal
    g = torch.Generator().manual_seed(problem.seed)
    T = problem.Tq
    padding = draw(st.sampled_from(["none", "left", "right", "random", "all"]))
    if padding != "none":
        amount = torch.randint(0, T + 1, (problem.B, 1), generator=g)
        position = torch.arange(T)[None]
        keep = {
            "left": position >= amount,
            "right": position < T - amount,
            "random": torch.rand(problem.B, T, generator=g) > 0.4,
            "all": torch.zeros(problem.B, T, dtype=torch.bool),
        }[padding]
        problem.options["key_padding_mask"] = keep
    if draw(st.booleans()):
        problem.options["segment_ids"] = (torch.rand(problem.B, T, generator=g) > 0.7).long().cumsum(1) * 3 - 1
    return problem


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(problem=problems())
def test_form_equals_reference(name, problem):
    problem.options["causal"] |= looks_back(name)
    expected = outputs_and_gradients(name, problem, "reference")
    for form in forms(name, problem.options["causal"]):
        chunk = {"chunk_size": 1 + problem.seed % 9} if form == "chunked" else {}
        # A power of the score is nearly 0 where the score is, and so is its sum: it divides what rounding left of differences.
        m = sr.mechanism(name)
        singular = isinstance(m.kernel, sr.Power) and m.denominator.needs_sum
        found = outputs_and_gradients(name, problem, form, **chunk)
        assert_same(found, expected, TOLERANCE[torch.float64], common_scale=singular)


@pytest.mark.parametrize(
    "name", ["softmax", "norm", "gate", "clamp_sum", "linear_elu", "taylor4", "taylor3_norm", "elu2"]
)
@settings(max_examples=6)
@given(problem=problems(dtype=torch.float32))
def test_form_equals_reference_in_float32(name, problem):
    # The specification is evaluated in float64 at the float32 inputs: what is tested is the form's own rounding.
    exact = Problem(**{**vars(problem), "dtype": torch.float64})
    exact.arguments = lambda m, leaves=True: {
        n: x.detach().double().requires_grad_() for n, x in problem.arguments(m, leaves=False).items()
    }
    expected = outputs_and_gradients(name, exact, "reference")
    for form in forms(name, problem.options["causal"]):
        found = {n: x.double() for n, x in outputs_and_gradients(name, problem, form).items()}
        assert_same(found, expected, TOLERANCE[torch.float32], common_scale=True)


@pytest.mark.parametrize(
    "name", ["softmax", "norm", "length", "taylor2", "linear_elu", "linear_cosine", "elu2_norm", "relu_norm"]
)
@pytest.mark.parametrize(("Tq", "Tk"), [(5, 9), (9, 5), (1, 7), (4, 1), (3, 0), (0, 3)])
def test_cross_attention(name, Tq, Tk):
    problem = Problem(Tq=Tq, Tk=Tk, options={"causal": False})
    expected = outputs_and_gradients(name, problem, "reference")
    for form in forms(name, causal=False):
        assert_same(outputs_and_gradients(name, problem, form), expected, 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_no_tokens(name):
    problem = Problem(Tq=0)
    for form in ["reference", *forms(name)]:
        assert outputs_and_gradients(name, problem, form)["out"].shape == (2, 4, 0, 3)


@pytest.mark.parametrize("name", ["softmax", "norm", "length", "gate", "taylor2", "linear_elu"])
def test_longer_than_any_tile(name):
    # More queries than a tile of any form, not a multiple of it, and documents that cross tile borders.
    ids = torch.arange(700)[None] // torch.tensor([[300], [41]])
    for options in ({}, {"segment_ids": ids}, {"causal": False, "segment_ids": ids}, {"causal": False}):
        problem = Problem(Tq=700, H=2, Hkv=1, options=options)
        expected = outputs_and_gradients(name, problem, "reference")
        for form in set(forms(name)) - {"recurrent"}:
            assert_same(outputs_and_gradients(name, problem, form), expected, 1e-9)


@pytest.mark.parametrize("name", ["softmax", "norm", "gate", "taylor2", "linear_elu"])
def test_non_contiguous_inputs(name):
    args = Problem().arguments(name, leaves=False)
    strided = {n: x.mT.contiguous().mT if x.ndim == 4 else x for n, x in args.items()}
    heads_last = {n: x.transpose(1, 2).contiguous().transpose(1, 2) if x.ndim == 4 else x for n, x in args.items()}
    assert not strided["q"].is_contiguous()
    for form in forms(name):
        want = sr.attention(mechanism=name, form=form, **args)
        torch.testing.assert_close(sr.attention(mechanism=name, form=form, **strided), want)
        torch.testing.assert_close(sr.attention(mechanism=name, form=form, **heads_last), want)


@pytest.mark.parametrize("name", NAMES)
def test_what_lies_under_the_padding_does_not_matter(name):
    keep = torch.ones(2, 13, dtype=torch.bool)
    keep[0, :4], keep[1, -5:] = False, False
    args = Problem().arguments(name, leaves=False)
    dirty = {**args, "k": args["k"].clone(), "v": args["v"].clone()}
    for x in (dirty["k"], dirty["v"]):
        x[~keep[:, None].expand(2, 2, 13)] = torch.nan
    for form in forms(name):
        want = sr.attention(mechanism=name, form=form, key_padding_mask=keep, **args)
        assert torch.equal(sr.attention(mechanism=name, form=form, key_padding_mask=keep, **dirty), want)
        leaves = {n: x.clone().requires_grad_() for n, x in dirty.items()}
        out = sr.attention(mechanism=name, form=form, key_padding_mask=keep, **leaves)
        grads = torch.autograd.grad(out.sum(), list(leaves.values()), allow_unused=True)
        assert all(g.isfinite().all() for g in grads if g is not None)


@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize("chunk", [1, 3, 13, 64])
def test_any_chunk_size(name, chunk):
    problem = Problem(options={"chunk_size": chunk})
    expected = outputs_and_gradients(name, problem, "reference")
    assert_same(outputs_and_gradients(name, problem, "chunked"), expected, 1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("causal", [True, False])
def test_auto_is_one_of_the_forms(name, causal):
    causal = causal or looks_back(name)
    args = Problem().arguments(name, leaves=False)
    auto = sr.attention(mechanism=name, causal=causal, **args)
    torch.testing.assert_close(auto, sr.attention(mechanism=name, causal=causal, form="reference", **args))


@pytest.mark.parametrize("scale", [0.3, 1, 2.0, 0.0, -1.0])
def test_scale(scale):
    for name in ("softmax", "norm", "gate", "taylor2", "elu2_norm"):
        problem = Problem(options={"scale": scale})
        expected = outputs_and_gradients(name, problem, "reference")
        for form in forms(name):
            assert_same(outputs_and_gradients(name, problem, form), expected, 1e-9)


@pytest.mark.parametrize("name", [n for n in NAMES if sr.mechanism(n).norm is None])
def test_one_channel(name):
    problem = Problem(D=1, E=1)
    expected = outputs_and_gradients(name, problem, "reference")
    for form in forms(name):
        assert_same(outputs_and_gradients(name, problem, form), expected, 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_empty_batch(name):
    for form in ["reference", *forms(name)]:
        found = outputs_and_gradients(name, Problem(B=0), form)
        assert found["out"].shape == (0, 4, 13, 3)


@pytest.mark.parametrize("name", ["norm", "linear_elu", "taylor2", "near2", "deltanet", "mamba2"])
@pytest.mark.parametrize("sizes", [{"Tq": 0}, {"B": 0}, {"Tq": 0, "Tk": 0}])
def test_gradients_of_nothing_are_zeros(name, sizes):
    for form in ["reference", *forms(name)]:
        args = Problem(**sizes).arguments(name)
        sr.attention(mechanism=name, form=form, **args).sum().backward()
        assert all(args[x].grad is not None and not args[x].grad.any() for x in "qkv")


@pytest.mark.parametrize("name", ["length", "relu_gate"])
def test_slope_at_the_clamp(name):
    # A score of exactly the limit: every form has the slope of below, as torch.clamp has.
    args = Problem(B=1, H=1, Hkv=1, Tq=2, D=1).arguments(name)
    ones = {n: torch.ones_like(x, requires_grad=True) for n, x in args.items()}
    grads = [
        torch.autograd.grad(sr.attention(mechanism=name, form=form, scale=5.0, **ones).sum(), ones["q"])[0]
        for form in ("reference", "parallel")
    ]
    torch.testing.assert_close(*grads)
    assert grads[0].abs().max() > 0


def test_states_of_many_heads_are_made_in_parts(monkeypatch):
    from softmax_rnn.backends import chunks

    problem = Problem(options={"segment_ids": torch.arange(13)[None].expand(2, -1) // 5})
    expected = outputs_and_gradients("taylor3_norm", problem, "chunked")
    monkeypatch.setattr(chunks, "LARGEST", 1)
    assert_same(outputs_and_gradients("taylor3_norm", problem, "chunked"), expected, 1e-12)
