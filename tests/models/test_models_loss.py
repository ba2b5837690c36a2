"""The head and the cross-entropy in one, held to torch's own: values, gradients, labels that are left out, and when it is not taken."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from softmax_rnn import SoftmaxRnnConfig, SoftmaxRnnForCausalLM
from softmax_rnn.models import SoftmaxRnnForMaskedLM
from softmax_rnn.models.loss import BLOCK, fits, head_loss


def _plain(hidden: Tensor, weight: Tensor, labels: Tensor, items: int | None) -> Tensor:
    logits = (hidden @ weight.t()).flatten(0, -2)
    reduction = "mean" if items is None else "sum"
    return nn.functional.cross_entropy(logits, labels.flatten(), reduction=reduction) / (items or 1)


@settings(deadline=None, max_examples=25)
@given(
    tokens=st.sampled_from([1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5]),
    vocab=st.sampled_from([1, 2, 33, 300]),
    masked=st.sampled_from([0.0, 0.3, 0.95]),
    items=st.sampled_from([None, 1, 37]),
    size=st.sampled_from([0.1, 1.0, 100.0]),
    seed=st.integers(0, 2**16),
)
def test_as_torch(tokens: int, vocab: int, masked: float, items: int | None, size: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    hidden = (torch.randn(2, tokens, 5, generator=random, dtype=torch.float64) * size).requires_grad_()
    weight = torch.randn(vocab, 5, generator=random, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, vocab, (2, tokens), generator=random)
    labels[torch.rand(2, tokens, generator=random) < masked] = -100
    labels[0, 0] = 0  # the mean of nothing is NaN, here as there
    ours, theirs = head_loss(hidden, weight, labels, items), _plain(hidden, weight, labels, items)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad(3 * ours, (hidden, weight))
    wanted = torch.autograd.grad(3 * theirs, (hidden, weight))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12 * size)
    with torch.no_grad():
        assert head_loss(hidden, weight, labels, items) == ours


def test_gradients_of_it() -> None:
    hidden = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1, -100, 5])
    assert torch.autograd.gradcheck(lambda h, w: head_loss(h, w, labels), (hidden, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_may_be_changed_in_place(dtype: torch.dtype) -> None:
    hidden, weight = torch.ones(2, 3, dtype=dtype, requires_grad=True), torch.ones(4, 3, dtype=dtype)
    loss = head_loss(hidden, weight, torch.tensor([1, 2]), items=1)
    loss *= 2
    loss.backward()
    assert hidden.grad is not None


def test_nothing_asked() -> None:
    hidden, weight = torch.ones(2, 3, requires_grad=True), torch.ones(4, 3)
    labels = torch.full((2,), -100)
    assert head_loss(hidden, weight, labels).isnan()
    head_loss(hidden, weight, labels, items=2).backward()
    assert hidden.grad is not None
    assert not hidden.grad.any()


def _model(kind: type, **options: object) -> nn.Module:
    torch.manual_seed(0)
    config = SoftmaxRnnConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        mechanism="norm",
        **options,
    )
    model: nn.Module = kind(config)
    return model


@pytest.mark.parametrize("kind", [SoftmaxRnnForCausalLM, SoftmaxRnnForMaskedLM])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("items", [None, 31])
def test_a_model_has_the_same_loss_and_gradients(kind: type, tied: bool, items: int | None) -> None:
    ids = torch.randint(0, 50, (2, 20), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, :5] = -100
    found = []
    for loss_only in (True, False):
        model = _model(kind, tie_word_embeddings=tied)
        out = model(input_ids=ids, labels=labels, num_items_in_batch=items, loss_only=loss_only)
        assert (out.logits is None) == loss_only
        out.loss.backward()
        found.append([out.loss.detach(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)


def test_logits_are_there_unless_they_are_not_wanted() -> None:
    model, ids = _model(SoftmaxRnnForCausalLM), torch.arange(8)[None]
    assert model(ids, labels=ids).logits is not None
    assert model(ids, loss_only=True).logits is not None
    assert model(ids, labels=ids, loss_only=True).logits is None
    assert isinstance(model(ids, labels=ids, loss_only=True, return_dict=False)[0], Tensor)


def test_not_taken_where_the_plain_loss_differs() -> None:
    head = nn.Linear(4, 8, bias=False)
    assert fits(head)
    assert not fits(nn.Linear(4, 8))
    assert not fits(nn.Linear(4, 8, bias=False, dtype=torch.bfloat16))
    assert not fits(nn.Linear(4, 8, bias=False, device="meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not fits(head)


@pytest.mark.parametrize("wanted", [False, True])
def test_torch_accepts_the_operator(wanted: bool) -> None:
    hidden, weight = (torch.randn(n, 3, dtype=torch.float64).requires_grad_(wanted) for n in (4, 6))
    labels = torch.tensor([1, -100, 5, 0])
    torch.library.opcheck(torch.ops.softmax_rnn.head_loss.default, (hidden, weight, labels, wanted))


def test_under_torch_func() -> None:
    hidden, weight = torch.randn(4, 3, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    labels = torch.tensor([1, -100, 5, 0])
    found = torch.func.grad(head_loss)(hidden, weight, labels)
    wanted = torch.func.grad(_plain)(hidden, weight, labels, None)
    torch.testing.assert_close(found, wanted)


@pytest.mark.slow
def test_compiled_in_one_graph() -> None:
    ids = torch.randint(0, 50, (2, 20), generator=torch.Generator().manual_seed(1))
    found = []
    for compiled in (True, False):
        model = _model(SoftmaxRnnForCausalLM)
        if compiled:
            model.compile(dynamic=False, fullgraph=True)
        out = model(input_ids=ids, labels=ids, loss_only=True, use_cache=False)
        assert out.logits is None
        out.loss *= 2  # as a trainer does
        out.loss.backward()
        found.append([out.loss.detach(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)
