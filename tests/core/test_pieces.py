"""How large blocks, pieces and tiles are is a matter of speed alone: with tiny ones every form computes the same."""

import pytest
import torch

import softmax_rnn as sr
from softmax_rnn.backends import linear, tiles

from .problems import Problem, assert_same, outputs_and_gradients

KEEP = torch.arange(22)[None] >= torch.tensor([[0], [3]])
KEEP[0, 9:11] = False
OPTIONS = {
    "plain": {},
    "padding": {"key_padding_mask": KEEP},
    "documents": {"segment_ids": torch.arange(22)[None] // torch.tensor([[6], [30]])},
}
NAMES = (
    "linear",
    "linear_elu",
    "mamba2",
    "retnet",
    "gla",
    "deltanet",
    "gated_deltanet",
    "kda",
    "taylor2",
    "gate",
    "fox",
)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setenv("SOFTMAX_RNN_NATIVE", "0")  # test_native.py has the borders of the loops in C
    monkeypatch.setattr(linear, "TOKENS", 8)
    monkeypatch.setattr(tiles, "ROWS", 4)
    monkeypatch.setattr(tiles, "SMALL", (4, 5))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_tiny_pieces_give_the_same(name, options, tiny):
    chunked = sr.mechanism(name).kernel.finite
    for heads in ({"H": 4, "Hkv": 2}, {"H": 2, "Hkv": 2, "B": 2}):
        problem = Problem(Tq=22, options=OPTIONS[options], **heads)
        want = outputs_and_gradients(name, problem, "reference")
        assert_same(outputs_and_gradients(name, problem, "parallel"), want, 1e-9)
        if chunked:
            assert_same(outputs_and_gradients(name, problem, "chunked", chunk_size=4), want, 1e-9)


@pytest.mark.parametrize("name", ["mamba2", "gla", "gated_deltanet", "kda"])
def test_clocks_that_fall_too_fast_for_factors(name, monkeypatch):
    problem = Problem(Tq=22)
    want = outputs_and_gradients(name, problem, "chunked", chunk_size=8)
    monkeypatch.setitem(linear.FALL, torch.float64, 0.0)
    assert_same(outputs_and_gradients(name, problem, "chunked", chunk_size=8), want, 1e-11)


@pytest.mark.parametrize("name", ["linear_elu", "mamba2", "gated_deltanet", "kda"])
def test_a_state_in_the_middle_has_gradients(name):
    args = Problem(Tq=22).arguments(name)
    cut = {n: (2 if x.ndim > 2 else None) for n, x in args.items()}
    halves = [{n: x if cut[n] is None else x.narrow(2, begin, 11) for n, x in args.items()} for begin in (0, 11)]
    _, state = sr.attention(mechanism=name, form="chunked", chunk_size=4, return_state=True, **halves[0])
    out = sr.attention(mechanism=name, form="chunked", chunk_size=4, state=state, **halves[1])
    whole = sr.attention(mechanism=name, form="reference", **args)[:, :, 11:]
    found, want = (torch.autograd.grad(x.square().sum(), list(args.values()), allow_unused=True) for x in (out, whole))
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
