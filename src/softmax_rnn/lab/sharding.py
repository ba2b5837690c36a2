"""The sharded path: ``fully_shard`` on the model, and full state dicts in and out of it.

Accelerate's FSDP plugin becomes plain DDP on CPU without a word, so this is torch's own API. Checkpoints hold whole
tensors by name, whatever the number of processes and whether or not they were sharded: a run may change either between
two sessions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def shard(model: nn.Module) -> None:
    """Shard every decoder layer, then what is left, over all processes."""
    from ..models import SoftmaxRnnForCausalLM

    assert isinstance(model, SoftmaxRnnForCausalLM)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)


def whole_model_state(model: nn.Module) -> dict[str, Any]:
    """Every parameter, gathered on the first process. All processes must call it."""
    return get_model_state_dict(model, options=WHOLE)


def load_model_state(model: nn.Module, checkpoint: Path) -> None:
    """Each process takes its part of the whole tensors in the checkpoint."""
    whole: dict[str, Any] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        whole |= load_file(file)
    set_model_state_dict(model, whole, options=StateDictOptions(full_state_dict=True))


def whole_optimizer_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Moments by parameter name, gathered on the first process. All processes must call it."""
    return get_optimizer_state_dict(model, optimizer, options=WHOLE)


def load_optimizer_state(model: nn.Module, optimizer: Optimizer, file: Path) -> None:
    """The inverse of ``whole_optimizer_state``; each process takes its part."""
    state = torch.load(file, map_location="cpu", weights_only=True)
    set_optimizer_state_dict(model, optimizer, state, options=StateDictOptions(full_state_dict=True))


def whole(value: Any) -> Any:
    """A sharded number as a plain tensor; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value
