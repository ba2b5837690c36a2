"""How good the model is with its series cut: the loss of a language model, or how close an encoder stays to itself.

loss      cross-entropy of the next token, nats, mean over tokens
cosine    between the last hidden states of the cut and the untouched encoder, mean over tokens
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from .probe import scoped
from .tiles import Call
from .truncate import truncated

ORDERS = (0, 1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128)
CLOSE = {"loss": 0.01, "cosine": 0.001}  # nats; 1 - cosine: what counts as the same model
SETTLED = {"loss": 5e-4, "cosine": 5e-5}  # twice this close in a row, and higher orders are not tried


class Quality:
    """Measures one text with one model."""

    def __init__(self, model: PreTrainedModel, ids: Tensor, mask: Tensor | None) -> None:
        self.model, self.ids, self.mask = model, ids, mask
        self.metric = ""  # until the first pass shows what the model puts out
        causal: list[bool] = []
        out = self._run({}, {}, causal)
        self.metric = "loss" if all(causal) and getattr(out, "logits", None) is not None else "cosine"
        self.untouched = None if self.metric == "loss" else _hidden(out)
        self.base = self._measure(out)

    def at(self, orders: Mapping[int, int], centers: Mapping[int, Tensor]) -> float:
        """With layer i cut at orders[i]; layers that are not named stay whole."""
        return self._measure(self._run(orders, centers))

    def distance(self, value: float) -> float:
        """How far a measurement is from the untouched model's; never negative for a cosine."""
        return abs(value - self.base)

    @torch.no_grad()
    def _run(self, orders: Mapping[int, int], centers: Mapping[int, Tensor], causal: list[bool] | None = None) -> Any:
        def scope(call: Call) -> Tensor | None:
            if causal is not None:
                causal.append(call.see.causal)
            if call.layer not in orders:
                return None
            return truncated(call, orders[call.layer], centers.get(call.layer))

        with scoped(self.model, scope):
            return forward(self.model, self.ids, self.mask, hidden=self.metric != "loss")

    def _measure(self, out: Any) -> float:
        keep = torch.ones_like(self.ids, dtype=torch.bool) if self.mask is None else self.mask.bool()
        if self.metric == "loss":
            target = self.ids[:, 1:].masked_fill(~(keep[:, 1:] & keep[:, :-1]), -100)
            pairs = zip(
                out.logits, target, strict=True
            )  # one text at a time: a copy of all logits would be the largest tensor
            total = sum(F.cross_entropy(x[:-1].float(), y, reduction="sum").item() for x, y in pairs)
            return total / max(1, int((target != -100).sum()))
        assert self.untouched is not None
        return F.cosine_similarity(_hidden(out).double(), self.untouched.double(), dim=-1)[keep].mean().item()


def forward(model: PreTrainedModel, ids: Tensor, mask: Tensor | None, hidden: bool = False) -> Any:
    """One pass without a cache; encoders do not know the argument."""
    options: dict[str, Any] = {"use_cache": False} if hasattr(model.config, "use_cache") else {}
    return model(input_ids=ids, attention_mask=mask, output_hidden_states=hidden, **options)


def _hidden(out: Any) -> Tensor:
    last = getattr(out, "last_hidden_state", None)
    return out.hidden_states[-1] if last is None else last
