"""Any way to cut a sequence equals the whole: outputs and final state, with gates, norms, padding and documents."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import softmax_rnn as sr

from .problems import FINITE, NAMES, Problem, assert_same, forms, piece

T = 17


def stream(name, args, cuts, form):
    state, outputs = None, []
    edges = [0, *sorted(cuts), T]
    for begin, end in itertools.pairwise(edges):
        out, state = sr.attention(
            mechanism=name, form=form, state=state, return_state=True, **piece(name, args, begin, end)
        )
        outputs.append(out)
    return torch.cat(outputs, 2), state


def memory(state):
    if isinstance(state, sr.NearState):
        return {f"near {n}": x for n, x in memory(state.near).items()} | {
            f"far {n}": x for n, x in memory(state.far).items()
        }
    tensors = {n: x for n, x in vars(state).items() if isinstance(x, torch.Tensor)}
    return {n: x.detach().double() for n, x in tensors.items()} | {"tokens": torch.tensor(float(state.tokens))}


def streaming_forms(name):
    return ["auto", "reference", *forms(name)]


@st.composite
def masks(draw):
    g = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    found = {}
    if draw(st.booleans()):
        found["key_padding_mask"] = torch.rand(2, T, generator=g) > draw(st.sampled_from([0.2, 0.8]))
    if draw(st.booleans()):
        found["segment_ids"] = (torch.rand(2, T, generator=g) > 0.7).long().cumsum(1)
    return found


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8)
@given(cuts=st.lists(st.integers(0, T), max_size=4), masks=masks())
def test_any_split_equals_the_whole(name, cuts, masks):
    args = {**Problem(Tq=T).arguments(name, leaves=False), **masks}
    want = sr.attention(mechanism=name, form="reference", **args)
    for form in streaming_forms(name):
        whole, state = sr.attention(mechanism=name, form=form, return_state=True, **args)
        out, final = stream(name, args, cuts, form)
        assert_same({"out": out, **memory(final)}, {"out": whole, **memory(state)}, 1e-9)
        assert_same({"out": out}, {"out": want}, 1e-9)


@pytest.mark.parametrize(
    "name", ["softmax", "norm", "gate", "taylor2", "linear_elu", "linear_cosine", "fox", "mamba2", "gla", "near_4"]
)
def test_gradients_flow_through_the_cuts(name):
    def gradients(cuts):
        args = Problem(Tq=T).arguments(name)
        out, _ = stream(name, args, cuts, "auto")
        return dict(zip(args, torch.autograd.grad(out.square().sum(), list(args.values())), strict=True))

    assert_same(gradients([3, 4, 11]), gradients([]), 1e-9)


@pytest.mark.parametrize(
    "name", ["softmax", "norm", "gate", "taylor2", "elu2", "linear_cosine", "fox", "gla", "near_4"]
)
def test_beams_are_reordered_by_index(name):
    args = Problem(B=3, Tq=T).arguments(name, leaves=False)
    first, rest = piece(name, args, 0, 9), piece(name, args, 9, T)
    order = torch.tensor([2, 0, 0])
    _, state = sr.attention(mechanism=name, return_state=True, **first)
    out = sr.attention(mechanism=name, state=state.index_select(order), **rest)
    picked = {n: x[order] if x.ndim > 2 else x for n, x in first.items()}
    _, again = sr.attention(mechanism=name, return_state=True, **picked)
    torch.testing.assert_close(out, sr.attention(mechanism=name, state=again, **rest))


@pytest.mark.parametrize("name", FINITE)
def test_a_finite_kernel_needs_constant_memory(name):
    sizes = set()
    for length in (1, 64, 4096):
        args = Problem(B=1, H=1, Hkv=1, Tq=length, dtype=torch.float32).arguments(name, leaves=False)
        _, state = sr.attention(mechanism=name, form="chunked", return_state=True, **args)
        assert isinstance(state, sr.KroneckerState)
        assert state.tokens == length
        sizes.add(state.nbytes)
    assert len(sizes) == 1


def test_declared_bytes_are_real_bytes():
    args = Problem(B=2, Hkv=2, Tq=7, D=4, E=3, dtype=torch.float32).arguments("taylor2", leaves=False)
    _, state = sr.attention(mechanism="taylor2", return_state=True, **args)
    rows = sum(sr.symmetric_dim(4, n) for n in range(3))
    assert state.moments.shape == (2, 2, rows, 3 + 1)
    assert state.nbytes == 2 * 2 * rows * 4 * 4 + 2 * 8  # float32 moments, and an int64 count per sequence


def test_kv_state_grows():
    args = Problem(Tq=T).arguments("softmax", leaves=False)
    _, short = sr.attention(mechanism="softmax", return_state=True, **piece("softmax", args, 0, 5))
    _, long = sr.attention(mechanism="softmax", return_state=True, state=short, **piece("softmax", args, 5, T))
    assert isinstance(long, sr.KVState)
    assert long.nbytes * 5 == short.nbytes * T


def test_the_state_is_the_papers_hidden_state():
    # H^n = sum_s k_s^(n) v_s^T, equation by equation.
    args = Problem(B=1, H=1, Hkv=1, Tq=6, D=3, E=2).arguments("taylor3_norm", leaves=False)
    _, state = sr.attention(mechanism="taylor3_norm", return_state=True, **args)
    for n in range(4):
        want = sr.symmetric_power(args["k"], n).mT @ args["v"]
        torch.testing.assert_close(state.hidden(n), want)
    with pytest.raises(sr.MechanismError, match="no order 4"):
        state.hidden(4)


@pytest.mark.parametrize("name", ["softmax", "gate", "taylor2", "linear_elu"])
def test_only_the_last_queries(name):
    # With a state, fewer queries than keys are the last ones; no new keys at all just reads.
    args = Problem(Tq=T).arguments(name, leaves=False)
    want = sr.attention(mechanism=name, **args)
    _, state = sr.attention(mechanism=name, return_state=True, **piece(name, args, 0, 9))
    rest = piece(name, args, 9, T)
    short = {**rest, **{n: rest[n][:, :, -2:] for n in ("q", "output_gate") if n in rest}}
    out, state = sr.attention(mechanism=name, state=state, return_state=True, **short)
    torch.testing.assert_close(out, want[:, :, -2:])
    last = {
        n: x[:, :, -1:] if n in ("q", "output_gate") else x[:, :, :0] if n in ("k", "v") else x for n, x in rest.items()
    }
    torch.testing.assert_close(sr.attention(mechanism=name, state=state, **last), want[:, :, -1:])


def test_detach_and_to():
    args = Problem(Tq=T).arguments("taylor2")
    _, state = sr.attention(mechanism="taylor2", return_state=True, **args)
    assert state.moments.requires_grad
    assert not state.detach().moments.requires_grad
    assert state.to("cpu").moments.device.type == "cpu"
    assert state.batch == 2


@pytest.mark.parametrize("name", ["taylor2", "linear_elu", "softmax"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_states_accumulate_in_float32(name, dtype):
    args = Problem(Tq=T, dtype=dtype).arguments(name, leaves=False)
    out, state = sr.attention(mechanism=name, return_state=True, **args)
    assert out.dtype == dtype
    if isinstance(state, sr.KroneckerState):
        assert state.moments.dtype == torch.float32


@pytest.mark.parametrize("name", ["softmax", "gate", "taylor2", "linear_elu", "linear_cosine", "taylor3_norm"])
@pytest.mark.parametrize("form", ["auto", "parallel"])
@pytest.mark.parametrize("masked", [False, True])
def test_keys_without_queries_and_queries_without_keys(name, form, masked):
    masks = {
        "key_padding_mask": torch.arange(T)[None].expand(2, -1) != 3,
        "segment_ids": torch.arange(T)[None].expand(2, -1) // 6,
    }
    args = {**Problem(Tq=T).arguments(name, leaves=False), **(masks if masked else {})}
    _, state = sr.attention(mechanism=name, form=form, return_state=True, **piece(name, args, 0, 4))
    # Feed without asking: the keys count all the same.
    fed = {n: x[:, :, :0] if n in ("q", "output_gate") else x for n, x in piece(name, args, 4, 9).items()}
    if not masked:  # segment ids need a query for each key
        out, state = sr.attention(mechanism=name, form=form, state=state, return_state=True, **fed)
        assert out.shape[2] == 0
    else:
        _, state = sr.attention(mechanism=name, form=form, state=state, return_state=True, **piece(name, args, 4, 9))
    assert state.tokens == 9
    # Ask without feeding: every query reads all that is remembered, like the query of the last token would.
    last = {n: x[:, :, 8:9].expand(-1, -1, 3, *x.shape[3:]) if n in ("q", "output_gate") else x[:, :, :0] if x.ndim > 2 else x
            for n, x in args.items() if n not in masks}  # fmt: skip
    asked, after = sr.attention(mechanism=name, form=form, state=state, return_state=True, **last)
    want = sr.attention(mechanism=name, **piece(name, args, 0, 9))[:, :, -1:]
    torch.testing.assert_close(asked, want.expand_as(asked))
    assert_same(memory(after), memory(state), 0)
    # And the stream goes on.
    rest = sr.attention(mechanism=name, form=form, state=after, **piece(name, args, 9, T))
    torch.testing.assert_close(rest, sr.attention(mechanism=name, **args)[:, :, 9:])


def test_the_state_remembers_its_centre():
    args = Problem(Tq=T).arguments("softmax", leaves=False)
    center = torch.randn(2, 4, dtype=torch.float64)
    want = sr.attention(mechanism="taylor4", center=center, **args)[:, :, 9:]
    _, state = sr.attention(mechanism="taylor4", center=center, return_state=True, **piece("taylor4", args, 0, 9))
    for again in (None, center):
        torch.testing.assert_close(
            sr.attention(mechanism="taylor4", center=again, state=state, **piece("taylor4", args, 9, T)), want
        )
    assert torch.equal(state.index_select(torch.tensor([1])).center, center)
