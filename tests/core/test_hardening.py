"""Nothing silently wrong: sizes from 1e-30 to 1e30, NaN under masks, every kind of derivative, states of other dtypes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import softmax_rnn as sr
from softmax_rnn.nn import Attention, ShortConv
from softmax_rnn.slots.denominators import NORMS

from .problems import NAMES, Problem, forms

NORMED = ["norm", "rms", "layer", "elu10_norm", "taylor3_norm", "relu_norm", "retnet", "norm_decay"]
DIFFERENTIABLE = [
    "softmax",
    "norm",
    "gate",
    "in_out_gate",
    "rms",
    "taylor2",
    "linear_elu",
    "linear_cosine",
    "fox",
    "gla",
    "near_4",
]


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=40)
@given(exponent=st.integers(-30, 30), seed=st.integers(0, 9), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_a_norm_of_any_size_is_that_of_float64(norm, exponent, seed, dtype):
    g = torch.Generator().manual_seed(seed)
    x = (torch.randn(3, 5, 16, generator=g, dtype=torch.float64) * 10.0**exponent).to(dtype).requires_grad_()
    direction = torch.randn(3, 5, 16, generator=g, dtype=torch.float64)
    (dx,) = torch.autograd.grad((NORMS[norm].apply(x) * direction.to(dtype)).sum(), x)
    exact = x.detach().double().requires_grad_()
    eps = {"rms": torch.finfo(dtype).eps, "layer": 1e-5, "l2": 0.0}[norm]
    centred = exact - exact.mean(-1, keepdim=True) if norm == "layer" else exact
    size = centred.square().sum(-1, keepdim=True) if norm == "l2" else centred.square().mean(-1, keepdim=True)
    want = centred / (size + eps).sqrt().clamp(min=1e-12 if norm == "l2" else 0.0)
    (dwant,) = torch.autograd.grad((want * direction).sum(), exact)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(
        NORMS[norm].apply(x).double(), want, rtol=tolerance, atol=tolerance * want.abs().max().item()
    )
    torch.testing.assert_close(dx.double(), dwant, rtol=tolerance, atol=tolerance * dwant.abs().max().item())


def test_large_numerators_are_not_dead():
    q, k, v = torch.randn(3, 1, 1, 256, 128, generator=torch.Generator().manual_seed(0)).mul(1.5).unbind()
    for form in forms("elu10_norm")[:1]:
        out = sr.attention(q, k, v, "elu10_norm", form=form)
        want = sr.attention(q.double(), k.double(), v.double(), "elu10_norm", form="reference")
        torch.testing.assert_close(out.double(), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NORMED)
@pytest.mark.parametrize("size", [1e-10, 1.0, 1e15, 1e28])
def test_values_of_any_size(name, size):
    problem = Problem(dtype=torch.float32)
    args = problem.arguments(name, leaves=False)
    args["v"] = args["v"] * size
    exact = {n: x.double() for n, x in args.items()}
    if (
        sr.mechanism(name).norm == "rms" and size == 1.0
    ):  # whose epsilon follows the dtype, and is not small beside every row
        exact = args
    want = sr.attention(mechanism=name, form="reference", **exact).double()
    if size < 1e-6:
        assert sr.attention(mechanism=name, **args).isfinite().all()
        return
    for form in forms(name):
        torch.testing.assert_close(sr.attention(mechanism=name, form=form, **args).double(), want, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_nan_under_the_mask_stays_there(name):
    keep = torch.ones(2, 13, dtype=torch.bool)
    keep[0, :4], keep[1, -5:] = False, False
    clean = Problem().arguments(name, leaves=False)
    dirty = {n: x.clone() for n, x in clean.items()}
    for x in sr.mechanism(name).inputs:
        if x.sizes[:3] == ("B", "Hkv", "Tk"):
            dirty[x.name][~keep[:, None].expand(2, 2, 13)] = torch.nan
    for n in ("k", "v"):
        dirty[n][~keep[:, None].expand(2, 2, 13)] = torch.nan
    for form in ("reference", *forms(name)):
        results = []
        for args in (clean, dirty):
            leaves = {n: x.clone().requires_grad_() for n, x in args.items()}
            out = sr.attention(mechanism=name, form=form, key_padding_mask=keep, **leaves)
            grads = torch.autograd.grad(out.sum(), list(leaves.values()), allow_unused=True)
            results.append([out, *(g for g in grads if g is not None)])
        for have, want in zip(*results, strict=True):
            torch.testing.assert_close(have, want, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_query_that_sees_nothing_may_be_nan(name):
    keep = torch.arange(13)[None].expand(2, -1) >= 3
    args = Problem().arguments(name)
    for x in ("q", *(x.name for x in sr.mechanism(name).inputs if x.sizes[:3] == ("B", "H", "Tq"))):
        dirty = args[x].detach().clone()
        dirty[:, :, :3] = torch.nan
        args[x] = dirty.requires_grad_()
    for form in ("reference", *forms(name)):
        out = sr.attention(mechanism=name, form=form, key_padding_mask=keep, **args)
        assert (out[:, :, :3] == 0).all()
        grads = torch.autograd.grad(out[:, :, 3:].sum(), list(args.values()), allow_unused=True)
        assert all(g.isfinite().all() for g in grads if g is not None), form


@pytest.mark.parametrize("documents", [False, True])
def test_nan_under_the_mask_does_not_spread_through_a_convolution(documents):
    conv, x, late = ShortConv(16, 3), torch.randn(2, 9, 16), (torch.arange(9) >= 3).expand(2, -1)
    torch.nn.init.normal_(conv.weight)
    options = {"documents": late.long()} if documents else {"keep": late}
    want, tail = conv(x, **options)
    x[:, :3] = torch.nan
    have, new = conv(x, **options)
    torch.testing.assert_close((have[:, 3:], new), (want[:, 3:], tail), rtol=0, atol=0)


def test_nan_under_the_mask_does_not_spread_through_a_layer():
    layer, x, keep = Attention(16, 4, "norm", conv=3), torch.randn(2, 9, 16), (torch.arange(9) >= 3).expand(2, -1)
    want = layer(x, key_padding_mask=keep)[:, 3:]
    x[:, :3] = torch.nan
    torch.testing.assert_close(layer(x, key_padding_mask=keep)[:, 3:], want, rtol=0, atol=0)


def test_a_nan_hides_nothing_that_is_out_of_range():
    args = Problem().arguments("fox", leaves=False)
    args["log_decay"][0, 0, 3], args["log_decay"][1, 0, 5] = torch.nan, 0.1
    with pytest.raises(sr.MechanismError, match=r"log_decay must be at most 0, got 0\.1"):
        sr.attention(mechanism="fox", **args)
    keep = torch.ones(2, 13, dtype=torch.bool)
    keep[0, 3], keep[1, 5] = False, False
    assert sr.attention(mechanism="fox", key_padding_mask=keep, **args).isfinite().all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scale": 10**400}, "scale must be a finite number"),
        ({"scale": 1e39}, "scale must be at most 3.4e\\+38 for torch.float32"),
        ({"input_gate": torch.ones(2, 2, 13, dtype=torch.complex64)}, "input_gate must hold real numbers"),
    ],
)
def test_numbers_that_cannot_be_computed_with(change, says):
    args = Problem(dtype=torch.float32).arguments("in_gate", leaves=False) | change
    with pytest.raises(sr.MechanismError, match=says):
        sr.attention(mechanism="in_gate", **args)


def test_a_state_and_another_window():
    q, k, v = torch.randn(3, 1, 2, 6, 4).unbind()
    cut = sr.attention(q, k, v, "softmax", window=2, return_state=True)[1]
    assert sr.attention(q, k, v, "softmax", window=3, state=cut).isfinite().all()
    for window in (4, None):
        with pytest.raises(sr.MechanismError, match="holds the newest 2 keys: continue with window=2"):
            sr.attention(q, k, v, "softmax", window=window, state=cut)
    whole = sr.attention(q, k, v, "taylor2", return_state=True)[1]
    for form in ("auto", "parallel", "chunked"):
        with pytest.raises(sr.MechanismError, match="made without window="):
            sr.attention(q, k, v, "taylor2", window=3, state=whole, form=form)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_zero_query_of_cosine_in_half_precision(dtype):
    x = torch.zeros(1, 1, 4, 8, dtype=dtype)
    for form in ("reference", "parallel", "chunked"):
        assert (sr.attention(x, x, x, "cosine2", form=form) == 0).all()


@pytest.mark.parametrize("scale", [1e-46, 1e-300, 5e-324])
def test_a_scale_that_rounds_to_zero(scale):
    q, k, v = torch.randn(3, 1, 2, 6, 4, generator=torch.Generator().manual_seed(0)).unbind()
    want = sr.attention(q, k, v, "softmax", scale=0.0)
    for form in ("reference", "parallel", "recurrent"):
        torch.testing.assert_close(sr.attention(q, k, v, "softmax", scale=scale, form=form), want)


@pytest.mark.parametrize(("name", "form"), [("softmax", "parallel"), ("taylor2", "chunked"), ("near_4", "chunked")])
def test_a_state_of_another_dtype_is_refused(name, form):
    args = Problem(dtype=torch.float32).arguments(name, leaves=False)
    _, state = sr.attention(mechanism=name, form=form, return_state=True, **args)
    with pytest.raises(sr.MechanismError, match="stay with one dtype"):
        sr.attention(mechanism=name, form=form, state=state, **{n: x.double() for n, x in args.items()})


@pytest.mark.parametrize("name", ["taylor2", "linear_elu", "softmax"])
def test_a_half_precision_state_goes_on_in_the_reference(name):
    args = Problem(dtype=torch.bfloat16).arguments(name, leaves=False)
    for first, then in (("parallel", "reference"), ("reference", "parallel")):
        _, state = sr.attention(mechanism=name, form=first, return_state=True, **args)
        assert sr.attention(mechanism=name, form=then, state=state, **args).isfinite().all()


def test_centring_is_not_rounded():
    # A centre that half precision cannot hold: subtracting it in full precision leaves the difference.
    k = torch.full((1, 1, 2, 1), 256.0, dtype=torch.bfloat16)
    v = torch.tensor([1.0, 2.0], dtype=torch.bfloat16).reshape(1, 1, 2, 1)
    q = torch.ones(1, 1, 2, 1, dtype=torch.bfloat16)
    _, state = sr.attention(q, k, v, "softmax", center=torch.tensor([[255.6]]), return_state=True)
    torch.testing.assert_close(state.key.float(), torch.full((1, 1, 2, 1), 0.4), atol=2e-3, rtol=0)


def scalar(name, args, form):
    names = list(args)

    def run(*values):
        return sr.attention(mechanism=name, form=form, **dict(zip(names, values, strict=True))).square().sum()

    return run


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives_of_torch_func(name):
    args = Problem(B=1, H=2, Hkv=1, Tq=5, D=2, E=2).arguments(name, leaves=False)
    values = tuple(args.values())
    everything = tuple(range(len(values)))
    for form in ("reference", *forms(name)):
        run = scalar(name, args, form)
        leaves = [x.clone().requires_grad_() for x in values]
        want = torch.autograd.grad(run(*leaves), leaves, allow_unused=True)
        want = [torch.zeros_like(x) if g is None else g for g, x in zip(want, values, strict=True)]
        for have in (
            torch.func.grad(run, everything)(*values),
            torch.func.vjp(run, *values)[1](torch.ones((), dtype=torch.float64)),
        ):
            for a, b in zip(have, want, strict=True):
                torch.testing.assert_close(a, b)
        tangents = tuple(torch.ones_like(x) for x in values)
        _, slope = torch.func.jvp(run, values, tangents)
        torch.testing.assert_close(slope, sum(g.sum() for g in want))


@pytest.mark.filterwarnings(
    "ignore:There is a performance drop.*aten::_scaled_dot_product"
)  # torch's own, for plain softmax
@pytest.mark.parametrize("name", ["softmax", "norm", "gate", "taylor2"])
def test_jacobians_and_vmap(name):
    args = Problem(B=1, H=2, Hkv=1, Tq=3, D=2, E=2).arguments(name, leaves=False)
    for form in forms(name):

        def run(q, form=form):
            return sr.attention(mechanism=name, form=form, **{**args, "q": q})

        want = torch.autograd.functional.jacobian(run, args["q"])
        torch.testing.assert_close(torch.func.jacrev(run)(args["q"]), want)
        torch.testing.assert_close(torch.func.jacfwd(run)(args["q"]), want)
        many = torch.stack([args["q"], 2 * args["q"]])
        torch.testing.assert_close(torch.func.vmap(run)(many), torch.stack([run(x) for x in many]))


@pytest.mark.parametrize("name", ["norm", "taylor2", "softmax"])
def test_forward_mode_under_compile_is_right(name):
    torch._dynamo.reset()
    args = Problem(B=1, H=2, Hkv=1, Tq=5, D=2, E=2).arguments(name, leaves=False)
    run = scalar(name, args, "parallel")
    values, tangents = tuple(args.values()), tuple(torch.ones_like(x) for x in args.values())
    _, want = torch.func.jvp(run, values, tangents)
    _, slope = torch.compile(lambda v, t: torch.func.jvp(run, v, t), backend="aot_eager")(values, tangents)
    torch.testing.assert_close(slope, want)


def test_forward_mode_through_a_state_and_through_powers():
    args = Problem(B=1, H=2, Hkv=1, Tq=3, D=2, E=2).arguments("taylor2", leaves=False)

    def twice(k):
        _, state = sr.attention(mechanism="taylor2", return_state=True, **{**args, "k": k})
        return sr.attention(mechanism="taylor2", state=state, **args).sum()

    (want,) = torch.autograd.functional.jacobian(twice, (args["k"],))
    torch.testing.assert_close(torch.func.jvp(twice, (args["k"],), (torch.ones_like(args["k"]),))[1], want.sum())
    x = args["k"]
    slope = torch.func.jvp(lambda x: sr.symmetric_power(x, 3).sum(), (x,), (x,))[1]
    torch.testing.assert_close(slope, 3 * sr.symmetric_power(x, 3).sum())  # homogeneous of degree 3


def test_the_size_guard_counts_what_is_needed_on_the_way():
    q = torch.zeros(1, 1, 1, 32)
    v = torch.zeros(1, 1, 1, 8)
    with pytest.raises(sr.MechanismError, match="order 7 would fit"):
        sr.attention(q, q, v, "taylor8", form="chunked")


@settings(max_examples=60)
@given(
    name=st.sampled_from(NAMES),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    exponent=st.integers(-30, 30),
    seed=st.integers(0, 99),
)
def test_any_call_gives_numbers_or_zeros(name, dtype, exponent, seed):
    # Values of any size that the dtype can hold, rubbish under the mask: every form gives finite numbers and gradients.
    top = {torch.float16: 2, torch.bfloat16: 30, torch.float32: 30, torch.float64: 30}[dtype]
    size = 10.0 ** max(-top, min(top, exponent))
    if sr.mechanism(name).norm is None and size > 1:
        size = 1.0  # without a norm the output is as large as the values
    keep = torch.rand(2, 13, generator=torch.Generator().manual_seed(seed)) > 0.3
    args = Problem(dtype=dtype, seed=seed).arguments(name, leaves=False)
    args["v"] = args["v"] * size
    args["k"] = args["k"].masked_fill(~keep[:, None, :, None], torch.nan)
    args["v"] = args["v"].masked_fill(~keep[:, None, :, None], torch.nan)
    for form in ("reference", *forms(name)):
        leaves = {n: x.clone().requires_grad_() for n, x in args.items()}
        out = sr.attention(mechanism=name, form=form, key_padding_mask=keep, **leaves)
        assert out.isfinite().all(), form
        if dtype in (torch.float64, torch.float32):
            grads = torch.autograd.grad(out.sum(), list(leaves.values()), allow_unused=True)
            assert all(g.isfinite().all() for g in grads if g is not None), form
