"""Half precision: no more than twice the error that the dense computation makes in the same dtype, against float64."""

import math

import pytest
import torch

import softmax_rnn as sr

from .problems import NAMES, Problem, forms, outputs_and_gradients


def rms_error(found, exact):
    return (found.double() - exact).square().mean().sqrt().item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision(name, dtype):
    problem = Problem(B=1, H=2, Hkv=2, Tq=64, D=8, E=8, dtype=dtype, seed=3)
    exact_problem = Problem(**{**vars(problem), "dtype": torch.float64})
    exact_problem.arguments = lambda m, leaves=True: {
        n: x.detach().double().requires_grad_() for n, x in problem.arguments(m, leaves=False).items()
    }
    exact = outputs_and_gradients(name, exact_problem, "reference", rounded=dtype)
    dense = outputs_and_gradients(name, problem, "reference")
    for form in forms(name):
        found = outputs_and_gradients(name, problem, form)
        for what, want in exact.items():
            assert found[what].dtype == dtype
            # Where the dense computation happens to be right to the last bit, rounding the exact result is the yardstick;
            # where it overflows to NaN (float16), anything finite is better.
            allowed = 2 * max(rms_error(dense[what], want), rms_error(want.to(dtype), want))
            allowed = torch.finfo(dtype).max if math.isnan(allowed) else allowed
            assert rms_error(found[what], want) <= allowed, (form, what)


def test_elu_does_not_cancel_in_bfloat16():
    # exp(x) for x < 0, not elu(x) + 1, which would be 0 here.
    q = torch.full((1, 1, 3, 2), -9.0, dtype=torch.bfloat16)
    v = torch.ones(1, 1, 3, 2, dtype=torch.bfloat16)
    assert (sr.attention(q, q, v, "linear_elu") == 1).all()


@pytest.mark.parametrize("name", ["softmax", "norm", "taylor2", "linear_elu", "length"])
def test_autocast(name):
    args = Problem(dtype=torch.float32).arguments(name, leaves=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sr.attention(mechanism=name, **args)
    assert out.dtype == torch.bfloat16
    low = {n: x.bfloat16() if n in "qkv" else x for n, x in args.items()}
    assert torch.equal(out, sr.attention(mechanism=name, **low))


@pytest.mark.parametrize("name", ["length", "taylor2", "linear_elu", "norm", "linear_cosine"])
def test_backward_under_autocast_is_not_degraded(name):
    def gradients(enabled):
        args = Problem(Tq=64, dtype=torch.bfloat16).arguments(name)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            return torch.autograd.grad(sr.attention(mechanism=name, **args).sum(), list(args.values()))

    torch.testing.assert_close(gradients(True), gradients(False), atol=0, rtol=0)


def test_long_sums_stay_exact():
    # 70,000 equal weights: a float16 sum would overflow, a bfloat16 one would stop growing at 256.
    q = torch.zeros(1, 1, 70_000, 1, dtype=torch.bfloat16)
    v = torch.ones(1, 1, 70_000, 1, dtype=torch.bfloat16)
    for name in ("taylor0", "taylor2"):
        out, state = sr.attention(q, q, v, name, form="chunked", return_state=True)
        assert (out == 1).all()
        assert state.hidden(0).item() == 70_000


@pytest.mark.parametrize(("order", "x"), [(79, 40.0), (64, 30.0), (48, 7.0), (10, 12.0)])
@pytest.mark.parametrize("form", ["reference", "parallel", "chunked"])
def test_high_orders_are_the_orders_they_say(order, x, form):
    # 1/40! is 0 in float32: the series must not stop there.
    series = sr.Mechanism(sr.Taylor(order), sr.Unnormalised())

    def value(dtype):
        q = torch.full((1, 1, 1, 1), x, dtype=dtype, requires_grad=True)
        one = torch.ones(1, 1, 1, 1, dtype=dtype)
        out = sr.attention(q, one, one, series, scale=1.0, form=form)
        return torch.stack([out.detach().double().flatten(), torch.autograd.grad(out.sum(), q)[0].double().flatten()])

    if form == "chunked" and x**order > 3e38:  # monomials of float32 keys overflow: that is what parallel is for
        return
    torch.testing.assert_close(value(torch.float32), value(torch.float64), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("degree", "x"), [(30, 20.0), (40, 10.0), (3, -2.0), (0, 5.0)])
def test_powers_do_not_overflow_on_the_way(degree, x):
    q, one = torch.full((1, 1, 1, 1), x), torch.ones(1, 1, 1, 1)
    out = sr.attention(q, one, one, sr.Mechanism(sr.Power(degree), sr.Unnormalised()), scale=1.0, form="parallel")
    assert out.item() == pytest.approx(x**degree / math.factorial(degree), rel=1e-5)


@pytest.mark.parametrize("shift", [-90.0, -55.0, 0.0, 60.0, 80.0])
@pytest.mark.parametrize("denominator", [sr.Unnormalised(), sr.Length(), sr.Sum(min=1.0)])
def test_gradients_of_numerators_near_the_ends_of_the_range(shift, denominator):
    # exp(80) and exp(-90) are float32 numbers; so are the gradients, as long as nobody squares them.
    m = sr.Mechanism(sr.Exp(), denominator)

    def gradients(dtype):
        args = Problem(B=1, H=1, Hkv=1, Tq=6, D=3, E=3, seed=2).arguments("softmax", leaves=False)
        q, k, v = (x.float().to(dtype) for x in args.values())
        q = torch.cat([q, torch.ones_like(q[..., :1])], -1).requires_grad_()
        k = torch.cat([k, torch.full_like(k[..., :1], shift)], -1).requires_grad_()
        v = v.requires_grad_()
        out = sr.attention(q, k, v, m, scale=1.0, form="reference" if dtype == torch.float64 else "parallel")
        return [g.double() for g in torch.autograd.grad(out.sum(), (q, k, v))]

    for found, want in zip(gradients(torch.float32), gradients(torch.float64), strict=True):
        # float32 holds the score of 80 to 8e-6, and exp turns that into a relative error.
        assert (found - want).abs().max() <= 1e-4 * want.abs().max()
