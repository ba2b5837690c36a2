"""Checkpoints of the paper's own code: a Llama folder whose config.json carries ``attention_type``.

Their tensors have our names (ours are named after theirs), so loading is: resolve the type, drop the buffer ``abs_pos_enc``
that their code never uses, check that nothing is missing or left over. Two of their types do not compute what they are
named after:

    softmax_taylor_80terms  divides by the sum of weights, and then returns the undivided sum
    linear_cosine           normalises over the heads instead of the channels, and divides each value by the length at
                            its own position instead of each output by the length at the query's

``authors_bugs=True`` computes what their code computes, which is what such a checkpoint was trained with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache

from ..errors import MechanismError, UserError
from ..slots.denominators import Unnormalised
from ..slots.kernels import Linear, Taylor
from ..slots.mechanism import Mechanism
from ..slots.presets import AUTHORS
from .attention import SoftmaxRnnAttention
from .config import SoftmaxRnnConfig
from .folders import read_weights
from .llama import SoftmaxRnnForCausalLM

TYPES = {
    **AUTHORS,
    **{name: name for name in ("softmax", "linear_elu", "linear_relu", "linear_cosine", "softmax_taylor_80terms")},
}

WHY_NOT = {
    "gated_softmax_no_gate_customnorm": "its norm multiplies by the head size, an experiment that is not in the paper",
    "gated_softmax_cumgate": "its gate is a running sum over time, which no slot of a mechanism holds",
    "cumulative_gated_softmax": "its gate accumulates over time, which no slot of a mechanism holds",
    "gated_softmax_plusplus": "it has a convolution before the attention",
    "gated_softmax_plusplus_extratoks": "it has a convolution before the attention",
    "gated_softmax_plusplus_mamba": "it is a Mamba block",
    "gated_softmax_plusplus_mamba2": "it is a Mamba block",
    "gated_softmax_decay": "it has a decay between key and query in place of RoPE",
    "linear_mamba": "it is a Mamba block",
}


def load_authors(folder: str | Path, authors_bugs: bool = False) -> SoftmaxRnnForCausalLM:
    """A model from the authors' checkpoint format, on the CPU, in the precision it was saved in.

    Args:
        folder: with config.json and model.safetensors (or its shards, or pytorch_model.bin).
        authors_bugs: compute what their code computes where that differs from what it says (see above).

    >>> model = load_authors("llama_norm_300M")  # doctest: +SKIP
    """
    folder = Path(folder)
    fields = _read_config(folder)
    attention_type = fields.pop("attention_type", None)
    mechanism = _mechanism(attention_type, authors_bugs, folder)
    buggy = authors_bugs and attention_type == "linear_cosine"
    for name in ("architectures", "model_type", "auto_map", "_name_or_path", "use_cache"):
        fields.pop(name, None)
    fields["attention_dropout"] = 0.0  # their attention never applies it
    model = SoftmaxRnnForCausalLM(SoftmaxRnnConfig(**fields, mechanism=mechanism, authors_cosine=buggy))
    weights = {_name(key): value for key, value in read_weights(folder).items() if "abs_pos_enc" not in key}
    _load(model, weights, folder, attention_type)
    return model.eval()


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_text())
    except OSError:
        raise UserError(f"{folder} has no readable config.json, so it is not a checkpoint folder.") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path} does not hold a JSON object.")
    return fields


def _mechanism(attention_type: Any, authors_bugs: bool, folder: Path) -> str | Mechanism:
    if attention_type is None:
        raise UserError(
            f"{folder}/config.json has no attention_type, so it is not one of the authors' checkpoints: use load_model."
        )
    if attention_type in WHY_NOT:
        raise MechanismError(f"attention_type {attention_type!r} is not supported: {WHY_NOT[attention_type]}.")
    if attention_type not in TYPES:
        raise MechanismError(f"Unknown attention_type {attention_type!r}; known are {', '.join(sorted(TYPES))}.")
    if authors_bugs and attention_type == "softmax_taylor_80terms":
        return Mechanism(Taylor(79), Unnormalised())
    if authors_bugs and attention_type == "linear_cosine":
        return Mechanism(Linear("identity"), Unnormalised())
    return TYPES[attention_type]


def _name(key: str) -> str:
    """Their trainer saves some checkpoints with a wrapper's prefix."""
    for prefix in ("module.", "_orig_mod."):
        key = key.removeprefix(prefix)
    return key


def _load(model: SoftmaxRnnForCausalLM, weights: dict[str, Tensor], folder: Path, attention_type: str) -> None:
    wanted = model.state_dict()
    if model.config.tie_word_embeddings:
        weights.setdefault("lm_head.weight", weights.get("model.embed_tokens.weight", torch.empty(0)))
    missing, extra = (
        sorted(set(wanted) - set(weights)),
        sorted(k for k in set(weights) - set(wanted) if "rotary_emb" not in k),
    )
    if missing:
        raise UserError(
            f"{folder} lacks {len(missing)} tensors that {attention_type!r} needs, among them {missing[0]}."
        )
    if extra:
        raise UserError(
            f"{folder} has {len(extra)} tensors that {attention_type!r} does not use, among them {extra[0]}."
        )
    for key, value in wanted.items():
        if weights[key].shape != value.shape:
            raise UserError(
                f"{key} in {folder} has shape {tuple(weights[key].shape)}; config.json says {tuple(value.shape)}."
            )
    model.to(dtype=weights["model.norm.weight"].dtype)  # type: ignore[call-arg]
    model.load_state_dict({key: weights[key] for key in wanted})


class AuthorsCosine(SoftmaxRnnAttention):
    """As ``SoftmaxRnnAttention``, except for the defects of the authors' ``linear_cosine``: plain linear attention of

    q_h / |q over heads|,   k_h / |k over heads|,   v_s / s ** sigmoid(c)         with s the position of the key, from 1
    """

    def __init__(self, config: SoftmaxRnnConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.norm_const = torch.nn.Parameter(torch.full((1, config.num_attention_heads, 1, 1), 0.5))

    def options(self, hidden_states: Tensor) -> dict[str, Tensor | None]:
        """The exponent goes into the values, ``attention`` must not see it."""
        return {**super().options(hidden_states), "length_exponent": None}

    def adjust(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor, Tensor]:
        """The defects; padding counts as a position, as it does in their evaluation."""
        assert self.norm_const is not None
        seen = 0 if cache is None else cache.get_seq_length(self.layer_idx)
        position = (seen + torch.arange(1, v.shape[2] + 1, device=v.device)).to(v.dtype)[:, None]
        return F.normalize(q, dim=1), F.normalize(k, dim=1), v / position ** self.norm_const.sigmoid().to(v.dtype)
