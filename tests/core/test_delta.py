"""The delta rule: its definition token by token, its identities, other people's implementations, and what is refused."""

import importlib.metadata
import importlib.util
import inspect

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import softmax_rnn as sr

from .problems import Problem, assert_same, forms, outputs_and_gradients, piece

U = sr.Unnormalised()
KERNELS = {
    "power1": sr.Power(1), "power3": sr.Power(3), "taylor2": sr.Taylor(2), "taylor3": sr.Taylor(3), "elu": sr.Linear("elu"),
    "elu2": sr.Linear("elu", order=2), "exp": sr.Exp(), "softcap": sr.Exp(softcap=2.0), "clamp": sr.Exp(clamp=1.0),
    "clamped relu": sr.Linear("relu", clamp=0.7),
}  # fmt: skip
DECAYS = (None, "head", "token", "channel")


def delta(kernel, decay=None, **slots):
    return sr.Mechanism(KERNELS[kernel], U, decay=decay, update="delta", **slots)


def weight(kernel, x):
    """w(x), from the formula of each kernel."""
    if isinstance(kernel, sr.Exp):
        x = x if kernel.softcap is None else kernel.softcap * torch.tanh(x / kernel.softcap)
        return (x if kernel.clamp is None else x.clamp(max=kernel.clamp)).exp()
    x = x if kernel.limit is None else x.clamp(max=kernel.limit)
    return sum(c * x**n for n, c in enumerate(kernel.coefficients))


def by_hand(m, q, k, v, beta, log_decay=None, scale=None):
    """One token after another: u_s = beta_s / w(x_ss) (v_s - sum_{r<s} D w(x_sr) u_r), A_t = sum_{s<=t} D w(x_ts) u_s."""
    group = q.shape[1] // k.shape[1]
    scale = m.kernel.scale(q.shape[-1]) if scale is None else scale
    q, k = (m.kernel.map_vectors(x, torch.arange(x.shape[2])) for x in (q, k))
    g = torch.zeros(()) if log_decay is None else log_decay[None, :, None] if m.decay == "head" else log_decay
    g = g.expand(*k.shape[:3]) if g.ndim < 4 else g
    written, outputs = [], []
    for t in range(k.shape[2]):

        def read(x, count, t=t):
            total = 0
            for s in range(count):
                fall = g[:, :, s + 1 : t + 1].sum(2)
                per_channel = fall.exp() if m.decay == "channel" else 1.0
                w = weight(m.kernel, scale * (x * k[:, :, s] * per_channel).sum(-1))
                total = total + (w if m.decay == "channel" else w * fall.exp())[..., None] * written[s]
            return total

        own = weight(m.kernel, scale * k[:, :, t].square().sum(-1))
        strength = torch.where(own != 0, beta[:, :, t] / own, torch.zeros_like(own))
        written.append(strength[..., None] * (v[:, :, t] - read(k[:, :, t], t)))
        heads = [read(q[:, i::group, t], t + 1) for i in range(group)]
        outputs.append(torch.stack(heads, 2).flatten(1, 2))
    return torch.stack(outputs, 2)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_specification_is_the_formula(kernel, decay):
    m = delta(kernel, decay)
    args = Problem(Tq=6, D=3, E=2).arguments(m, leaves=False)
    torch.testing.assert_close(
        sr.attention(mechanism=m, form="reference", **args), by_hand(m, **args), rtol=1e-9, atol=1e-9
    )


@st.composite
def cases(draw):
    kv_heads = draw(st.integers(1, 2))
    T = draw(st.sampled_from([1, 2, 9, 21]))
    problem = Problem(
        B=2, H=kv_heads * draw(st.integers(1, 2)), Hkv=kv_heads, Tq=T, D=draw(st.integers(1, 3)), E=3, seed=draw(st.integers(0, 99))
    )  # fmt: skip
    g = torch.Generator().manual_seed(problem.seed)
    if draw(st.booleans()):
        problem.options["key_padding_mask"] = torch.rand(2, T, generator=g) > 0.3
    if draw(st.booleans()):
        problem.options["segment_ids"] = (torch.rand(2, T, generator=g) > 0.7).long().cumsum(1)
    if draw(st.integers(0, 3)) == 0:
        problem.options["window"] = draw(
            st.integers(2, 8)
        )  # in a window of 1 nothing decays, and only rounding is left of its gradient
    return problem


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=3)
@given(problem=cases())
def test_every_form_equals_the_specification(kernel, decay, problem):
    m = delta(kernel, decay)
    expected = outputs_and_gradients(m, problem, "reference")
    for form in forms(m, window=problem.options.get("window")):
        chunk = {"chunk_size": 1 + problem.seed % 7} if form == "chunked" else {}
        assert_same(outputs_and_gradients(m, problem, form, **chunk), expected, 1e-9)


@pytest.mark.parametrize(
    ("kernel", "decay"),
    [("power1", "token"), ("taylor2", None), ("exp", None), ("exp", "token"), ("clamp", None), ("power1", "channel")],
)
@pytest.mark.parametrize("options", [{}, {"segment_ids": torch.arange(300)[None] // torch.tensor([[130], [41]])}])
def test_longer_than_any_block(kernel, decay, options):
    m = delta(kernel, decay)
    problem = Problem(Tq=300, H=2, Hkv=1, D=8, options=options)
    expected = outputs_and_gradients(m, problem, "reference")
    for form in set(forms(m)) - {"recurrent"}:
        assert_same(outputs_and_gradients(m, problem, form), expected, 1e-9)


@pytest.mark.parametrize("name", ["deltanet", "gated_deltanet", "kda", "delta_softmax", "taylor2_norm_delta"])
def test_gradients_flow_through_states(name):
    def gradients(form, cuts):
        args = Problem(Tq=12).arguments(name)
        state, outputs = None, []
        for begin, end in zip([0, *cuts], [*cuts, 12], strict=True):
            out, state = sr.attention(
                mechanism=name, form=form, state=state, return_state=True, **piece(name, args, begin, end)
            )
            outputs.append(out)
        out = torch.cat(outputs, 2)
        found = dict(zip(args, torch.autograd.grad(out.square().sum(), list(args.values())), strict=True))
        return {"out": out.detach(), **found}

    want = gradients("reference", [])
    for form in ["reference", *forms(name)]:
        assert_same(gradients(form, [3, 4, 9]), want, 1e-9)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("kernel", ["taylor2", "exp"])
def test_gradcheck(kernel, decay):
    m = delta(kernel, decay, norm="l2")
    args = Problem(B=1, H=2, Hkv=1, Tq=4, D=2, E=2, seed=5).arguments(m)
    for form in forms(m):

        def run(*values, form=form):
            return sr.attention(mechanism=m, form=form, chunk_size=3, **dict(zip(args, values, strict=True)))

        assert torch.autograd.gradcheck(run, list(args.values()), atol=1e-7, rtol=1e-5)


def test_orthogonal_keys_make_it_addition():
    k = torch.eye(6, dtype=torch.float64)[None, None] * 1.7
    q, v = torch.randn(2, 1, 1, 6, 6, dtype=torch.float64).unbind()
    ones = torch.ones(1, 1, 6, dtype=torch.float64)
    for form in forms("deltanet"):
        out = sr.attention(q, k, v, "deltanet", form=form, beta=ones)
        # beta is relative to the weight of a key with itself: scale |k|^2 = 1.7^2 / sqrt(6)
        add = sr.attention(q, k, v, "linear", form=form) / (1.7**2 / 6**0.5)
        torch.testing.assert_close(out, add)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("kernel", KERNELS)
def test_reading_at_the_key_returns_the_value(kernel, size):
    # beta = 1 replaces what was there, at any order and any size of keys: no divergence, no overflow.
    m = delta(kernel)
    g = torch.Generator().manual_seed(1)
    k = F.normalize(torch.randn(2, 2, 9, 4, dtype=torch.float64, generator=g), dim=-1) * size
    k = k.abs() if "lu" in kernel else k  # where relu(k) or elu(k) + 1 is 0, nothing can be written
    v = torch.randn(2, 2, 9, 3, dtype=torch.float64, generator=g)
    for form in ["reference", *forms(m)]:
        out = sr.attention(k, k, v, m, form=form, beta=torch.ones(2, 2, 9, dtype=torch.float64))
        torch.testing.assert_close(out, v, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_beta_zero_and_zero_keys_write_nothing(kernel):
    m = delta(kernel)
    args = Problem().arguments(m, leaves=False)
    skip = torch.rand(2, 2, 13, generator=torch.Generator().manual_seed(3)) > 0.5
    want = {**args, "beta": args["beta"].masked_fill(skip, 0.0)}
    other = {**want, "v": want["v"].masked_fill(skip[..., None], 99.0)}
    for form in forms(m):
        out = sr.attention(mechanism=m, form=form, **want)
        torch.testing.assert_close(sr.attention(mechanism=m, form=form, **other), out)
        none = sr.attention(mechanism=m, form=form, **{**args, "beta": torch.zeros_like(args["beta"])})
        assert (none == 0).all()
    if kernel.startswith("power"):
        leaves = {n: x.clone().requires_grad_() for n, x in {**args, "k": torch.zeros_like(args["k"])}.items()}
        for form in ["reference", *forms(m)]:
            out = sr.attention(mechanism=m, form=form, **leaves)
            assert (out == 0).all()
            assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), list(leaves.values())))


@pytest.mark.parametrize("form", ["reference", "parallel", "chunked", "recurrent"])
@pytest.mark.parametrize(("order", "length"), [(1, 1e-10), (2, 1e-6), (4, 1e-3)])
def test_the_gradient_of_a_short_key_is_finite(order, length, form):
    # The slope of beta / kappa, beta / kappa^2, leaves float32 long before kappa does.
    m = sr.Mechanism(sr.Power(order), sr.Unnormalised(), norm="l2", update="delta")
    tensors = torch.randn(3, 1, 1, 8, 16, generator=torch.Generator().manual_seed(0))
    tensors[1, :, :, 3] *= length
    for dtype in (torch.float32, torch.bfloat16):
        leaves = [x.to(dtype).requires_grad_() for x in tensors]
        out = sr.attention(*leaves, m, beta=torch.ones(1, 1, 8, dtype=dtype), form=form)
        assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), leaves))


@pytest.mark.parametrize("form", ["reference", "parallel", "chunked", "recurrent"])
@pytest.mark.parametrize("order", [1, 2, 4])
def test_a_key_too_short_for_the_dtype_writes_nothing(order, form):
    m = sr.Mechanism(sr.Power(order), sr.Unnormalised(), norm="l2", update="delta")
    q, k, v = torch.randn(3, 1, 1, 8, 16, generator=torch.Generator().manual_seed(0)).unbind()
    k[:, :, 3] = 0
    beta = torch.ones(1, 1, 8)
    want = sr.attention(q, k, v, m, beta=beta, form=form)
    k[:, :, 3, 0] = 1e-19
    torch.testing.assert_close(sr.attention(q, k, v, m, beta=beta, form=form), want)


@pytest.mark.parametrize("kernel", ["power1", "taylor2", "exp", "clamp"])
@pytest.mark.parametrize("decay", ["head", "token", "channel"])
@pytest.mark.parametrize("fall", [-5.0, -50.0])
def test_strong_decay_stays_finite(kernel, decay, fall):
    m = delta(kernel, decay)
    args = Problem(B=1, Tq=200, D=4, dtype=torch.float32).arguments(m, leaves=False)
    args["log_decay"] = torch.full_like(args["log_decay"], fall)
    exact = sr.attention(mechanism=m, form="reference", **{n: x.double() for n, x in args.items()})
    for form in set(forms(m)) - {"recurrent"}:
        leaves = {n: x.clone().requires_grad_() for n, x in args.items()}
        out = sr.attention(mechanism=m, form=form, **leaves)
        torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=1e-4)
        assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), list(leaves.values())))


def unit_problem(decay_shape=None, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    B, H, T, D = 2, 3, 70, 16
    q, k, v = (torch.randn(B, H, T, D, generator=g, dtype=dtype) for _ in range(3))
    beta = torch.rand(B, H, T, generator=g, dtype=dtype)
    fall = None if decay_shape is None else -torch.rand(B, H, T, *decay_shape, generator=g, dtype=dtype)
    return q, F.normalize(k, dim=-1), v, beta, fall


def fla(folder):
    """One of fla-core's plain files, loaded by its path: the package itself wants a GPU."""
    try:
        path = importlib.metadata.distribution("fla-core").locate_file(f"fla/ops/{folder}/naive.py")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("fla-core is not installed")
    pytest.importorskip("einops")
    spec = importlib.util.spec_from_file_location(f"naive_{folder}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def swapped(*tensors):
    return [x.transpose(1, 2) for x in tensors]


def test_deltanet_is_theirs():
    q, k, v, beta, _ = unit_problem()
    want, _ = fla("delta_rule").delta_rule_recurrence(q, k, v, beta)
    for form in forms("deltanet"):
        out = sr.attention(q * 16**-0.5, k, v, "deltanet", form=form, scale=1.0, beta=beta)
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)


def test_gated_deltanet_is_theirs():
    q, k, v, beta, g = unit_problem(())
    want, _ = fla("gated_delta_rule").naive_recurrent_gated_delta_rule(*swapped(q, k, v, beta, g))
    for form in forms("gated_deltanet"):
        out = sr.attention(q * 16**-0.5, k, v, "gated_deltanet", form=form, scale=1.0, beta=beta, log_decay=g)
        torch.testing.assert_close(out, want.transpose(1, 2), rtol=1e-4, atol=1e-5)


def test_kda_is_theirs():
    q, k, v, beta, g = unit_problem((16,))
    q_, k_, v_, beta_, g_ = swapped(q, k, v, beta, g)
    want, _ = fla("kda").naive_recurrent_kda(q_, k_, v_, g_, beta_)
    for form in forms("kda"):
        out = sr.attention(q * 16**-0.5, k, v, "kda", form=form, scale=1.0, beta=beta, log_decay=g)
        torch.testing.assert_close(out, want.transpose(1, 2), rtol=1e-4, atol=1e-5)


def test_gated_deltanet_is_that_of_transformers():
    theirs = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    q, k, v, beta, g = unit_problem(())
    q_, k_, v_, beta_, g_ = swapped(q, k, v, beta, g)
    # The torch function itself: where Triton is installed, transformers puts fla's kernel in its place, which needs a GPU.
    rule = inspect.unwrap(theirs.torch_recurrent_gated_delta_rule)
    want, last = rule(q_, k_, v_, g_, beta_, output_final_state=True)
    for form in ("chunked", "recurrent"):
        out, state = sr.attention(
            q * 16**-0.5, k, v, "gated_deltanet", form=form, scale=1.0, beta=beta, log_decay=g, return_state=True
        )
        torch.testing.assert_close(out, want.transpose(1, 2), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(state.moments, last, rtol=1e-4, atol=1e-5)


def test_refusals_are_one_sentence():
    with pytest.raises(sr.MechanismError, match="take a vector norm or Unnormalised"):
        sr.Mechanism(sr.Taylor(2), sr.Sum(), update="delta")
    with pytest.raises(sr.MechanismError, match="Near has no delta rule"):
        sr.Mechanism(sr.Near(sr.Exp(), sr.Taylor(2), window=4), U, norm="l2", update="delta")
    args = Problem(Tq=4).arguments("deltanet", leaves=False)
    with pytest.raises(sr.MechanismError, match="needs causal=True"):
        sr.attention(mechanism="deltanet", causal=False, **args)
    for wrong in (-0.1, 2.1):
        with pytest.raises(sr.MechanismError, match="beta must be from 0 to 2"):
            sr.attention(mechanism="deltanet", **{**args, "beta": torch.full_like(args["beta"], wrong)})
    with pytest.raises(sr.MechanismError, match="beta must have shape"):
        sr.attention(mechanism="deltanet", **{**args, "beta": args["beta"][:, :1]})
    with pytest.raises(sr.MechanismError, match="needs beta="):
        sr.attention(args["q"], args["k"], args["v"], "deltanet")


def test_memory_grows_with_the_tokens_not_with_their_square():
    # What autograd keeps of a call: at most so many numbers per token, whatever the length.
    for name in ("delta_softmax", "gated_deltanet"):
        kept = []
        for T in (256, 1024):
            total = 0

            def pack(x):
                nonlocal total
                total += x.numel()
                return x

            args = Problem(B=1, H=1, Hkv=1, Tq=T, D=8, E=8, dtype=torch.float32).arguments(name)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                sr.attention(mechanism=name, **args)
            kept.append(total)
        assert kept[1] <= 4.1 * kept[0]


def test_a_long_key_that_writes_nothing_harms_nobody():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 150, 4, dtype=torch.float64).unbind()
    beta = torch.rand(1, 2, 150, dtype=torch.float64)
    k[:, :, 3::7] *= 60.0  # their readings are beyond float32, and within float64
    beta[:, :, 3::7] = 0.0  # also within the first block of keys and beyond it

    def run(dtype):
        args = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        out = sr.attention(*args, "delta_softmax", beta=beta.to(dtype), form="parallel")
        return [out, *torch.autograd.grad(out.square().sum(), args)]

    for found, want in zip(run(torch.float32), run(torch.float64), strict=True):
        assert found.isfinite().all()
        torch.testing.assert_close(found.double(), want, rtol=1e-3, atol=1e-3)
