"""The algebra is the test suite: what the paper proves, and what follows from it."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import softmax_rnn as sr

from .problems import Problem, assert_same

BIG = Problem(Tq=21, D=4, E=3, seed=4)


def run(mechanism, problem=BIG, **options):
    args = problem.arguments(mechanism, leaves=False)
    return sr.attention(mechanism=mechanism, **args, **options)


def test_norm_is_normalised_softmax():
    torch.testing.assert_close(run("norm"), F.normalize(run("softmax"), dim=-1))


def test_norm_cancels_length():
    torch.testing.assert_close(run("norm_length"), run("norm"))


def test_a_gate_before_a_norm_cancels_and_gets_no_gradient():
    args = BIG.arguments("norm_pre_gate")
    out = sr.attention(mechanism="norm_pre_gate", **args)
    torch.testing.assert_close(out, run("norm"))
    (grad,) = torch.autograd.grad(out.sum(), args["output_gate"])
    assert grad.abs().max() < 1e-12


def test_a_gate_after_a_norm_does_not_cancel():
    args = BIG.arguments("norm_post_gate")
    out = sr.attention(mechanism="norm_post_gate", **args)
    torch.testing.assert_close(out.norm(dim=-1), args["output_gate"])
    (grad,) = torch.autograd.grad(out.square().sum(), args["output_gate"])
    assert grad.abs().min() > 0


def test_detach_is_softmax_forward_and_not_backward():
    detached = sr.Mechanism(sr.Exp(), sr.Sum(detach=True))
    args = BIG.arguments("softmax")
    torch.testing.assert_close(sr.attention(mechanism=detached, **args), run("softmax"))
    one, two = (
        torch.autograd.grad(sr.attention(mechanism=m, **args).sum(), args["q"])[0] for m in ("softmax", detached)
    )
    assert (one - two).abs().max() > 0.1


@pytest.mark.parametrize(
    "denominator", [sr.Unnormalised(), sr.Length(), sr.Sum(min=1.0), sr.Sum(eps=0.1), sr.Sum(detach=True, min=2.0)]
)
@pytest.mark.parametrize("form", ["reference", "parallel", "recurrent"])
def test_exp_with_every_denominator(denominator, form):
    # exp goes through (O, lse), the clamped kernel through plain sums; far above all scores the clamp does nothing.
    args = BIG.arguments("softmax")

    def go(kernel, form):
        out = sr.attention(mechanism=sr.Mechanism(kernel, denominator), form=form, **args)
        return {
            "out": out,
            **dict(zip("qkv", torch.autograd.grad(out.square().sum(), list(args.values())), strict=True)),
        }

    assert_same(go(sr.Exp(), form), go(sr.Exp(clamp=1e3), "reference"), 1e-9)


@pytest.mark.parametrize("families", [("taylor{}", "softmax"), ("taylor{}_norm", "norm")])
def test_higher_even_orders_approach_softmax(families):
    series, limit = families
    errors = [(run(series.format(n)) - run(limit)).abs().max().item() for n in range(0, 42, 2)]
    assert all(b < a for a, b in itertools.pairwise(errors[:7]))
    assert errors[-1] < 1e-10


def test_power_one_is_linear_attention():
    # Equation 3: O_t = q_t . sum_s k_s v_s
    args = BIG.arguments("linear", leaves=False)
    q, k, v = (args[n].repeat_interleave(4 // args[n].shape[1], 1) for n in "qkv")
    state = (k[..., :, None] * v[..., None, :]).cumsum(2)
    want = (q[..., None, :] @ state)[..., 0, :] * 4**-0.5
    torch.testing.assert_close(run("linear"), want)


def test_power_two_is_appendix_b():
    args = BIG.arguments("linear", leaves=False)
    q, k, v = (args[n].repeat_interleave(4 // args[n].shape[1], 1) for n in "qkv")
    square = lambda x: (x[..., :, None] * x[..., None, :]).flatten(-2)  # noqa: E731
    state = (square(k)[..., :, None] * v[..., None, :]).cumsum(2)
    want = (square(q)[..., None, :] @ state)[..., 0, :] / 2  # our Power(2) carries the series' 1/2!
    torch.testing.assert_close(run(sr.Mechanism(sr.Power(2), sr.Unnormalised()), scale=1.0), want)


@pytest.mark.parametrize("form", ["parallel", "chunked"])
@pytest.mark.parametrize("causal", [True, False])
def test_terms_sum_to_the_series(form, causal):
    args = BIG.arguments("linear", leaves=False)
    terms = sr.taylor_terms(args["q"], args["k"], args["v"], 5, form=form, causal=causal)
    want = run(sr.Mechanism(sr.Taylor(5), sr.Unnormalised()), causal=causal)
    torch.testing.assert_close(terms.sum(0), want)
    some = sr.taylor_terms(args["q"], args["k"], args["v"], [4, 1], form=form, causal=causal)
    torch.testing.assert_close(some, terms[[4, 1]])


def test_terms_with_masks_and_centre():
    args = BIG.arguments("linear", leaves=False)
    q, k, v = args["q"], args["k"], args["v"]
    masks = {
        "key_padding_mask": torch.arange(21)[None].expand(2, -1) > 3,
        "segment_ids": torch.arange(21)[None].expand(2, -1) // 8,
    }
    center = torch.randn(2, 4, dtype=torch.float64)
    terms = sr.taylor_terms(q, k, v, 3, center=center, **masks)
    want = sr.attention(q, k - center[:, None], v, sr.Mechanism(sr.Taylor(3), sr.Unnormalised()), **masks)
    torch.testing.assert_close(terms.sum(0), want)


@pytest.mark.parametrize("mechanism", ["softmax", "norm", sr.Mechanism(sr.Exp(), sr.Unnormalised(), norm="rms"),
                                       sr.Mechanism(sr.Exp(), sr.Length(), norm="layer")])  # fmt: skip
def test_centring_changes_nothing_for_exp(mechanism):
    center = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
    plain = {n: x for n, x in BIG.arguments(mechanism, leaves=False).items() if not n.startswith("norm")}
    want = sr.attention(mechanism=mechanism, **plain)
    torch.testing.assert_close(sr.attention(mechanism=mechanism, center=center, **plain), want)


def test_centring_helps_a_truncated_series():
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, 2, 30, 8, dtype=torch.float64, generator=g) for _ in range(3))
    common = 3 * torch.randn(2, 8, dtype=torch.float64, generator=g)
    k = k + common[:, None]
    want = sr.attention(q, k, v)
    plain = (sr.attention(q, k, v, "taylor6") - want).abs().max()
    centred = (sr.attention(q, k, v, "taylor6", center=common) - want).abs().max()
    assert centred < 0.05 * plain


def test_every_weight_equal_means_the_mean():
    # Order 0: the weights are all 1.
    args = BIG.arguments("softmax", leaves=False)
    v = args["v"].repeat_interleave(2, 1)
    mean = v.cumsum(2) / torch.arange(1, 22, dtype=torch.float64)[:, None]
    torch.testing.assert_close(run("taylor0"), mean)


def test_one_key_is_its_value():
    args = Problem(Tq=1).arguments("softmax", leaves=False)
    for name in ("softmax", "taylor2", "linear_elu"):
        torch.testing.assert_close(sr.attention(mechanism=name, **args), args["v"].repeat_interleave(2, 1))


def test_exp_stays_in_range_where_the_numerator_does_not():
    # Scores of 1,000: exp overflows in every dtype, its norm and its quotient do not.
    args = {n: x * 40 for n, x in Problem(dtype=torch.float32).arguments("softmax", leaves=False).items()}
    for name in ("softmax", "norm", "norm_post_gate"):
        gate = {"output_gate": torch.ones(2, 4, 13)} if name == "norm_post_gate" else {}
        assert sr.attention(mechanism=name, **args, **gate).isfinite().all()
