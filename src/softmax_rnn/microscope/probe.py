"""A layer's attention under the microscope: reach it, cut it into tiles of queries, answer in its place with the series cut.

    x_ts = scale * phi(q_t) . psi(k_s - c)        min(x, limit) where the kernel has a clamp

Others' models go through transformers' table of attention functions, as ``patch`` does (which also says which families it knows); ours
have the mechanism in the layer. Either way a layer's ``scope``, a function Call -> output or None, is asked first. Scores are made for
a tile of queries at a time, so that nothing of size T x T is ever held.

The series is summed over a tile of scores in float64, at any size of score:

    t_n = x^n / n!        w_n = t_0 + ... + t_n        for n = 0 .. N, where a key is seen; 0 where not

Two things go wrong if this is done as it reads, and real models meet both:

1. t_n overflows. So each query is divided by its largest term exp(shift), and where even that ratio leaves the range of
   float64, the terms are made from logarithms.
2. For x < 0 the terms alternate, and w_n is lost in their rounding (x = -60: terms of 1e24, a sum of 1e-26). Up to n = |x| the
   last term leads and nothing is lost; from there on the sum is taken from the other end,

       w_n = exp(x) - t_{n+1} M        M = 1F1(1; n+2; x) = 1 / (1 + c_1 y / (1 - c_2 y / (1 + c_3 y / ...)))        y = -x

   with the coefficients of Gauss's continued fraction, which converges at once for n >= y.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from .. import Exp, Mechanism, MechanismError, Near, UserError, mechanism
from ..context import Context
from ..models import masks
from ..models.attention import SoftmaxRnnAttention
from ..models.patching import ORIGINAL, patch, patched_attention, reads_causally, unpatch

NAME = "softmax_rnn_microscope"
SCOPE = "softmax_rnn_scope"  # attribute on attention modules: (layer, function)
CELLS = 1 << 16  # scores in a tile: half a megabyte in float64, so that a few such tiles stay in the processor's cache
DEEP = -16.0  # below this score, plain float64 sums are off by more than 1e-10
DEPTH = 14  # of the continued fraction: relative error below 1e-9 for y >= 16, n >= y
SAFE = 600.0  # exp(-SAFE) is far from the end of float64
NEGLIGIBLE = 45.0  # exp(-45) = 3e-20 of a query's sum of weights


@dataclass(frozen=True)
class Call:
    """One call of one layer's attention: q (B, H, T, D), k and v (B, Hkv, T, ...), and who sees whom."""

    layer: int
    q: Tensor
    k: Tensor
    v: Tensor
    mechanism: Mechanism
    scale: float
    visible: Context
    options: dict[str, Any]  # gates, norm weights and the length exponent, where the mechanism has them

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.q.shape[1]

    def kv_head(self, head: int) -> int:
        """The head of keys and values that a query head reads."""
        return head // (self.heads // self.k.shape[1])

    def queries(self, head: int) -> Tensor:
        """Mapped and scaled, (B, T, D), float64."""
        return self.mechanism.kernel.map_vectors(self.q[:, head].double(), self._positions(self.q)) * self.scale

    def keys(self, kv_head: int, center: Tensor | None) -> Tensor:
        """Centred and mapped, (B, T, D), float64; ``center`` is (Hkv, D)."""
        k = self.k[:, kv_head].double()
        k = k if center is None else k - center[kv_head].double()
        return self.mechanism.kernel.map_vectors(k, self._positions(self.k))

    def _positions(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[2], device=x.device)


class Tile(NamedTuple):
    """Some queries of one head and the keys that any of them sees."""

    batch: int
    queries: slice
    x: Tensor  # (queries, keys) scores, 0 where not seen
    seen: Tensor  # (queries, keys)
    v: Tensor  # (keys, E)


def tiles(call: Call, head: int, center: Tensor | None = None, first: int = 0) -> Iterator[Tile]:
    """The tiles of one head, from query ``first`` on; queries that are padding see nothing."""
    lo, hi = call.visible.bounds()
    q, k = call.queries(head), call.keys(call.kv_head(head), center)
    v = call.v[:, call.kv_head(head)].double()
    limit, keep = call.mechanism.kernel.limit, call.visible.keep
    step = max(1, CELLS // k.shape[1])
    for b in range(len(q)):
        low, high = lo[min(b, len(lo) - 1)], hi[min(b, len(hi) - 1)]
        for start in range(first, q.shape[1], step):
            some = slice(start, min(start + step, q.shape[1]))
            keys = int(high[some].max())
            index = torch.arange(keys)
            seen = (index >= low[some, None]) & (index < high[some, None])
            if keep is not None:
                seen &= keep[b, :keys] & keep[b, some, None]
            x = q[b, some] @ k[b, :keys].T
            x = x if limit is None else x.clamp_(max=limit)
            yield Tile(b, some, x.masked_fill_(~seen, 0.0), seen, v[b, :keys])


# The series.


class Step(NamedTuple):
    """Order n of a tile: its terms and, at the orders asked for, the sum so far; both (queries, keys), times exp(-shift)."""

    order: int
    term: Tensor
    weights: Tensor | None


def ladder(top: int) -> list[int]:
    """The orders at which outputs are compared: every one up to 12, then in steps of about a tenth to a sixth.

    >>> ladder(24)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 24]
    """
    steps = [*range(13), *range(14, 33, 2), *range(36, 65, 4), *range(72, 129, 8)]
    return sorted({n for n in steps if n <= top} | {top})


def largest_term(size: Tensor, top: int) -> Tensor:
    """log of the largest |x|^n / n! for n <= top, at |x| = size; at least 0, which is n = 0."""
    n = size.floor().clamp(0, top)
    return torch.xlogy(n, size) - torch.lgamma(n + 1)


def last_useful(size: float, smallest_sum: float, top: int) -> int:
    """The order after which all terms together are negligible against exp(smallest_sum), or ``top``."""
    for n in range(min(top, math.ceil(2 * size)), top):
        if (n + 1) * math.log(max(size, 1e-300)) - math.lgamma(n + 2) < smallest_sum - NEGLIGIBLE:
            return n
    return top


def partial_sums(x: Tensor, seen: Tensor, shift: Tensor, orders: Sequence[int], last: int) -> Iterator[Step]:
    """Orders 0 .. last of a tile x (queries, keys), ``seen`` bool, shift (queries, 1). The tensors are overwritten by the next step.

    >>> x = torch.tensor([[-60.0, 1.0]], dtype=torch.float64)
    >>> steps = partial_sums(x, x == x, largest_term(x.abs().amax(1, keepdim=True), 128), [128], 128)
    >>> len([step.order for step in steps])
    129
    """
    wanted = set(orders)
    logs = x.abs().log() if shift.numel() and shift.max().item() > SAFE else None
    term = seen * torch.exp(-shift)
    total = term.clone()
    zero = x.new_zeros(())
    deep = torch.nonzero(((x < DEEP) & seen).flatten()).squeeze(1)
    depth = x.flatten()[deep].neg()
    floor = torch.exp((x - shift).flatten()[deep])
    for n in range(last + 1):
        if n and logs is None:
            torch.addcmul(zero, term, x, value=1 / n, out=term)
        elif n:
            assert logs is not None
            term = torch.exp(n * logs - math.lgamma(n + 1) - shift) * seen * (x.sign() if n % 2 else 1.0)
        if n:
            total.add_(term)
        if n in wanted and len(deep):
            _from_the_other_end(n, total, term, deep, depth, floor)
        yield Step(n, term, total if n in wanted else None)


def _from_the_other_end(n: int, total: Tensor, term: Tensor, deep: Tensor, depth: Tensor, floor: Tensor) -> None:
    """Put exp(x) - t_{n+1} M where x is far below 0 and n past its size; t_{n+1} = -t_n y / (n + 1)."""
    past = depth <= n
    index, y = deep[past], depth[past]
    following = term.flatten()[index] * y / -(n + 1)
    total.view(-1)[index] = floor[past] - following * tail_ratio(n, y)


def tail_ratio(n: int, y: Tensor) -> Tensor:
    """M = sum_{k > n} t_k / t_{n+1} at x = -y, for n >= y."""
    b = n + 1
    out = torch.ones_like(y)
    for i in range(DEPTH, 0, -1):
        j = (i + 1) // 2
        top = b + j - 1 if i % 2 else -j
        out = 1 + (top / ((b + i - 1) * (b + i))) * y / out
    return 1 / out


# Reaching a layer.

Scope = Callable[[Call], Tensor | None]


@contextlib.contextmanager
def scoped(model: PreTrainedModel, scope: Scope) -> Iterator[None]:
    """While it lasts, every attention layer asks ``scope`` first; None as an answer means: as always."""
    if not isinstance(model, PreTrainedModel):
        raise UserError(f"inspect takes a Hugging Face model, got {type(model).__name__}.")
    if hasattr(model, ORIGINAL):
        raise UserError(
            "This model is patched, and inspect looks at a model's own attention: unpatch it first (in a saved folder: "
            "remove 'softmax_rnn' from its config.json)."
        )
    training = model.training
    model.eval()
    try:
        with _ours(model, scope) if model.config.model_type == "softmax_rnn" else _theirs(model, scope):
            yield
    finally:
        model.train(training)


def _refuse(what: str) -> NoReturn:
    raise UserError(f"inspect cannot look inside this model: its attention {what}, and scores alone do not explain it.")


def _check_scores(m: Mechanism) -> None:
    """Refuse attention whose weights are not a function of plain scores: what the microscope shows would not be that attention."""
    beyond = {
        "decays": m.decay is not None,
        "uses the delta rule": m.update == "delta",
        "has exact weights near and a series far": isinstance(m.kernel, Near),
        "caps its scores": isinstance(m.kernel, Exp) and m.kernel.softcap is not None,
        "has a sink": "sink" in m.parameters,
        "learns the scale of its scores": bool(m.kernel.inputs),
    }
    for what, there in beyond.items():
        if there:
            _refuse(what)


@contextlib.contextmanager
def _theirs(model: PreTrainedModel, scope: Scope) -> Iterator[None]:
    try:
        patch(model, "softmax")
    except MechanismError as error:
        raise UserError(f"Cannot look inside this model: {error}") from None
    modules = [m for m in model.modules() if hasattr(m, "softmax_rnn_swap")]
    try:
        model.config._attn_implementation = NAME
        for index, module in enumerate(modules):
            layer = getattr(module, "layer_idx", None)
            setattr(module, SCOPE, (index if layer is None else layer, scope))
        yield
    finally:
        for module in modules:
            delattr(module, SCOPE)
        unpatch(model)


@contextlib.contextmanager
def _ours(model: PreTrainedModel, scope: Scope) -> Iterator[None]:
    modules: list[Any] = [m for m in model.modules() if isinstance(m, SoftmaxRnnAttention)]
    for module in modules:
        _check_scores(module.computed)
    for module in modules:
        module.attend = _answer(module, module.attend, scope)
    try:
        yield
    finally:
        for module in modules:
            del module.attend  # the class's own shows again


def _answer(module: SoftmaxRnnAttention, own: Callable[..., Tensor], scope: Scope) -> Callable[..., Tensor]:
    def attend(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        key_padding_mask: Tensor | None,
        segment_ids: Tensor | None,
        **options: Any,
    ) -> Tensor:
        m = module.computed
        visible = Context(q.shape[2], k.shape[2], causal, q.device, key_padding_mask, segment_ids)
        out = scope(Call(int(module.layer_idx), q, k, v, m, m.kernel.scale(q.shape[-1]), visible, options))
        masked = {"key_padding_mask": key_padding_mask, "segment_ids": segment_ids}
        return own(q, k, v, causal=causal, **masked, **options) if out is None else out

    return attend


def _visibility(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, window: int | None) -> Context:
    read = masks.read(mask)  # documents are numbered in ascending order there
    return Context(
        q.shape[2], k.shape[2], causal, q.device, read.keep, read.documents, window if read.windowed else None
    )


def scoped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """transformers' attention function while a model is ``scoped``."""
    layer, scope = getattr(module, SCOPE)
    scaling = kwargs.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    for name, what in (("softcap", "caps its scores"), ("s_aux", "has a sink")):
        if kwargs.get(name) is not None:
            _refuse(what)
    visible = _visibility(
        query, key, attention_mask, reads_causally(module, kwargs.get("is_causal")), kwargs.get("sliding_window")
    )
    out = scope(Call(layer, query, key, value, mechanism("softmax"), scale, visible, {}))
    if out is not None:
        return out.transpose(1, 2), None
    return patched_attention(module, query, key, value, attention_mask, **kwargs)


AttentionInterface.register(NAME, scoped_attention)
AttentionMaskInterface.register(NAME, masks.mask)
