"""``inspect``: one pass over a text for the heads, then how good the model is with its series cut at one order after another.

loss      cross-entropy of the next token, nats, mean over tokens: for language models
cosine    between the last hidden states of the cut and the untouched model, mean over tokens: for encoders
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import UserError
from .heads import QUANTILES, best_center, head_statistics, mean_center, short, truncated
from .probe import Call, ladder, scoped
from .results import state_table

CENTRINGS = {
    "none": ("none",),
    "mean": ("none", "mean"),
    "best": ("none", "mean", "best"),
}  # what is asked for: what is compared
SHORTEST = 16  # tokens
MAX_ORDER = 128
CUT_AT = (0, 1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128)  # orders at which the whole model is measured
CLOSE = {"loss": 0.01, "cosine": 0.001}  # nats; 1 - cosine: what counts as the same model
SETTLED = {
    "loss": 5e-4,
    "cosine": 5e-5,
}  # this close at two orders one after the other, and higher orders are not tried

Tick = Callable[[str, int, int], None]  # what is done, how many steps of it, of how many


@dataclass(frozen=True)
class Inspection:
    """``summary`` is about the model and its layers, ``heads`` about each head; both are plain data, keyed by the centring."""

    summary: dict[str, Any]
    heads: dict[str, list[dict[str, Any]]]
    centers: dict[str, dict[int, Tensor]]


def inspect(
    model: PreTrainedModel,
    input_ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    orders: int = MAX_ORDER,
    tolerance: float = 0.01,
    center: str = "none",
    calibration_ids: Tensor | None = None,
    layer_orders: Sequence[int] = (2, 10, 32),
    layer_tokens: int = 256,
    tick: Tick | None = None,
) -> Inspection:
    """How many orders of the exponential's series a model uses on a text.

    Args:
        model: a Hugging Face model that ``patch`` knows, or one of ours; causal or bidirectional. It is left as it was.
        input_ids: (B, T). attention_mask: (B, T), 1 = a token, 0 = padding.
        orders: the highest order, up to 128.
        tolerance: how far a head's output may be from softmax's, |difference| / |output|, to count as equal.
        center: "none", "mean" (and none, to compare) or "best" (and both others): see ``heads.py``.
        calibration_ids: (B, T), other text, from which centers are made.
        layer_orders, layer_tokens: when one layer is cut at a time: at which orders, on how much of the text. () leaves it out.
        tick: called after each step, for a progress bar.

    >>> inspect(model, ids, center="mean", calibration_ids=other).summary["needed"]  # doctest: +SKIP
    """
    _check(input_ids, attention_mask, orders, tolerance, center, calibration_ids)
    tick = tick or (lambda what, done, total: None)
    centrings = CENTRINGS[center]
    centers = _calibrate(model, calibration_ids, centrings, tick)
    compared = ladder(orders)
    heads, shape = _heads(model, input_ids, attention_mask, compared, tolerance, centers, tick)

    quality = Quality(model, input_ids, attention_mask)
    layers = sorted({h["layer"] for h in heads["none"]})
    curves = {v: _curve(quality, layers, orders, c, tick, v) for v, c in centers.items()}
    few = slice(0, layer_tokens)
    one = Quality(model, input_ids[:, few], None if attention_mask is None else attention_mask[:, few])
    cut = [n for n in layer_orders if n <= orders]
    single = {v: _one_by_one(one, layers, cut, c, tick, v) for v, c in centers.items() if v != "mean"} if cut else {}

    needed = {v: _needed(heads[v], curves[v], quality) for v in centrings}
    worth = {n for v in needed.values() for n in (v["median"], v["model"]) if n is not None}
    summary = {
        **shape,
        "tokens": int(input_ids.numel() if attention_mask is None else attention_mask.sum()),
        "orders": compared,
        "quantiles": list(QUANTILES),
        "tolerance": tolerance,
        "metric": quality.metric,
        "untouched": round(quality.base, 5),
        "close": CLOSE[quality.metric],
        "all_layers": curves,
        "one_layer": {"tokens": int(one.ids.numel()), "untouched": round(one.base, 5), "orders": cut, **single},
        "needed": needed,
        "states": state_table(shape["head_dim"], shape["value_dim"], sorted(worth)),
    }
    return Inspection(summary, heads, {v: c for v, c in centers.items() if v != "none"})


def _check(
    ids: Tensor, mask: Tensor | None, orders: int, tolerance: float, center: str, calibration: Tensor | None
) -> None:
    if ids.ndim != 2 or ids.shape[1] < SHORTEST:
        raise UserError(f"The text is too short: {ids.shape[-1]} tokens, and at least {SHORTEST} are needed.")
    if mask is not None and mask.shape != ids.shape:
        raise UserError(f"attention_mask has shape {tuple(mask.shape)}, the tokens {tuple(ids.shape)}.")
    if not 1 <= orders <= MAX_ORDER:
        raise UserError(f"orders must be from 1 to {MAX_ORDER}, got {orders}.")
    if not 0 < tolerance < 1:
        raise UserError(f"tolerance must lie between 0 and 1, got {tolerance:g}.")
    if center not in CENTRINGS:
        raise UserError(f"center must be one of {', '.join(CENTRINGS)}, got {center!r}.")
    if center != "none" and (calibration is None or calibration.ndim != 2 or calibration.shape[1] < SHORTEST):
        raise UserError(f"Centring is calibrated on other text: give at least {SHORTEST} tokens of it.")


@contextlib.contextmanager
def _watching(model: PreTrainedModel, look: Callable[[Call], None]) -> Iterator[None]:
    def scope(call: Call) -> None:
        look(call)

    with torch.no_grad(), scoped(model, scope):
        yield


def can_center(call: Call) -> bool:
    """Does centring leave softmax, or whatever the layer computes, as it is?"""
    return call.mechanism.kernel.shiftable and call.mechanism.cancels_scale


def _calibrate(
    model: PreTrainedModel, ids: Tensor | None, centrings: Sequence[str], tick: Tick
) -> dict[str, dict[int, Tensor]]:
    centers: dict[str, dict[int, Tensor]] = {v: {} for v in centrings}
    if len(centrings) == 1:
        return centers
    assert ids is not None
    total = model.config.num_hidden_layers

    def look(call: Call) -> None:
        if not can_center(call):
            raise UserError(f"Centring would change what '{call.mechanism}' computes: leave it out.")
        for name in centrings[1:]:
            # One head is numbers that patch would round: measure with what will be saved.
            centers[name][call.layer] = (mean_center if name == "mean" else best_center)(call).float()
        tick("calibrating", call.layer + 1, total)

    with _watching(model, look):
        forward(model, ids, None)
    return centers


def _heads(
    model: PreTrainedModel,
    ids: Tensor,
    mask: Tensor | None,
    orders: list[int],
    tolerance: float,
    centers: dict[str, dict[int, Tensor]],
    tick: Tick,
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """The one pass over the text: the statistics of every head, and the model's shape."""
    found: dict[str, list[dict[str, Any]]] = {v: [] for v in centers}
    shape: dict[str, Any] = {}
    total = model.config.num_hidden_layers * len(centers)

    def look(call: Call) -> None:
        shape.update(
            model_type=model.config.model_type,
            mechanism=str(call.mechanism),
            causal=call.visible.causal,
            layers=model.config.num_hidden_layers,
            heads=call.heads,
            kv_heads=call.k.shape[1],
            head_dim=call.q.shape[-1],
            value_dim=call.v.shape[-1],
        )
        for i, (name, center) in enumerate(centers.items()):
            for head in range(call.heads):
                found_head = head_statistics(call, head, orders, tolerance, center.get(call.layer))
                if found_head is not None:
                    found[name].append({"layer": call.layer, "head": head, **found_head})
            tick("heads", call.layer * len(centers) + i + 1, total)

    with _watching(model, look):
        forward(model, ids, mask)
    if not found["none"]:
        raise UserError("No attention was reached: the model has no attention weights, or the text is all padding.")
    return found, shape


def _curve(
    quality: Quality, layers: list[int], top: int, centers: dict[int, Tensor], tick: Tick, name: str
) -> dict[str, Any]:
    """Loss or cosine against order, all layers cut together, until it has settled."""
    tried: list[int] = []
    values: list[float] = []
    wanted = sorted({n for n in CUT_AT if n <= top} | {top})
    limit = SETTLED[quality.metric]
    for i, n in enumerate(wanted):
        tried.append(n)
        values.append(round(quality.at(dict.fromkeys(layers, n), centers), 5))
        tick(f"all layers, {name}", i + 1, len(wanted))
        if len(values) > 1 and all(quality.distance(x) <= limit for x in values[-2:]):
            tick(f"all layers, {name}", len(wanted), len(wanted))
            break
    return {"orders": tried, "values": values}


def _one_by_one(
    quality: Quality, layers: list[int], cut: list[int], centers: dict[int, Tensor], tick: Tick, name: str
) -> list[dict[str, Any]]:
    found = []
    for i, layer in enumerate(layers):
        found.append({"layer": layer, "values": [round(quality.at({layer: n}, centers), 5) for n in cut]})
        tick(f"one layer, {name}", i + 1, len(layers))
    return found


def _needed(heads: list[dict[str, Any]], curve: dict[str, Any], quality: Quality) -> dict[str, Any]:
    """The orders that heads and the whole model need; heads that no order satisfies count as more than all others."""
    values = [h["needed_order"] for h in heads]
    ranked = sorted(float("inf") if n is None else n for n in values)
    median = statistics.median_low(ranked)
    model = None
    for n, x in zip(reversed(curve["orders"]), reversed(curve["values"]), strict=True):
        if not quality.distance(x) <= CLOSE[quality.metric]:
            break
        model = n
    return {
        "median": None if median == float("inf") else int(median),
        "largest": None if None in values else max(values),
        "unreached_heads": values.count(None),
        "share_within_10": short(sum(n is not None and n <= 10 for n in values) / len(values)),
        "model": model,
    }


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
                causal.append(call.visible.causal)
            if call.layer not in orders:
                return None
            return truncated(call, orders[call.layer], centers.get(call.layer))

        with scoped(self.model, scope):
            return forward(self.model, self.ids, self.mask, hidden=self.metric != "loss")

    def _measure(self, out: Any) -> float:
        keep = torch.ones_like(self.ids, dtype=torch.bool) if self.mask is None else self.mask.bool()
        if self.metric == "loss":
            target = self.ids[:, 1:].masked_fill(~(keep[:, 1:] & keep[:, :-1]), -100)
            # One text at a time: a copy of all logits would be the largest tensor.
            pairs = zip(out.logits, target, strict=True)
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
