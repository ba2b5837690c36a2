"""The recurrent form: one token after another, as the paper writes it.

    H_t^n = H_{t-1}^n + k_t^{(x)n} v_t^T            O_t = sum_n c_n q_t^{(x)n} . H_t^n            (eq. 2, sec. 3.1)

For exp the sum over n is infinite; its "state" is the list of all keys and values, and a step is attention of one query over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..features import symmetric_dim, symmetric_powers
from .sums import Sums

BLOCK = 64  # tokens whose features are made at once


def features(q: Tensor, k: Tensor, coefficients: Sequence[float]) -> tuple[Tensor, Tensor]:
    """The symmetric powers of all orders in use, side by side, of q (N, G, L, D) and k (N, L, D); those of q times c_n."""
    orders = [n for n, c in enumerate(coefficients) if c != 0]
    both = symmetric_powers(torch.cat([q, k[:, None]], 1), orders)
    weights = [q.new_full((symmetric_dim(q.shape[-1], n),), coefficients[n]) for n in orders]
    return both[:, :-1] * torch.cat(weights), both[:, -1]


def steps(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, runs: Tensor | None, coefficients: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """As ``chunked``: q (N, G, T, D), k (N, T, D), v (N, T, E), state (N, rows, E) -> (N, G, T, E) and the state after."""
    outputs = []
    for t in range(q.shape[2]):
        if t % BLOCK == 0:
            block = slice(t, t + BLOCK)
            read, write = features(q[:, :, block], k[:, block], coefficients)
        if runs is not None:
            before = runs[:, t - 1] if t else torch.zeros_like(runs[:, 0])
            state = state * (runs[:, t] == before)[:, None, None]
        state = torch.baddbmm(state, write[:, t % BLOCK, :, None], v[:, t, None, :])
        outputs.append(torch.bmm(read[:, :, t % BLOCK], state))
    if not outputs:
        return q.new_zeros(*q.shape[:3], v.shape[-1]) + q.sum() * 0, state
    return torch.stack(outputs, 2), state


def step_by_step(one: Callable[[int], Sums], length: int) -> Sums:
    """exp: ``one(t)`` attends with query t alone; the results in a row."""
    parts = [one(t) for t in range(length)]
    numerators, weight_sums, lses = zip(*parts, strict=True)
    row = [None if column[0] is None else torch.cat(column, 2) for column in (weight_sums, lses)]
    return Sums(torch.cat(numerators, 2), *row)
