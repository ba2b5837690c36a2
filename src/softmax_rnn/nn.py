"""Attention as a module: projections, and whatever tensors the mechanism's slots want, made from the input or learned.

    layer = Attention(64, heads=4, mechanism="taylor2_decay")          # x (B, T, 64) -> (B, T, 64), causal
    out, state = layer(x, return_state=True)                           # and on from there: layer(more, state=state)

``add_inputs`` and ``make_inputs`` do the same for a layer of your own: one reads the mechanism's declarations (``Mechanism.inputs``) and
makes the parameters, the other makes the tensors of a call from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .api import attention
from .context import number_documents
from .errors import MechanismError
from .slots import Input
from .slots.mechanism import Mechanism
from .slots.presets import mechanism as resolve
from .state import State


def add_inputs(
    layer: nn.Module, m: Mechanism, dim: int, heads: int, kv_heads: int, head_dim: int, key_dim: int | None = None
) -> None:
    """Give a layer what the mechanism's slots declare: a projection of its ``dim`` channels for what changes with the token, a parameter
    for the rest. Decay per head is fixed, as in RetNet: 1 - 2^(-5-h). ``key_dim`` is for keys that are not as wide as values.
    """
    sizes = {"H": heads, "Hkv": kv_heads, "D": key_dim or head_dim, "E": head_dim}
    for x in m.inputs:
        width = [sizes[s] for s in x.sizes if s in sizes]
        if x.rate is not None:
            setattr(layer, x.rate, nn.Parameter(torch.zeros(kv_heads)))
        if x.per_token:
            value: nn.Module | nn.Parameter = nn.Linear(dim, math.prod(width))
        elif x.name == "log_decay":
            layer.register_buffer(x.in_layer, fixed_decay(kv_heads), persistent=False)
            continue
        else:
            shape = (1, *width, 1, 1) if x.sizes == ("H",) else tuple(width)
            value = nn.Parameter(torch.full(shape, x.start))
        parent, _, name = x.in_layer.rpartition(".")
        if not parent:
            setattr(layer, name, value)
            continue
        if not hasattr(layer, parent):
            setattr(layer, parent, nn.ParameterDict())
        getattr(layer, parent)[name] = value
    start_inputs(layer, m)


def fixed_decay(heads: int) -> Tensor:
    """log(1 - 2^(-5-h)) for each head."""
    return torch.log1p(-(2.0 ** (-5.0 - torch.arange(heads, dtype=torch.float32))))


def mamba2_start(heads: int, width: int) -> tuple[Tensor, Tensor]:
    """Where Mamba-2's decay begins, spread over the heads: biases (width,) whose softplus is 0.001 to 0.1, rates A = log 1 to log 16.

    So the first head forgets a thousandth with every token, and the last nearly everything within one.
    """
    steps = torch.logspace(-3, -1, heads) if heads > 1 else torch.tensor([0.01])
    rates = torch.linspace(1, 16, heads) if heads > 1 else torch.tensor([4.0])
    return torch.expm1(steps).log().repeat_interleave(width // heads), rates.log()


def starts(layer: nn.Module, x: Input, norm_scale: float = 1.0) -> list[tuple[Tensor, Tensor]]:
    """The tensors that ``add_inputs`` made for a declared one, each with where it starts; a projection's weight is left as it is."""
    found = find_input(layer, x)
    if isinstance(found, nn.Linear) and x.rate is not None:
        rate = getattr(layer, x.rate)
        return list(zip((found.bias, rate), mamba2_start(len(rate), len(found.bias)), strict=True))
    if isinstance(found, nn.Linear):
        return [(found.bias, torch.full(found.bias.shape, x.start))]
    if not isinstance(found, nn.Parameter):
        return [(found, fixed_decay(len(found)))]
    return [(found, torch.full(found.shape, x.start * (norm_scale if x.name == "norm_weight" else 1.0)))]


def start_inputs(layer: nn.Module, m: Mechanism, norm_scale: float = 1.0) -> None:
    """Set what ``add_inputs`` made to where it starts: parameters and the biases of projections."""
    with torch.no_grad():
        for x in m.inputs:
            for tensor, value in starts(layer, x, norm_scale):
                tensor.copy_(value)


def find_input(layer: nn.Module, x: Input) -> nn.Linear | Tensor:
    """The parameter or projection that stands for a declared tensor."""
    found: Any = layer
    for name in x.in_layer.split("."):
        found = found[name] if isinstance(found, nn.ParameterDict) else getattr(found, name)
    return cast("nn.Linear | Tensor", found)


def make_inputs(layer: nn.Module, m: Mechanism, hidden: Tensor, heads: int, kv_heads: int) -> dict[str, Tensor]:
    """The tensors of one call, from the layer's input (B, T, dim)."""
    sizes = {"H": heads, "Hkv": kv_heads}
    tensors = {x.name: _make(find_input(layer, x), x, hidden, sizes) for x in m.inputs}
    rates = {x.name: getattr(layer, x.rate) for x in m.inputs if x.rate is not None}
    for name, rate in rates.items():
        tensors[name] = tensors[name] * -rate.exp().reshape(-1, *[1] * (tensors[name].ndim - 2))
    return tensors


def _make(found: nn.Linear | Tensor, x: Input, hidden: Tensor, heads: dict[str, int]) -> Tensor:
    if isinstance(found, Tensor):
        return found.flatten() if x.sizes == ("H",) else found
    y = found(hidden)
    y = {
        None: lambda y: y,
        "sigmoid": torch.sigmoid,
        "twice_sigmoid": lambda y: 2 * torch.sigmoid(y),
        "log_sigmoid": F.logsigmoid,
        "softplus": F.softplus,
    }[x.activation](y)
    if len(x.sizes) == 3:  # (B, heads, T)
        return y.mT
    return y.unflatten(-1, (heads[x.sizes[1]], -1)).transpose(1, 2)  # (B, heads, T, channels)


@dataclass(frozen=True, eq=False)
class LayerState(State):
    """What a layer remembers: the state of its attention, and the last inputs of its convolution, if it has one."""

    attention: State
    tail: Tensor | None

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.attention.batch


def layer_state(state: State, tail: Tensor | None) -> LayerState:
    """The two together."""
    return LayerState(state.mechanism, None, None, state.tokens, state, tail)


class ShortConv(nn.Module):
    """A causal depthwise convolution of a few tokens, y_t = sum_j w_j x_{t-j}, that starts as the identity.

    It does not reach over padding, nor from one packed document into another; its last inputs are its state.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.weight = nn.Parameter(torch.zeros(width, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The identity."""
        with torch.no_grad():
            self.weight.zero_()
            self.weight[0] = 1.0

    def forward(
        self,
        x: Tensor,
        tail: Tensor | None = None,
        keep: Tensor | None = None,
        documents: Tensor | None = None,
        last: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, channels) -> the same shape, and the tail (B, width - 1, channels) to go on from.

        ``last`` (B,) is the segment id of the token before the first, to which all of the tail belongs.
        """
        x = x if keep is None else x.masked_fill(~keep[..., None], 0.0)  # not times 0: there may be NaN
        if tail is None:
            tail = x.new_zeros(len(x), self.width - 1, x.shape[-1])
        T, all_ = x.shape[1], torch.cat([tail, x], 1)
        # By their numbers in order: an id may come back in a later document. 0 is that of the tail.
        number = None if documents is None else F.pad(number_documents(documents, last), (self.width - 1, 0))
        out = x * self.weight[0]
        for j in range(1, self.width):
            reach = slice(self.width - 1 - j, self.width - 1 - j + T)
            past = all_[:, reach]
            if number is not None:
                past = past.masked_fill((number[:, reach] != number[:, self.width - 1 :])[..., None], 0.0)
            out = out + past * self.weight[j]
        if number is not None:
            all_ = all_.masked_fill((number != number[:, -1:])[..., None], 0.0)
        return out, all_[:, all_.shape[1] - self.width + 1 :]


class Attention(nn.Module):
    """Multi-head attention by any mechanism. **Causal unless you say otherwise.**

    Args:
        dim: channels of the input and of the output.
        heads: query heads; ``dim`` must be a multiple.
        mechanism: a name or a ``Mechanism``; its gates, decay, sinks and norm weights become parts of this module.
        kv_heads: key and value heads (GQA); as many as query heads if not given.
        causal: whether a token sees only those before it.
        rope: turn queries and keys by their position (rotary embeddings) with this base, or None.
        conv: width of a causal depthwise convolution on queries, keys and values; 0 has none.
        bias: of the four projections.

    >>> import torch
    >>> layer = Attention(32, heads=4, mechanism="norm", rope=10_000.0)
    >>> layer(torch.randn(2, 7, 32)).shape
    torch.Size([2, 7, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        mechanism: str | Mechanism = "softmax",
        kv_heads: int | None = None,
        *,
        causal: bool = True,
        rope: float | None = None,
        conv: int = 0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or dim % heads or kv_heads < 1 or heads % kv_heads:
            raise MechanismError(
                f"dim {dim} must be a multiple of the {heads} heads, and those of the {kv_heads} kv heads."
            )
        self.mechanism, self.heads, self.kv_heads, self.head_dim = resolve(mechanism), heads, kv_heads, dim // heads
        if rope is not None and self.head_dim % 2:
            raise MechanismError(f"rope turns pairs of channels: the head size must be even, got {self.head_dim}.")
        if conv < 0 or (conv and not causal):
            raise MechanismError("conv must be 0 or the width of a convolution, and looks back: it needs causal=True.")
        self.causal, self.rope = causal, rope
        self.q_proj = nn.Linear(dim, dim, bias)
        self.k_proj = nn.Linear(dim, kv_heads * self.head_dim, bias)
        self.v_proj = nn.Linear(dim, kv_heads * self.head_dim, bias)
        self.o_proj = nn.Linear(dim, dim, bias)
        self.conv = ShortConv(dim + 2 * kv_heads * self.head_dim, conv) if conv else None
        add_inputs(self, self.mechanism, dim, heads, kv_heads, self.head_dim)

    def forward(
        self,
        x: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        state: LayerState | None = None,
        return_state: bool = False,
        **options: Any,
    ) -> Any:
        """x (B, T, dim) -> (B, T, dim), or with ``return_state`` also the state to go on from. Other options go to ``attention``.

        ``key_padding_mask``: True = keep, the opposite of ``nn.MultiheadAttention``.
        """
        qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)
        tail = None
        if self.conv is not None:
            before, last = (None, None) if state is None else (state.tail, state.attention.segment)
            qkv, tail = self.conv(qkv, before, key_padding_mask, segment_ids, last)
        q, k, v = qkv.split([self.o_proj.in_features, *[self.kv_heads * self.head_dim] * 2], -1)
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for y in (q, k, v))
        if self.rope is not None:
            first = 0 if state is None else state.tokens
            q, k = (rotate(y, first, self.rope) for y in (q, k))
        found: Any = attention(  # type: ignore[call-overload]
            q,
            k,
            v,
            self.mechanism,
            causal=self.causal,
            key_padding_mask=key_padding_mask,
            segment_ids=segment_ids,
            state=None if state is None else state.attention,
            return_state=return_state,
            **make_inputs(self, self.mechanism, x, self.heads, self.kv_heads),
            **options,
        )
        out, after = found if return_state else (found, None)
        out = self.o_proj(out.transpose(1, 2).flatten(2))
        return (out, layer_state(cast(State, after), tail)) if return_state else out


def rotate(x: Tensor, first: int, base: float) -> Tensor:
    """Rotary embeddings: pairs of channels of x (B, H, T, d), i and i + d/2, turned by angles that grow with the position."""
    d = x.shape[-1]
    rates = base ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d)
    angle = torch.outer(torch.arange(first, first + x.shape[2], device=x.device, dtype=torch.float32), rates)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
