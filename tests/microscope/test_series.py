"""Partial sums against exact arithmetic."""

import math
from decimal import Decimal, getcontext
from fractions import Fraction

import pytest
import torch

from softmax_rnn.microscope.probe import ladder, largest_term, last_useful, partial_sums, tail_ratio

getcontext().prec = 1000
SCORES = [-300.5, -67.25, -40.5, -20.25, -16.5, -3.0, -0.5, 0.0, 1e-3, 2.5, 30.0, 120.0]


def exact(x: float, n: int, shift: float) -> float:
    """sum_{k <= n} x^k / k! / exp(shift)."""
    total, term, ratio = Fraction(1), Fraction(1), Fraction(x)
    for k in range(1, n + 1):
        term = term * ratio / k
        total += term
    return float(Decimal(total.numerator) / Decimal(total.denominator) * (-Decimal(shift)).exp())


def column(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("top", [1, 2, 10, 33, 128])
def test_partial_sums_are_exact(top: int) -> None:
    x = column(SCORES)
    shift = largest_term(x.abs(), top)
    for step in partial_sums(x, torch.ones_like(x, dtype=torch.bool), shift, [top], top):
        weights = step.weights
    assert weights is not None
    want = column([exact(s, top, shift[i].item()) for i, s in enumerate(SCORES)])
    torch.testing.assert_close(weights, want, rtol=1e-8, atol=1e-300)


@pytest.mark.parametrize("size", [1e3, 1e5, 1e8])
def test_order_128_does_not_overflow(size: float) -> None:
    x = torch.tensor([[size, -size, 1.0, 0.0]], dtype=torch.float64)
    shift = largest_term(x.abs().amax(1, keepdim=True), 128)
    steps = 0
    for step in partial_sums(x, torch.ones_like(x, dtype=torch.bool), shift, [128], 128):
        assert step.term.isfinite().all()
        assert step.term.abs().max() <= 1 + 1e-9
        steps += 1
    assert steps == 129
    assert step.weights is not None
    got = step.weights[0].tolist()
    assert got[:2] == pytest.approx([exact(size, 128, shift.item()), exact(-size, 128, shift.item())], rel=1e-9)


def test_the_terms_add_up_to_the_weights() -> None:
    x = torch.randn(5, 7, dtype=torch.float64) * 3
    seen = torch.rand(5, 7) > 0.3
    total = torch.zeros_like(x)
    shift = largest_term(x.abs().amax(1, keepdim=True), 20)
    for step in partial_sums(x, seen, shift, ladder(20), 20):
        total += step.term
        assert (step.term[~seen] == 0).all()
        if step.weights is not None:
            torch.testing.assert_close(step.weights, total)
            taylor = sum(x**k / float(math.factorial(k)) for k in range(step.order + 1)) * torch.exp(-shift) * seen
            torch.testing.assert_close(step.weights, taylor)


def test_the_largest_term_is_the_largest() -> None:
    for size in (0.0, 0.4, 3.7, 50.0, 1e4):
        terms = [n * math.log(size) - math.lgamma(n + 1) if size else -math.inf * (n > 0) for n in range(1, 129)]
        assert largest_term(torch.tensor(size, dtype=torch.float64), 128).item() == pytest.approx(max(0.0, *terms))


def test_orders_after_the_last_useful_one_are_negligible() -> None:
    for size, floor in ((0.0, 0.0), (5.0, -5.0), (20.0, 3.0)):
        last = last_useful(size, floor, 128)
        rest = sum(size**n / float(math.factorial(n)) for n in range(last + 1, 170))
        assert last < 128
        assert rest < 1e-19 * math.exp(floor)
    assert last_useful(100.0, 0.0, 128) == 128


def test_tail_ratio() -> None:
    for y, n in ((16.0, 16), (30.5, 40), (120.0, 128)):
        x = Fraction(-y)
        term = total = Fraction(1)
        for k in range(n + 2, n + 400):
            term = term * x / k
            total += term
        assert tail_ratio(n, torch.tensor(y, dtype=torch.float64)).item() == pytest.approx(float(total), rel=2e-8)


def test_the_ladder_ends_at_the_top() -> None:
    assert ladder(128)[-1] == 128
    assert ladder(13) == list(range(14))
    assert ladder(0) == [0]
