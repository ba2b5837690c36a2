"""Shapes are checked while tests run; hypothesis draws the same examples every time."""

import os

os.environ["SOFTMAX_RNN_CHECK_SHAPES"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
