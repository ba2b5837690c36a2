"""Tiny models with weights large enough that scores are not all near 0."""

import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
ONE_LAYER = SIZES | {"num_hidden_layers": 1}


@pytest.fixture(autouse=True, scope="package")
def _quiet() -> None:
    logging.set_verbosity_error()


@pytest.fixture
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, initializer_range=0.35)).eval()


@pytest.fixture
def bert() -> BertModel:
    torch.manual_seed(0)
    return BertModel(BertConfig(**SIZES, initializer_range=0.35)).eval()


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(3, 64, (2, 24), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def other() -> torch.Tensor:
    return torch.randint(3, 64, (1, 64), generator=torch.Generator().manual_seed(2))
