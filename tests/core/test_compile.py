"""torch.compile(fullgraph=True) of a function that calls attention, for each form, with gradients."""

import pytest
import torch

import softmax_rnn as sr

from .problems import Problem

CASES = [("softmax", "parallel"), ("length", "parallel"), ("taylor2", "parallel"), ("taylor2", "chunked"), ("taylor2", "recurrent"),
         ("softmax", "reference"), ("performer", "chunked")]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), CASES)
def test_fullgraph(name, form):
    torch._dynamo.reset()
    args = Problem(H=2, Hkv=1, Tq=9, dtype=torch.float32).arguments(name)
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[0, :2] = False

    def layer(q, k, v):
        return sr.attention(q.sin(), k, v, name, form=form, key_padding_mask=keep).tanh()

    want = layer(*args.values())
    backend = (
        "inductor" if form in ("parallel", "chunked") else "aot_eager"
    )  # long loops: machine code takes half a minute
    found = torch.compile(layer, fullgraph=True, backend=backend)(*args.values())
    torch.testing.assert_close(found, want, atol=1e-5, rtol=1e-5)
    expected = torch.autograd.grad(want.sum(), list(args.values()))
    torch.testing.assert_close(torch.autograd.grad(found.sum(), list(args.values())), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "taylor2"])
def test_a_state_goes_in_and_out(name):
    torch._dynamo.reset()
    args = Problem(H=2, Hkv=1, Tq=9, dtype=torch.float32).arguments(name, leaves=False)

    def step(q, k, v, state):
        return sr.attention(q, k, v, name, state=state, return_state=True)

    _, state = sr.attention(mechanism=name, return_state=True, **args)
    want, after = step(*args.values(), state)
    found, compiled = torch.compile(step, fullgraph=True)(*args.values(), state)
    torch.testing.assert_close(found, want)
    assert compiled.tokens == after.tokens == 18


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "norm", "taylor2", "length"])
def test_several_lengths_without_masks(name):
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: sr.attention(q, k, v, name), fullgraph=True, backend="aot_eager")
    for T in (16, 24, 7):
        x = torch.randn(1, 2, T, 8, requires_grad=True)
        torch.testing.assert_close(compiled(x, x, x), sr.attention(x, x, x, name))


def test_graphs_of_another_version_are_not_taken_from_the_cache():
    assert f"softmax_rnn {sr.__version__}" in torch.compiler.config.cache_key_tag
