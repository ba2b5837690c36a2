"""Work divided between threads: the same numbers, and nothing of the caller's changed."""

import multiprocessing
import threading

import pytest
import torch

import softmax_rnn as sr
from softmax_rnn.backends import native, threads
from tests import PATIENCE
from tests.core.problems import Problem, assert_same, outputs_and_gradients
from tests.core.test_pieces import OPTIONS


@pytest.fixture
def two(monkeypatch):
    """Two threads of torch's, and no work too small for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(threads, "LEAST", 0)
    monkeypatch.setattr(native, "LEAST", 0)
    yield
    torch.set_num_threads(before)


def _in_a_new_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def _doubled(n=6):
    x = torch.zeros(n)
    threads.share(n, 1.0, x.device, lambda some: x[some].add_(2.0))
    return x


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "name", ["length", "taylor2", "softcap", "fox", "delta_softmax", "mamba2", "taylor2_norm_delta"]
)
@pytest.mark.parametrize("loops", ["C", "Python"])
def test_the_same_numbers_as_in_one_thread(loops, name, options, two, monkeypatch):
    if loops == "Python":
        monkeypatch.setenv("SOFTMAX_RNN_NATIVE", "0")
    name = sr.Mechanism(sr.Exp(softcap=3.0), sr.Sum()) if name == "softcap" else name
    problem = Problem(H=4, Hkv=2, B=2, Tq=22, options=OPTIONS[options])
    forms = ["parallel", "chunked"] if sr.mechanism(name).kernel.finite else ["parallel"]
    for form in forms:
        shared = outputs_and_gradients(name, problem, form)
        again = outputs_and_gradients(name, problem, form)
        with monkeypatch.context() as alone:
            alone.setattr(threads, "LEAST", float("inf"))
            alone.setattr(native, "LEAST", float("inf"))
            assert_same(shared, outputs_and_gradients(name, problem, form), 1e-12)
        assert_same(again, shared, 0.0)


def test_work_is_divided(two):
    seen = set()
    ready = threading.Barrier(2, timeout=PATIENCE)

    def work(some):
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            ready.wait()

    threads.share(8, 1.0, torch.device("cpu"), work)
    assert len(seen) == 2
    assert threading.get_ident() not in seen


def test_nobody_elses_number_of_threads_changes(two):
    mine = []
    threads.share(4, 1.0, torch.device("cpu"), lambda some: mine.append(torch.get_num_threads()))
    assert set(mine) == {1}
    assert torch.get_num_threads() == 2
    assert _in_a_new_thread(torch.get_num_threads) == 2
    torch.set_num_threads(3)
    assert _doubled().eq(2).all()
    assert (torch.get_num_threads(), _in_a_new_thread(torch.get_num_threads)) == (3, 3)


def test_a_thread_with_a_number_of_its_own_keeps_it(two):
    def other():
        torch.get_num_threads()
        torch.set_num_threads(4)
        _doubled()
        return torch.get_num_threads()

    assert _in_a_new_thread(other) == 4
    assert torch.get_num_threads() == 2


def test_more_threads_than_sequences_are_torchs(two):
    torch.set_num_threads(4)
    found = []
    threads.share(2, 1.0, torch.device("cpu"), lambda some: found.append(torch.get_num_threads()))
    assert found == [2, 2]


def test_an_error_comes_back_after_all_have_ended(two):
    ended = []

    def work(some):
        ended.append(some)
        if some.start == 0:
            raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        threads.share(6, 1.0, torch.device("cpu"), work)
    assert sum(some.stop - some.start for some in ended) == 6
    assert _doubled().eq(2).all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes_of_the_caller(mode, two):
    q, k, v = torch.randn(3, 2, 4, 7, 8).unbind()
    with mode():
        found = sr.attention(q, k, v, "length", form="parallel")
    torch.testing.assert_close(found, sr.attention(q, k, v, "length", form="reference"))


def test_inside_autocast(two):
    q, k, v = torch.randn(3, 2, 4, 7, 8).unbind()
    with torch.autocast("cpu", torch.bfloat16):
        found = sr.attention(q, k, v, "taylor2", form="parallel")
        want = sr.attention(q, k, v, "taylor2", form="reference")
    assert found.dtype == want.dtype
    torch.testing.assert_close(found, want, atol=2e-2, rtol=2e-2)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_starts_its_own(two):
    assert _doubled().eq(2).all()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=lambda: results.put(_doubled().tolist()))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == 0
    assert results.get() == [2.0] * 6


def test_small_work_stays_where_it_is():
    device = torch.device("cpu")
    assert threads.workers(8, threads.LEAST - 1, device, threads.LEAST) == 1
    assert threads.workers(1, 2.0**40, device, threads.LEAST) == 1
    assert threads.workers(8, 2.0**40, torch.device("meta"), threads.LEAST) == 1
