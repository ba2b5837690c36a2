"""The loops in C: the numbers of the loops in Python and of the reference, where tiles, the range of numbers or processes end."""

import multiprocessing
import shutil
import sys

import pytest
import torch

import softmax_rnn as sr
from softmax_rnn.backends import SOFTMAX_LSE, SoftmaxCall, choose, native
from softmax_rnn.context import Context
from tests import PATIENCE

from .problems import Problem, assert_same, outputs_and_gradients

compiler = (
    sys.platform == "linux" and shutil.which("gcc") is not None
)  # there the loops must be built, or the tests fail
pytestmark = pytest.mark.skipif(not compiler and native.why_not() is not None, reason=f"{native.why_not()}")

TILED = [
    "length",
    "clamp_sum",
    "taylor2",
    "taylor10_norm",
    "power2",
    "taylor3_norm",
    "fox",
    "norm_decay",
    "clamp_decay",
]
CHUNKED = ["linear", "linear_elu", "mamba2", "retnet", "gla"]
LENGTH = 140  # two tiles of queries and a bit; 1,100 is more than one of keys


def _options(name, T):
    keep = torch.arange(T)[None] >= torch.tensor([[0], [T // 3]])
    keep[0, T // 2 : T // 2 + 3] = False
    return {
        "plain": {},
        "padding": {"key_padding_mask": keep},
        "documents": {"segment_ids": torch.arange(T)[None] // torch.tensor([[37], [2 * T]])},
        "window": {"window": 50},
    }[name]


def test_the_loops_are_in_c():
    assert native.why_not() is None


@pytest.fixture
def in_python(monkeypatch):
    """Runs a function with the loops in Python."""

    def run(function):
        with monkeypatch.context() as without:
            without.setenv("SOFTMAX_RNN_NATIVE", "0")
            assert native.why_not() == "SOFTMAX_RNN_NATIVE=0 asks for the loops in Python"
            return function()

    return run


@pytest.mark.parametrize("options", ["plain", "padding", "documents", "window"])
@pytest.mark.parametrize("name", TILED)
def test_tiles_in_c_are_those_in_python(name, options, in_python):
    problem = Problem(Tq=LENGTH, D=8, options=_options(options, LENGTH))
    found = outputs_and_gradients(name, problem, "parallel")
    assert_same(found, in_python(lambda: outputs_and_gradients(name, problem, "parallel")), 1e-9)
    assert_same(found, outputs_and_gradients(name, problem, "reference"), 1e-9)


@pytest.mark.parametrize("width", [12, 16, 32, 48])
@pytest.mark.parametrize("name", ["softmax", "norm", "length", "taylor2", "fox", "sink"])
def test_heads_for_which_products_are_made_by_hand(name, width):
    """12 and 48 channels are left to BLAS; 141 queries are no multiple of anything."""
    problem = Problem(H=4, Hkv=2, Tq=141, D=width)
    found = outputs_and_gradients(name, problem, "parallel")
    assert_same(found, outputs_and_gradients(name, problem, "reference"), 1e-9)


def test_small_heads_are_for_tiles_and_others_for_torch():
    def taken(width, queries=64, dtype=torch.float32):
        q = torch.randn(1, 2, queries, width, dtype=dtype)
        return choose(
            SOFTMAX_LSE, SoftmaxCall(q, q, q, Context(queries, queries, True, q.device), 1.0, None, False), "auto"
        ).name

    assert [taken(width) for width in (8, 16, 32, 64)] == ["sdpa", "small tiles", "small tiles", "sdpa"]
    assert taken(16, queries=1) == "sdpa"
    assert taken(32, dtype=torch.bfloat16) == "small tiles"


@pytest.mark.parametrize("queries", [64, 65, 141])
@pytest.mark.parametrize("options", ["plain", "padding", "documents", "window"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_heads_in_half_precision_are_computed_in_float32(dtype, options, queries):
    """Output and gradients are those of float32 for the same numbers, rounded once; two heads of queries share keys and values."""
    half = Problem(Tq=queries, D=32, E=32, dtype=dtype).arguments("softmax")
    single = {name: x.detach().float().requires_grad_() for name, x in half.items()}
    direction = torch.randn(half["q"].shape, dtype=dtype, generator=torch.Generator().manual_seed(7))
    for args in (half, single):
        args["out"] = sr.attention(**args, mechanism="softmax", **_options(options, queries))
        args["out"].backward(direction.to(args["out"].dtype))
    assert torch.equal(half["out"], single["out"].to(dtype))
    for name in "qkv":
        assert torch.equal(half[name].grad, single[name].grad.to(dtype)), name


def test_an_exported_program_knows_no_tiles():
    class Softmax(torch.nn.Module):
        def forward(self, q):
            return sr.attention(q, q, q, "softmax")

    exported = torch.export.export(Softmax(), (torch.randn(1, 2, 64, 16),))
    assert not [node for node in exported.graph.nodes if "softmax_rnn" in str(node.target)]


@pytest.mark.parametrize("options", ["plain", "padding", "documents"])
@pytest.mark.parametrize("name", CHUNKED)
def test_chunks_in_c_are_those_in_python(name, options, in_python):
    problem = Problem(Tq=LENGTH, D=8, options=_options(options, LENGTH))
    found = outputs_and_gradients(name, problem, "chunked", chunk_size=32)
    assert_same(found, in_python(lambda: outputs_and_gradients(name, problem, "chunked", chunk_size=32)), 1e-9)


@pytest.mark.parametrize("name", ["length", "taylor2", "fox"])
def test_more_keys_than_a_tile_has(name):
    problem = Problem(B=1, H=2, Hkv=1, Tq=1100, D=8)
    want = outputs_and_gradients(name, problem, "reference")
    assert_same(outputs_and_gradients(name, problem, "parallel"), want, 1e-9)


@pytest.mark.parametrize("name", [*TILED, *CHUNKED])
def test_float32_is_as_exact_as_in_python(name, in_python):
    form = "parallel" if name in TILED else "chunked"
    single, exact = (Problem(Tq=LENGTH, D=8, dtype=x) for x in (torch.float32, torch.float64))
    want = outputs_and_gradients(name, exact, "reference", rounded=torch.float32)

    def error():
        found = outputs_and_gradients(name, single, form)
        return max(((found[at].double() - x).norm() / max(x.norm().item(), 1e-3)).item() for at, x in want.items())

    assert error() < 2 * in_python(error) + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_exponential_over_its_whole_range(dtype):
    ends = 110.0 if dtype == torch.float32 else 760.0
    x = torch.linspace(-ends, ends, 20001, dtype=torch.float64).to(dtype)
    x = torch.cat([x, torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 5e4, -5e4], dtype=dtype)])
    one = torch.ones(1, 1, 1, 1, dtype=dtype)
    mechanism = sr.Mechanism(sr.Exp(clamp=1e6), sr.Unnormalised())  # a clamp that clamps nothing: w(x) = exp(x)
    found = sr.attention(x.view(1, 1, -1, 1), one, one, mechanism, scale=1.0, causal=False, form="parallel").flatten()
    want = x.double().exp().to(dtype)
    normal = want > torch.finfo(dtype).tiny
    torch.testing.assert_close(found[normal], want[normal], rtol=4 * torch.finfo(dtype).eps, atol=0.0)
    assert (found[want < torch.finfo(dtype).tiny] <= torch.finfo(dtype).tiny).all()
    assert found.isnan().equal(want.isnan())


@pytest.mark.parametrize("name", ["length", "fox"])
def test_nothing_stays_in_the_processor(name):
    """Denormal numbers are 0 inside the loops, and what they were outside of them."""
    problem = Problem(Tq=LENGTH)
    outputs_and_gradients(name, problem, "parallel")
    assert torch.tensor(1e-40) * 0.5 > 0


def _computed(queue):
    # products large enough for BLAS to divide, tensors so small that torch does not: it would wait for ever after a fork
    q, k, v = (torch.randn(1, 2, 192, 64) for _ in range(3))
    queue.put(sr.attention(q, k, v, "length", form="parallel").isfinite().all().item())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_threads_it_has_not(monkeypatch):
    monkeypatch.setattr(native, "LEAST", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_computed, args=(results,))
    try:
        _computed(results)
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == 0
        assert [results.get(), results.get()] == [True, True]
    finally:
        torch.set_num_threads(before)
        child.kill()


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"CC": "no-such-compiler"}, "there is no C compiler no-such-compiler"),
        ({"PATH": "/nowhere", "CC": ""}, "there is no C compiler"),
        ({"CC": "false"}, "false does not build the loops in C (it does not say why)"),
        ({"XDG_CACHE_HOME": "/dev/null"}, "the loops in C cannot be kept in /dev/null/softmax-rnn (Not a directory)"),
    ],
)
def test_why_there_is_no_library(variables, sentence, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(native.Missing) as reason:
        native._built()
    assert str(reason.value) == sentence


def test_another_source_is_another_library(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = native._built()
    assert native._built() == first
    monkeypatch.setattr(native, "FLAGS", [*native.FLAGS, "-DANOTHER"])
    assert native._built() != first
    assert {x.suffix for x in first.parent.iterdir()} == {".so"}


def test_explain_says_where_the_loops_are(monkeypatch):
    assert "tiles and chunks of order 1: loops in C" in str(sr.explain("taylor2", 1, 1, 64, 8, 8))
    monkeypatch.setenv("SOFTMAX_RNN_NATIVE", "0")
    assert "loops in Python (SOFTMAX_RNN_NATIVE=0 asks for the loops in Python)" in str(
        sr.explain("taylor2", 1, 1, 64, 8, 8)
    )


@pytest.mark.parametrize("window", [None, 299])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("in_c", [True, False])
def test_a_loud_key_is_heard_from_afar(in_c, dtype, padded, window, monkeypatch):
    """Decay of e^-150 and a score of 300: what decides whether a key is visited is both of them."""
    if not in_c:
        monkeypatch.setenv("SOFTMAX_RNN_NATIVE", "0")
    q, k, v = torch.randn(3, 1, 1, 300, 4, dtype=dtype, generator=torch.Generator().manual_seed(0)).unbind()
    q[:, :, 250:] = torch.tensor([30.0, 0, 0, 0], dtype=dtype)
    k[:, :, 3] = torch.tensor([10.0, 0, 0, 0], dtype=dtype)
    fade = torch.full((1, 1, 300), -0.5, dtype=dtype)
    keep = torch.arange(300)[None] % 7 != 6 if padded else None
    options = {"log_decay": fade, "scale": 1.0, "key_padding_mask": keep, "window": window}
    found = sr.attention(q, k, v, "fox", form="parallel", **options)
    torch.testing.assert_close(found, sr.attention(q, k, v, "fox", form="reference", **options), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[0, 0, 299], v[0, 0, 3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("where", ["q", "k", "v", "log_decay"])
@pytest.mark.parametrize("name", ["fox", "taylor2_decay"])
@pytest.mark.parametrize("in_c", [True, False])
def test_nan_is_not_lost(in_c, name, where, monkeypatch):
    """Also where decay decides which keys are visited: the query that is NaN, or those that still hear the key, are NaN."""
    if not in_c:
        monkeypatch.setenv("SOFTMAX_RNN_NATIVE", "0")
    args = Problem(B=1, Tq=LENGTH).arguments(name, leaves=False)
    args[where][0, 0, 70] = torch.nan
    found = sr.attention(mechanism=name, form="parallel", **args).isnan()
    assert (found[0, 0, 70] if where == "q" else found[0, :2, 70:75]).all()
