"""Decay: identities, long sequences of every steepness, and agreement with implementations that share no code with ours."""

import importlib
import importlib.util
import inspect
import sys
import types
from pathlib import Path

import pytest
import torch

import softmax_rnn as sr


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def naive(path):
    """A file of fla-core, loaded by path: the package itself would import Triton."""
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("fla-core is not installed")
    file = Path(spec.submodule_search_locations[0]) / path
    loaded = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), file)
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    return module


Q, K, V = (draw(2, 3, 40, 8, seed=s) for s in range(3))
FADE = -draw(2, 3, 40, seed=3).abs()


@pytest.mark.parametrize("mean", [0.0, 0.02, 0.2, 2.0, 50.0])
@pytest.mark.parametrize("name", ["fox", "norm_decay", "taylor2_decay", "clamp_decay"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_longer_than_any_block(name, mean, dtype):
    from . import problems  # registers the mechanisms of the tests

    assert problems.NAMES
    q, k, v = (draw(1, 2, 600, 8, seed=s, dtype=dtype).requires_grad_() for s in range(3))
    g = torch.Generator().manual_seed(9)
    fade = (-torch.rand(1, 2, 600, generator=g, dtype=torch.float64) * 2 * mean).to(dtype).requires_grad_()

    def run(arguments, form):
        out = sr.attention(*arguments[:3], name, log_decay=arguments[3], form=form)
        weigh = torch.linspace(1, 2, out.numel(), dtype=torch.float64).reshape(out.shape).to(out.dtype)
        return out, *torch.autograd.grad((out * weigh).sum(), arguments)

    exact = run([x.detach().double().requires_grad_() for x in (q, k, v, fade)], "reference")
    for form in ("parallel", "chunked") if name == "taylor2_decay" else ("parallel",):
        for have, want in zip(run([q, k, v, fade], form), exact, strict=True):
            tolerance = (1e-9 if dtype == torch.float64 else 2e-5) * max(want.abs().max().item(), 1e-3)
            torch.testing.assert_close(have.double(), want, rtol=0, atol=tolerance)


def test_no_decay_is_no_decay():
    zero = torch.zeros(2, 3, 40, dtype=torch.float64)
    torch.testing.assert_close(sr.attention(Q, K, V, "fox", log_decay=zero), sr.attention(Q, K, V, "softmax"))
    torch.testing.assert_close(sr.attention(Q, K, V, "taylor2_decay", log_decay=zero), sr.attention(Q, K, V, "taylor2"))
    channels = torch.zeros(2, 3, 40, 8, dtype=torch.float64)
    torch.testing.assert_close(sr.attention(Q, K, V, "wall", log_decay=channels), sr.attention(Q, K, V, "softmax"))


@pytest.mark.parametrize("name", ["fox", "taylor2_decay", "mamba2_squared"])
def test_forgetting_everything_is_the_last_token(name):
    all_ = torch.full((2, 3, 40), -torch.inf, dtype=torch.float64)
    torch.testing.assert_close(sr.attention(Q, K, V, name, log_decay=all_), V)


@pytest.mark.parametrize("form", ["reference", "parallel", "chunked", "recurrent"])
def test_heads_that_forget_everything_may_be_padded(form):
    kernel, keep = sr.mechanism("taylor2").kernel, torch.ones(2, 40, dtype=torch.bool)
    keep[0, :3] = keep[1, 20:22] = False
    all_ = torch.full((3,), -torch.inf, dtype=torch.float64)
    out = sr.attention(
        Q, K, V, sr.Mechanism(kernel, sr.Sum(), decay="head"), log_decay=all_, key_padding_mask=keep, form=form
    )
    want = V.clone()  # the last token that is no padding
    want[0, :, :3], want[1, :, 20:22] = 0, V[1, :, 19:20]
    torch.testing.assert_close(out, want)


@pytest.mark.parametrize("name", ["fox", "norm_decay", "taylor2_decay", "wall", "retnet", "gated_deltanet", "kda"])
@pytest.mark.parametrize("form", ["reference", "parallel", "chunked", "recurrent"])
def test_a_decay_that_is_not_a_number_shows(name, form):
    m = sr.mechanism(name)
    if form == "chunked" and not m.kernel.finite:
        pytest.skip("exp has no chunks")
    fade = {"head": FADE[0, :, 0], "token": FADE, "channel": FADE[..., None].expand(-1, -1, -1, 8)}[m.decay].clone()
    fade[(1,) if m.decay == "head" else (0, 1, 20)] = torch.nan
    more = {"beta": torch.full((2, 3, 40), 0.5, dtype=torch.float64)} if m.update == "delta" else {}
    out = sr.attention(Q, K, V, m, log_decay=fade, form=form, **more)
    assert out[0, 1, 20:].isnan().all()
    assert out[:, 2].isfinite().all()


@pytest.mark.parametrize("fade", [-0.5, -25.0, -50.0])
@pytest.mark.parametrize("update", ["add", "delta"])
@pytest.mark.parametrize("form", ["parallel", "chunked", "recurrent"])
def test_channels_that_fall_far_leave_their_powers_finite(fade, update, form):
    m = sr.Mechanism(sr.Taylor(4), sr.Unnormalised(), norm="l2", decay="channel", update=update)
    T = 3 if fade < -1 else 100
    q, k, v = (draw(1, 2, T, 4, seed=s, dtype=torch.float32).requires_grad_() for s in range(3))
    more = {"log_decay": torch.full((1, 2, T, 4), fade), "beta": torch.ones(1, 2, T)}
    more = {n: x for n, x in more.items() if n in m.parameters}
    out = sr.attention(q, k, v, m, form=form, **more)
    wide = (x.detach().double() for x in (q, k, v))
    want = sr.attention(*wide, m, form="reference", **{n: x.double() for n, x in more.items()})
    torch.testing.assert_close(out.double(), want, rtol=0, atol=1e-4)
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.square().sum(), (q, k, v)))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_token_decay_of_a_power_is_channel_decay(n):
    token = sr.Mechanism(sr.Power(n), sr.Unnormalised(), decay="token")
    channel = sr.Mechanism(sr.Power(n), sr.Unnormalised(), decay="channel")
    want = sr.attention(Q, K, V, token, log_decay=FADE)
    spread = (FADE / n)[..., None].expand(2, 3, 40, 8).contiguous()
    for form in ("reference", "parallel", "chunked", "recurrent"):
        torch.testing.assert_close(sr.attention(Q, K, V, channel, log_decay=spread, form=form), want)


def test_orders_climb_from_mamba2_to_fox():
    small = Q * 0.5
    fox = sr.attention(small, K, V, "fox", log_decay=FADE)
    errors = [(sr.attention(small, K, V, f"taylor{n}_decay", log_decay=FADE) - fox).abs().max() for n in (2, 4, 8, 16)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-6
    first = sr.attention(
        Q, K, V, sr.Mechanism(sr.Power(1), sr.Unnormalised(), decay="token"), log_decay=FADE, scale=1.0
    )
    torch.testing.assert_close(first, sr.attention(Q, K, V, "mamba2", log_decay=FADE))


def test_a_window_is_a_mask():
    seen = torch.ones(40, 40, dtype=torch.bool).tril() & ~torch.ones(40, 40, dtype=torch.bool).tril(-7)
    want = torch.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=seen)
    torch.testing.assert_close(sr.attention(Q, K, V, "softmax", window=7), want)


def test_near_with_a_wide_window_is_exp():
    m = sr.Mechanism(sr.Near(sr.Exp(), sr.Taylor(2), window=40), sr.Sum())
    want = sr.attention(Q, K, V, "softmax")
    for form in ("reference", "parallel", "chunked", "recurrent"):
        torch.testing.assert_close(sr.attention(Q, K, V, m, form=form), want)


def test_fox_is_the_forgetting_transformer():
    module = naive("ops/forgetting_attn/naive.py")
    want = module.naive_forgetting_attn(*(x.transpose(1, 2).float() for x in (Q, K, V)), FADE.transpose(1, 2).float())
    want = want[0] if isinstance(want, tuple) else want
    torch.testing.assert_close(
        sr.attention(Q, K, V, "fox", log_decay=FADE).float(), want.transpose(1, 2), atol=1e-5, rtol=1e-4
    )


def test_gla_is_gated_linear_attention():
    module = naive("ops/gla/naive.py")
    fade = -draw(2, 3, 40, 8, seed=4).abs() / 4
    want, _ = module.naive_recurrent_gla(*(x.transpose(1, 2).float() for x in (Q, K, V, fade)))
    m = sr.Mechanism(sr.Power(1), sr.Unnormalised(), decay="channel")
    torch.testing.assert_close(
        sr.attention(Q, K, V, m, log_decay=fade).float(), want.transpose(1, 2), atol=1e-5, rtol=1e-4
    )


def test_retnet_is_retention():
    want = naive("ops/retention/naive.py").naive_retention(*(x.float() for x in (Q, K, V)))
    m = sr.Mechanism(sr.Power(1), sr.Unnormalised(), decay="head")
    fade = torch.log1p(-(2.0 ** (-5.0 - torch.arange(3, dtype=torch.float64))))
    for form in ("reference", "parallel", "chunked", "recurrent"):
        out = sr.attention(Q, K, V, m, log_decay=fade, form=form)
        torch.testing.assert_close(out.float(), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "fade"), [("mamba2_squared", FADE), ("power2", None)])
def test_squares_are_power_retention(name, fade, monkeypatch):
    place = importlib.util.find_spec("retention")
    if place is None or not place.submodule_search_locations:
        pytest.skip("retention is not installed")
    package = types.ModuleType("retention")  # its own __init__ would import Triton
    package.__path__ = list(place.submodule_search_locations)
    monkeypatch.setitem(sys.modules, "retention", package)
    theirs = importlib.import_module("retention._attention.reference")
    gates = None if fade is None else fade.cumsum(-1)
    want = theirs.attention(Q, K, V, gates, 2, head_first=True, scale=8**-0.5, norm=True)
    more = {} if fade is None else {"log_decay": fade}
    for form in ("reference", "parallel", "chunked", "recurrent"):
        # Theirs adds 1e-7 to scores and 1e-6 to sums.
        torch.testing.assert_close(sr.attention(Q, K, V, name, form=form, **more), want, atol=2e-4, rtol=1e-4)


def test_mamba2_is_transformers_own():
    from transformers.models.mamba2 import modeling_mamba2 as theirs

    if not hasattr(theirs, "mamba2_chunk_scan"):
        pytest.skip("this version of transformers has no mamba2_chunk_scan")
    B, T, H, P, N = 2, 64, 3, 8, 8
    x, dt = draw(B, T, H, P, dtype=torch.float32), draw(B, T, H, seed=1, dtype=torch.float32).abs()
    A, b, c = (
        -draw(H, seed=2, dtype=torch.float32).abs(),
        draw(B, T, H, N, seed=3, dtype=torch.float32),
        draw(B, T, H, N, seed=4, dtype=torch.float32),
    )
    want = inspect.unwrap(theirs.mamba2_chunk_scan)(x, dt, A, b, c, chunk_size=16)
    want = want[0] if isinstance(want, tuple) else want
    heads = [y.transpose(1, 2) for y in (c, b, x * dt[..., None])]
    out = sr.attention(*heads, "mamba2", log_decay=(A * dt).transpose(1, 2))
    torch.testing.assert_close(out.transpose(1, 2), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fox", {"log_decay": -FADE}, "log_decay must be at most 0"),
        ("fox", {"log_decay": FADE[:, :, :5]}, "log_decay must have shape"),
        ("fox", {"log_decay": FADE, "causal": False}, "looks back in time"),
        ("softmax", {"window": 0}, "window must be a whole number"),
        ("softmax", {"window": 3, "causal": False}, "looks back in time"),
        ("taylor2", {"window": 3, "form": "chunked"}, "cannot be taken out"),
        ("near2", {"window": 3}, "a window of its own"),
        (
            sr.Mechanism(sr.Linear(sr.CosReweighted(64)), sr.Sum(), decay="channel"),
            {"log_decay": FADE[..., None].expand(-1, -1, -1, 8)},
            "each of the 8 key channels, but the feature map .* makes them 16",
        ),
        ("softmax", {"backend": "cuda"}, "backend must be one of"),
        ("softmax", {"backend": "flex"}, "backend='flex' cannot compute this"),
    ],
)
def test_one_sentence(name, options, words):
    with pytest.raises(sr.MechanismError, match=words):
        sr.attention(Q, K, V, name, **options)


def test_a_state_of_another_decay_is_refused():
    _, state = sr.attention(Q, K, V, "taylor2", return_state=True)
    with pytest.raises(sr.MechanismError, match="The state belongs to"):
        sr.attention(Q, K, V, "taylor2_decay", log_decay=FADE, state=state)
