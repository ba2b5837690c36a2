"""The recurrent form: one token after another, as the paper writes it.

    H_t^n = H_{t-1}^n + k_t^{(x)n} v_t^T            O_t = sum_n c_n q_t^{(x)n} . H_t^n            (eq. 2, sec. 3.1)

For exp the sum over n is infinite; its "state" is the list of all keys and values, and a step is attention of one query over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..features import symmetric_power
from .sums import Sums

BLOCK = 64  # tokens whose features are made at once


def features(x: Tensor, coefficients: Sequence[float], weighted: bool) -> Tensor:
    """The symmetric powers of all orders in use, side by side; ``weighted``: times c_n."""
    parts = [symmetric_power(x, n) * (c if weighted else 1.0) for n, c in enumerate(coefficients) if c != 0]
    return torch.cat(parts, -1)


def steps(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, runs: Tensor | None, coefficients: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """As ``chunked``: q (N, G, T, D), k (N, T, D), v (N, T, E), state (N, rows, E) -> (N, G, T, E) and the state after."""
    outputs = []
    for t in range(q.shape[2]):
        if t % BLOCK == 0:
            block = slice(t, t + BLOCK)
            read = features(q[:, :, block], coefficients, weighted=True)
            write = features(k[:, block], coefficients, weighted=False)
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
