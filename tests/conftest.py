"""Shapes are checked while tests run, on one thread; hypothesis draws the same examples every time."""

import os

os.environ["SOFTMAX_RNN_CHECK_SHAPES"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start, too: there is no second core for them

import pytest
import torch
from hypothesis import HealthCheck, settings

from softmax_rnn.machine import mend_bfloat16

mend_bfloat16()  # here, for everything that tests start, too

# The problems of the tests are tiny: a second thread would only wait for the first, and on a busy machine for long.
torch.set_num_threads(1)

settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nobody_elses_mechanisms(monkeypatch):
    """Names and plugins that a test registers end with it."""
    from softmax_rnn.slots.presets import REGISTERED

    monkeypatch.setenv("SOFTMAX_RNN_PLUGINS", "")
    before = dict(REGISTERED)
    yield
    REGISTERED.clear()
    REGISTERED.update(before)


@pytest.fixture
def refused(capsys):
    """Run a command that must refuse its input; returns the line that it prints, and nothing but that."""
    from softmax_rnn import cli

    def run(*argv):
        assert cli.main(list(argv)) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1, printed.err
        assert printed.err[:-1].isprintable()
        return printed.err

    return run
