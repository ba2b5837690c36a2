"""Tiny models and inputs for the tests of ``softmax_rnn.models``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from softmax_rnn.models import SoftmaxRnnConfig, SoftmaxRnnForCausalLM

SMALL: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def check_that_it_learns_and_is_saved(model: Any, ids: torch.Tensor, folder: Path) -> None:
    """Every parameter has a gradient, and a saved model computes the same."""
    model(ids, labels=ids).loss.backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    model.save_pretrained(folder)
    again = SoftmaxRnnForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits)


@pytest.fixture(autouse=True)
def _quiet_and_seeded() -> None:
    logging.set_verbosity_error()
    torch.manual_seed(0)


@pytest.fixture
def small() -> dict[str, Any]:
    return dict(SMALL)


@pytest.fixture
def make() -> Callable[..., SoftmaxRnnForCausalLM]:
    """A tiny model, in evaluation mode; weights large enough that greedy choices are not ties."""

    def build(mechanism: Any = "softmax", **changes: Any) -> SoftmaxRnnForCausalLM:
        torch.manual_seed(0)
        config = SoftmaxRnnConfig(**{**SMALL, "initializer_range": 0.3, **changes}, mechanism=mechanism)
        model = SoftmaxRnnForCausalLM(config).eval()
        model.generation_config.eos_token_id = None
        return model

    return build


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(3, 48, (2, 11), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def left_padding(ids: torch.Tensor) -> torch.Tensor:
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    return mask
