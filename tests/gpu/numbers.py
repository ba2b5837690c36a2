"""The kernels' numbers, in Triton's interpreter: outputs and all gradients against the dense reference in float64.

Run by ``make kernels`` in a process of its own, because Triton reads TRITON_INTERPRET when kernels are defined. Tiles are 16 x 16,
the smallest, so that a few dozen tokens make several of them: whole ones, cut ones, and a last one that is not full.
"""

import json

import pytest
import torch

import softmax_rnn as sr
from softmax_rnn.backends import triton
from softmax_rnn.backends.triton import INTERPRETED, common, delta, scan, softmax, trial, weighted
from softmax_rnn.bench import gpu

from ..core.problems import Problem, assert_same, outputs_and_gradients, piece
from ..core.test_precision import rms_error

assert INTERPRETED, "run me with TRITON_INTERPRET=1"

T = 21
PADDING = torch.arange(T)[None] >= torch.tensor([[0], [17]])
DOCUMENTS = torch.stack([torch.arange(T) // 11, torch.arange(T) // 4])
MASKS = {
    "causal": {},
    "bidirectional": {"causal": False},
    "window": {"window": 5},
    "documents": {"segment_ids": DOCUMENTS},
    "padding": {"key_padding_mask": PADDING},
    "all": {"window": 9, "segment_ids": DOCUMENTS, "key_padding_mask": PADDING},
}
OWN = {
    "cap_decay_sink": sr.Mechanism(sr.Exp(softcap=2.0), sr.Sum(sink=True), decay="token"),
    "clamp_decay": sr.Mechanism(sr.Exp(clamp=1.0), sr.Sum(min=1.0), decay="token"),
    "signed": sr.Mechanism(sr.Taylor(3), sr.Unnormalised(), norm="l2"),
    "cubic": sr.Mechanism(sr.Power(3), sr.Unnormalised()),
    "constant": sr.Mechanism(sr.Power(0), sr.Sum()),
    "near_4": sr.Mechanism(sr.Near(sr.Exp(), sr.Taylor(2), window=4), sr.Sum()),
}
CASES = [
    *(("softmax", mask) for mask in MASKS),
    *(("taylor2", mask) for mask in MASKS),
    *(("cap_decay_sink", mask) for mask in ("causal", "all")),
    *(("clamp_decay", mask) for mask in ("causal", "all")),
    *((name, "causal") for name in ("fox", "length", "delta_softmax", "taylor10", "signed", "cubic", "constant", "near_4")),
    ("taylor4_norm_decay", "documents"),
    ("clamp_sum", "bidirectional"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    for module in (softmax, weighted):
        monkeypatch.setattr(module, "tile", lambda *_: common.Tile(16, 16))
    for module in (scan, delta):
        monkeypatch.setattr(module, "tile", lambda *_: common.Tile(16, 16, 4, 1))
    for name, mechanism in OWN.items():
        sr.register(name, mechanism)


def exactly(problem):
    """The same numbers in float64."""
    exact = Problem(**{**vars(problem), "dtype": torch.float64})
    exact.arguments = lambda m, leaves=True: {
        n: x.detach().double().requires_grad_() for n, x in problem.arguments(m, leaves=False).items()
    }
    return exact


@pytest.mark.parametrize(("name", "mask"), CASES)
def test_float32(name, mask):
    problem = Problem(B=2, H=2, Hkv=1, Tq=T, D=8, E=5, dtype=torch.float32, options=MASKS[mask])
    found = outputs_and_gradients(name, problem, "parallel", backend="triton")
    want = outputs_and_gradients(name, exactly(problem), "reference")
    assert_same(found, want, 5e-6, common_scale=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["fox", "length", "taylor2", "signed", "clamp_decay"])
def test_half_precision_is_within_twice_the_dense_error(name, dtype):
    problem = Problem(B=1, H=2, Hkv=1, Tq=T, D=8, E=8, dtype=dtype, seed=3)
    found = outputs_and_gradients(name, problem, "parallel", backend="triton")
    exact = outputs_and_gradients(name, exactly(problem), "reference", rounded=dtype)
    dense = outputs_and_gradients(name, problem, "reference")
    for what, want in exact.items():
        assert found[what].dtype == dtype
        allowed = 2 * max(rms_error(dense[what], want), rms_error(want.to(dtype), want))
        assert rms_error(found[what], want) <= allowed, what


@pytest.mark.parametrize(("Tq", "Tk", "D", "E"), [(1, 1, 1, 1), (17, 17, 3, 20), (3, 50, 16, 16), (16, 16, 33, 2)])
@pytest.mark.parametrize("name", ["fox", "taylor4"])
def test_odd_sizes_and_caches(name, Tq, Tk, D, E):
    p = Problem(B=1, H=3, Hkv=3, Tq=Tk, D=D, E=E, dtype=torch.float32)
    args = p.arguments(name, leaves=False)
    whole = sr.attention(mechanism=name, form="reference", **{n: x.double() for n, x in args.items()})
    args["q"] = args["q"][:, :, Tk - Tq :]
    if Tq == Tk:
        out = sr.attention(mechanism=name, form="parallel", backend="triton", **args)
    else:  # the last queries after a cache of keys
        old = {n: x[:, :, : Tk - Tq] for n, x in args.items() if n != "q"}
        new = {n: x[:, :, Tk - Tq :] for n, x in args.items() if n != "q"}
        options = {"form": "parallel", "backend": "triton", "return_state": True}
        _, state = sr.attention(old["k"], **old, mechanism=name, **options)
        out, _ = sr.attention(args["q"], **new, mechanism=name, state=state, **options)
    assert (out - whole[:, :, Tk - Tq :]).abs().max() <= 1e-5 * whole.abs().max()


def test_default_tiles(monkeypatch):
    monkeypatch.undo()
    problem = Problem(B=1, H=1, Hkv=1, Tq=70, D=16, E=16, dtype=torch.float32)
    for name in ("fox", "taylor2"):
        found = outputs_and_gradients(name, problem, "parallel", backend="triton")
        assert_same(found, outputs_and_gradients(name, exactly(problem), "reference"), 5e-6, common_scale=True)


@pytest.mark.parametrize("order", [40, 79])
def test_high_orders_are_the_orders_they_say(order):
    series = sr.Mechanism(sr.Taylor(order), sr.Unnormalised())
    q, one = torch.full((1, 1, 1, 1), 30.0, requires_grad=True), torch.ones(1, 1, 1, 1)

    def value(x, unit, **how):
        out = sr.attention(x, unit, unit, series, scale=1.0, **how)
        return out.item(), torch.autograd.grad(out.sum(), x)[0].item()

    want = value(q.detach().double().requires_grad_(), one.double(), form="reference")
    assert value(q, one, form="parallel", backend="triton") == pytest.approx(want, rel=1e-5)


def test_forgotten_keys_are_not_visited():
    clock = torch.arange(0, -6400, -50, dtype=torch.float64)[None]
    by_query, by_key = common.ranges(clock, clock, None, None, 128, 128, True, common.Tile(16, 16))
    first, end = by_query[0, 4].tolist()
    assert (first, end) == (
        62,
        80,
    )  # the first query of the block, 64, remembers 62: 100 steps of the clock, and 110 are too many
    assert by_key[0, 0].tolist() == [0, 18]


def test_what_is_refused_says_why():
    q = torch.randn(1, 1, 3, 200)
    with pytest.raises(sr.MechanismError, match="200 and 200 channels, and its tiles in float32 at most 64"):
        sr.attention(q, q, q, "taylor2", form="parallel", backend="triton")
    with pytest.raises(sr.MechanismError, match="not in float64"):
        sr.attention(*torch.randn(3, 1, 1, 4, 4).double().unbind(), "taylor2", form="parallel", backend="triton")
    q = torch.randn(1, 1, 3, 4)
    with pytest.raises(sr.MechanismError, match="65,536 sequences times heads"):
        sr.attention(*torch.zeros(1).expand(3, 65_536, 1, 1, 1).unbind(), "length", backend="triton")
    with pytest.raises(sr.MechanismError, match="channel decay"):
        sr.attention(q, q, q, "wall", form="parallel", backend="triton", log_decay=-torch.rand(1, 1, 3, 4))


def test_compiled_by_torch():
    def run(q, k, v):
        return sr.attention(q, k, v, "taylor2", form="parallel", backend="triton").sum()

    q, k, v = (torch.randn(1, 2, 20, 8, requires_grad=True) for _ in range(3))
    want = torch.autograd.grad(run(q, k, v), (q, k, v))
    found = torch.autograd.grad(torch.compile(run, backend="aot_eager", fullgraph=True)(q, k, v), (q, k, v))
    torch.testing.assert_close(found, want)


# What goes through a state: orders 0 to 2, token decay, documents, and the delta rule of order 1.
SCANS = [
    *((name, "causal") for name in ("taylor0", "linear", "taylor2_decay", "gated_deltanet", "mamba2")),
    *((name, "padding") for name in ("taylor2", "deltanet")),
    *((name, "documents") for name in ("taylor2", "mamba2_squared", "gated_deltanet")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mask"), SCANS)
def test_scan(name, mask):
    problem = Problem(B=2, H=2, Hkv=1, Tq=T, D=3, E=5, dtype=torch.float32, options=MASKS[mask])
    found = outputs_and_gradients(name, problem, "chunked", backend="triton")
    want = outputs_and_gradients(name, exactly(problem), "reference")
    assert_same(found, want, 5e-6, common_scale=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["taylor2_decay", "gated_deltanet"])
def test_half_precision_scan_is_within_twice_the_dense_error(name, dtype):
    problem = Problem(B=1, H=2, Hkv=1, Tq=T, D=4, E=8, dtype=dtype, seed=3)
    found = outputs_and_gradients(name, problem, "chunked", backend="triton")
    exact = outputs_and_gradients(name, exactly(problem), "reference", rounded=dtype)
    dense = outputs_and_gradients(name, problem, "reference")
    for what, want in exact.items():
        allowed = 2 * max(rms_error(dense[what], want), rms_error(want.to(dtype), want))
        assert rms_error(found[what], want) <= allowed, what


@pytest.mark.parametrize("name", ["taylor2_decay", "gated_deltanet"])
def test_a_cut_sequence_gives_the_same_state(name, monkeypatch):
    monkeypatch.setattr(scan, "MOST", 1)  # piece by piece
    args = Problem(B=1, H=2, Hkv=2, Tq=40, D=4, E=3, dtype=torch.float32).arguments(name, leaves=False)
    options = {"mechanism": name, "form": "chunked", "return_state": True}
    want, want_state = sr.attention(**args, **options, backend="torch")
    _, state = sr.attention(**piece(name, args, 0, 19), **options, backend="triton")
    out, state = sr.attention(**piece(name, args, 19, 40), **options, backend="triton", state=state)
    torch.testing.assert_close(out, want[:, :, 19:], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(state.moments, want_state.moments, atol=2e-5, rtol=2e-5)


def test_what_a_scan_refuses_says_why():
    def asking(match, name, d=4, **options):
        q = torch.randn(1, 1, 3, d)
        with pytest.raises(sr.MechanismError, match=match):
            sr.attention(q, q, q, name, form="chunked", backend="triton", **options)

    asking("no order in time", "linear", causal=False)
    asking("orders up to 2, not 4", "taylor4")
    asking("keys have 80 channels, and its scan at most 64", "linear", 80)
    asking("chooses its chunks itself, and chunk_size=8", "linear", chunk_size=8)
    asking("delta rule for order 1 alone", "taylor2_norm_delta", beta=torch.ones(1, 1, 3))


def test_bench_gpu_as_on_a_card(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    monkeypatch.setattr(gpu, "milliseconds", lambda work: float(work() is not None))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "environment", lambda: {})
    monkeypatch.setattr(gpu, "CORRECT", ("fox",))
    monkeypatch.setattr(gpu, "TIMED", ("norm", "taylor2"))
    assert gpu.main(["--quick", "--json", str(tmp_path / "gpu.json")]) == 0
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert {x["name"] for x in record["correct"]} == {"fox", "linear_elu", "mamba2"}
    assert all(x["ok"] for x in record["correct"])
    ours = [x for x in record["speed"] if x["backend"] == "triton"]
    assert len(ours) == 4
    assert all(x["milliseconds"] == 1.0 for x in ours), ours


KINDS = [
    ("softmax", "cpu", torch.float32, 8, 5, 1, (True, False, False, False, False), (0.3, None)),
    ("softmax", "cpu", torch.bfloat16, 16, 16, 2, (True, True, True, True, True), (0.25, 5.0)),
    ("weighted", "cpu", torch.float32, 16, 16, 1, (False, False, True, False, False), (0.25, (), 1.0, True)),
    (
        "weighted",
        "cpu",
        torch.float16,
        8,
        16,
        2,
        (True, False, False, True, False),
        (0.3, (1.0, 1.0, 0.5), None, False),
    ),
    ("scan", "cpu", torch.float32, 8, 8, 2, (True, False), (0.3, (1.0, 1.0, 0.5), 1 + 8 + 36)),
    ("scan", "cpu", torch.bfloat16, 8, 8, 1, (True, True), (0.3, (0.0, 1.0), 8)),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_trial_finds_nothing_wrong(kind):
    assert trial.error_of(kind) < trial.TOLERANCE[kind[2]] / 2
    assert trial.verdict(kind) is None


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[2], KINDS[4]], ids=lambda kind: kind[0])
def test_kernels_that_fail_their_trial_are_not_used(kind, monkeypatch):
    name = f"run_{kind[0]}"
    right = getattr(triton, name)
    monkeypatch.setattr(triton, name, lambda call: [x if x is None else 0.9 * x for x in right(call)])
    with pytest.warns(
        UserWarning, match=f"Triton kernels for {kind[0]} are not used on cpu: in a trial its numbers differ"
    ):
        assert "differ from the specification by 10%" in trial.hold.__wrapped__(kind)
    monkeypatch.setattr(triton, name, lambda call: 1 / 0)
    with pytest.warns(UserWarning, match="it does not run"):
        assert "division by zero" in trial.hold.__wrapped__(kind)


def test_compiled_code_asks_for_a_trial_too():
    @torch.compile(fullgraph=True, backend="eager")
    def doubled(x):
        return (
            2 * x
            if trial.verdict(("softmax", "cpu", x.dtype, x.shape[-1], 5, 1, (True,) + 4 * (False,), (0.3, None)))
            is None
            else x
        )

    assert torch.equal(doubled(torch.ones(3, 8)), torch.full((3, 8), 2.0))


def test_after_a_failed_trial_the_next_one_runs(monkeypatch):
    q = torch.randn(1, 1, T, 8)
    want = sr.attention(q, q, q, "taylor2", form="parallel", backend="torch")
    monkeypatch.setattr(trial, "failed", lambda kind: "in a trial on this card it does not run (no memory)")
    for name in ("softmax", "taylor2"):
        with pytest.raises(sr.MechanismError, match="in a trial on this card it does not run"):
            sr.attention(
                q, q, q, name, form="parallel", backend="triton", **({"window": 3} if name == "softmax" else {})
            )
    assert torch.equal(sr.attention(q, q, q, "taylor2", form="parallel"), want)
