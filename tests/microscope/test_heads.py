"""Statistics of heads against a dense computation that shares no code with them: projections, RoPE and sums written out."""

import math
import resource
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import softmax_rnn as sr
from softmax_rnn.context import Context
from softmax_rnn.microscope import probe
from softmax_rnn.microscope.heads import QUANTILES, head_statistics, truncated
from softmax_rnn.microscope.inspection import inspect
from softmax_rnn.microscope.probe import Call


def llama_layers(model: Any, ids: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """q, k and v of every layer, from the hidden states, each with all heads."""
    hidden = model(ids, output_hidden_states=True).hidden_states
    rope = model.model.rotary_emb(hidden[0], torch.arange(ids.shape[1])[None])
    found = []
    for layer, h in zip(model.model.layers, hidden, strict=False):
        a = layer.self_attn
        q, k, v = (
            p(layer.input_layernorm(h)).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (a.q_proj, a.k_proj, a.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *rope)
        found.append((q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)))
    return found


def bert_layers(model: Any, ids: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    hidden = model(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    found = []
    for layer, h in zip(model.encoder.layer, hidden, strict=False):
        a = layer.attention.self
        q, k, v = (p(h).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (a.query, a.key, a.value))
        found.append((q, k, v))
    return found


def dense(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, orders: list[int]) -> dict[str, Any]:
    """One head, (B, T, D) each, seen (B, T, T): everything at once."""
    q, k, v = q.double(), k.double(), v.double()
    x = q @ k.mT / math.sqrt(q.shape[-1])
    p = x.masked_fill(~seen, -1e30).softmax(-1)
    rows = seen.any(-1)
    out = (p @ v)[rows]
    terms = [(x.abs() ** n / float(math.factorial(n)))[seen].mean() for n in range(orders[-1] + 1)]
    found: dict[str, Any] = {
        "low": x[seen].min(),
        "high": x[seen].max(),
        "x": x[seen],
        "terms": torch.stack(terms).log10(),
        "entropy": -(p * p.clamp(min=1e-300).log()).sum(-1)[rows].mean(),
        "error": [],
        "share": [],
    }
    z = (x.exp() * seen).sum(-1, keepdim=True)
    for n in orders:
        w = sum(x**i / float(math.factorial(i)) for i in range(n + 1)) * seen
        cut = (w @ v / w.sum(-1, keepdim=True))[rows]
        found["error"].append(((cut - out).norm() / out.norm()).item())
        found["share"].append((((w @ v / z)[rows] * out).sum() / out.square().sum()).item())
    return found


def compare(row: dict[str, Any], want: dict[str, Any], tolerance: float, orders: list[int]) -> None:
    assert row["low"] == pytest.approx(want["low"].item(), rel=1e-3, abs=1e-4)
    assert row["high"] == pytest.approx(want["high"].item(), rel=1e-3, abs=1e-4)
    bin_width = (row["high"] - row["low"]) / 2048
    for level, value in zip(QUANTILES, row["quantiles"], strict=True):
        # One bin on either side, and what four digits leave.
        near = want["x"].sort().values[math.ceil(level * len(want["x"])) - 1].item()
        assert value == pytest.approx(near, abs=1.5 * bin_width + 1e-3 * max(1, abs(near)))
    got = torch.tensor(row["log10_terms"], dtype=torch.float64)
    torch.testing.assert_close(got, want["terms"][: len(got)], atol=0.006, rtol=0)
    assert row["dominant_order"] == int(want["terms"].argmax())
    assert row["entropy"] == pytest.approx(want["entropy"].item(), rel=1e-3)
    # Errors below 1e-6 are rounding of the model's float32, not of the series.
    assert row["error"] == pytest.approx(want["error"], rel=2e-3, abs=2e-6)
    assert row["share"] == pytest.approx(want["share"], rel=2e-3, abs=2e-6)
    late = [n for i, n in enumerate(orders) if all(e <= tolerance for e in want["error"][i:])]
    assert row["needed_order"] == (late[0] if late else None)


@torch.no_grad()
def test_a_gqa_decoder(llama: Any, ids: Tensor) -> None:
    found = inspect(llama, ids, orders=40, tolerance=0.01, layer_orders=())
    orders = found.summary["orders"]
    seen = torch.ones(24, 24, dtype=torch.bool).tril().expand(2, -1, -1)
    want = [dense(q[:, h], k[:, h], v[:, h], seen, orders) for q, k, v in llama_layers(llama, ids) for h in range(4)]
    assert [(r["layer"], r["head"]) for r in found.heads["none"]] == [(i, h) for i in range(2) for h in range(4)]
    for row, w in zip(found.heads["none"], want, strict=True):
        compare(row, w, 0.01, orders)


@torch.no_grad()
def test_an_encoder_with_padding(bert: Any, ids: Tensor) -> None:
    mask = torch.ones_like(ids)
    mask[1, 17:] = 0
    found = inspect(bert, ids, attention_mask=mask, orders=40, tolerance=0.01, layer_orders=())
    orders = found.summary["orders"]
    keep = mask.bool()
    seen = keep[:, None] & keep[:, :, None]
    want = [
        dense(q[:, h], k[:, h], v[:, h], seen, orders) for q, k, v in bert_layers(bert, ids, mask) for h in range(4)
    ]
    for row, w in zip(found.heads["none"], want, strict=True):
        compare(row, w, 0.01, orders)


def call(
    t: int, mechanism: str = "softmax", causal: bool = True, heads: int = 4, kv_heads: int = 2, **options: Any
) -> Call:
    q = torch.randn(1, heads, t, 8, dtype=torch.float64) * 2
    k, v = torch.randn(2, 1, kv_heads, t, 8, dtype=torch.float64).unbind()
    m = sr.mechanism(mechanism)
    see = Context(t, t, causal, torch.device("cpu"))
    return Call(0, q, k, v, m, m.kernel.scale(8), see, options)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("order", [0, 2, 5, 12])
def test_the_summed_terms_are_the_taylor_output(order: int, causal: bool) -> None:
    c = call(19, causal=causal)
    want = sr.attention(c.q, c.k, c.v, sr.Mechanism(sr.Taylor(order), sr.Sum(), allow_signed=True), causal=causal)
    torch.testing.assert_close(truncated(c, order), want, rtol=1e-9, atol=1e-9)
    terms = sr.taylor_terms(c.q, c.k, c.v, order, causal=causal).sum(0)
    bare = sr.attention(c.q, c.k, c.v, sr.Mechanism(sr.Taylor(order), sr.Unnormalised()), causal=causal)
    torch.testing.assert_close(terms, bare)


@pytest.mark.parametrize(
    ("name", "series"), [("norm", "taylor6_norm"), ("linear_elu", "elu6"), ("linear_relu", "relu6")]
)
def test_cutting_keeps_the_rest_of_the_mechanism(name: str, series: str) -> None:
    c = call(19, name)
    want = sr.attention(c.q, c.k, c.v, series)
    torch.testing.assert_close(truncated(c, 6), want, rtol=1e-7, atol=1e-7)


def test_cutting_keeps_gates_clamp_and_length() -> None:
    gate = torch.rand(1, 4, 19, dtype=torch.float64)
    c = call(19, "gate", output_gate=gate)
    clamped = sr.Linear("identity", order=6, scaled=True, clamp=5)
    want = sr.attention(c.q, c.k, c.v, sr.Mechanism(clamped, sr.Length(), output_gate="before_norm"), output_gate=gate)
    torch.testing.assert_close(truncated(c, 6), want, rtol=1e-9, atol=1e-9)


def test_a_high_order_is_softmax() -> None:
    c = call(33)
    torch.testing.assert_close(truncated(c, 128), sr.attention(c.q, c.k, c.v), rtol=1e-9, atol=1e-9)


def test_packed_documents_do_not_see_one_another() -> None:
    c = call(20)
    segments = torch.tensor([[0] * 9 + [1] * 11])
    see = Context(20, 20, True, torch.device("cpu"), None, segments)
    packed = truncated(Call(0, c.q, c.k, c.v, c.mechanism, c.scale, see, {}), 4)
    want = sr.attention(c.q, c.k, c.v, "taylor4", segment_ids=segments)
    torch.testing.assert_close(packed, want, rtol=1e-9, atol=1e-9)


def test_tiles_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    c = call(50)
    whole = head_statistics(c, 1, [0, 1, 2, 8, 20], 0.01)
    monkeypatch.setattr(probe, "CELLS", 150)  # three queries at a time
    parts = head_statistics(c, 1, [0, 1, 2, 8, 20], 0.01)
    assert whole is not None
    assert parts is not None
    for key, value in whole.items():
        assert parts[key] == pytest.approx(value, rel=2e-3, abs=1e-12), key


def test_memory_does_not_grow_with_the_square_of_the_text() -> None:
    c = call(6000, heads=1, kv_heads=1)
    head_statistics(call(64, heads=1, kv_heads=1), 0, [0, 1, 2], 0.01)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    head_statistics(c, 0, [0, 1, 2], 0.01)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 100, f"{grown:.0f} MB, and one matrix of scores would be 288"


def test_constant_scores() -> None:
    """Queries of 0: every term but the first is 0, and order 0 is softmax itself."""
    c = call(12)
    row = head_statistics(Call(0, c.q * 0, c.k, c.v, c.mechanism, c.scale, c.visible, {}), 0, [0, 1, 2], 0.01)
    assert row is not None
    assert row["needed_order"] == row["dominant_order"] == 0
    assert row["low"] == row["high"] == 0
    assert row["entropy"] == pytest.approx(row["uniform"], rel=1e-3)
    assert F.relu(torch.tensor(row["error"])).max() < 1e-12
