"""The recurrent form: one token after another, as the paper writes it.

    H_t^n = exp(g_t) H_{t-1}^n + k_t^{(x)n} u_t^T            O_t = sum_n c_n q_t^{(x)n} . H_t^n            (eq. 2, sec. 3.1)

Under the delta rule u_t = beta'_t (v_t - what the faded state holds at k_t); otherwise u_t = v_t.

For exp the sum over n is infinite; its "state" is the list of all keys and values, and a step is attention of one query over them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..backends.powers import symmetric_dim, symmetric_powers
from ..problem import Problem, Setting, Sums
from ..state import KVState, State
from .chunked import Chunked, Clocks, MomentsCall
from .parallel import attend, kept, write_by_steps
from .reference import Cost, constant_state, count_keys, no_constant_state

TOKENS = 64  # tokens whose features are made at once


class Recurrent(Chunked):
    """Token by token."""

    name = "recurrent"

    def refuses(self, s: Setting) -> str | None:
        """Whatever has no order in time, and clamps."""
        if not s.causal:
            return "The recurrent form goes forward in time: for causal=False use 'chunked' or 'parallel'."
        kernel = s.mechanism.kernel
        if kernel.limit is not None:
            return no_constant_state(s)
        return super(Chunked, self).refuses(s)

    def state_of(self, s: Setting) -> type[State]:
        """Moments where there are, keys and values otherwise."""
        return constant_state(s) or KVState

    def cost(self, s: Setting) -> Cost:
        """The arithmetic of chunks of one, in steps too small to use the machine."""
        c = super().cost(s)
        return Cost(self.name, c.matmul, c.elementwise, s.dims.queries, c.state_bytes, c.working_bytes)

    def run(self, p: Problem) -> tuple[Sums, Tensor, State]:
        """Step by step."""
        if constant_state(p.setting) is not None:
            return super().run(p)
        assert p.state is None or isinstance(p.state, KVState)
        kv, context = write_by_steps(p, *p.with_past(p.state))
        q = p.seeing(context.count()) if p.may_be_empty else p.q
        if context.queries == 0 or not context.causal:
            sums = attend(q, kv.key, kv.value, context, p.mechanism.kernel, p)
            return sums, count_keys(p, context), kept(p, kv, context)
        parts = []
        for t in range(context.queries):
            one = context.from_to(t, t + 1)
            k, v = (x[:, :, : one.keys] for x in (kv.key, kv.value))
            parts.append(attend(q[:, :, t : t + 1], k, v, one, p.mechanism.kernel, p))
        row = (None if column[0] is None else torch.cat(column, 2) for column in zip(*parts, strict=True))
        return Sums(*row), count_keys(p, context), kept(p, kv, context)  # type: ignore[arg-type]

    def sweep(self, call: MomentsCall, clock: Clocks, channels: Clocks) -> tuple[Tensor, Tensor]:
        """One step after another through the moments."""
        q, k, v, state = call.q, call.k, call.v, call.moments
        orders = [n for n, c in enumerate(call.coefficients) if c != 0]
        weight = torch.cat([q.new_full((symmetric_dim(q.shape[-1], n),), call.coefficients[n]) for n in orders])
        fades = None if clock is None else _steps(clock[1]).to(q.dtype)  # (N, T)
        late = (
            None if clock is None else (clock[0] - clock[1]).to(q.dtype).exp()
        )  # between a key and the query that reads it
        falls = None if channels is None else symmetric_powers(_steps(channels[1]), orders).to(q.dtype)
        if falls is not None:
            falls = falls / symmetric_powers(torch.ones_like(k[:, :1]), orders)
        outputs = []
        for t in range(q.shape[2]):
            if t % TOKENS == 0:
                block = slice(t, t + TOKENS)
                both = symmetric_powers(torch.cat([q[:, :, block], k[:, None, block]], 1), orders)
                reads, writes = both[:, :-1] * weight, both[:, -1]
                if call.beta is not None:
                    at_key = symmetric_powers(k[:, block] * call.scale, orders) * weight
            if fades is not None:
                state = state * fades[:, t, None, None]
            if falls is not None:
                state = state * falls[:, t, :, None]
            value = v[:, t, None, :]
            if call.beta is not None:
                value = call.beta[:, t, None, None] * torch.baddbmm(value, at_key[:, t % TOKENS, None], state, alpha=-1)
            # The newest key by its score, not through the state: where the rest has faded, small weights keep their digits.
            own = _series(torch.bmm(q[:, :, t], k[:, t, :, None]), call.coefficients)
            read = torch.baddbmm(own * value, reads[:, :, t % TOKENS], state)
            state = torch.baddbmm(state, writes[:, t % TOKENS, :, None], value)
            outputs.append(read if late is None else read * late[:, t, None, None])
        if not outputs:
            return q.new_zeros(*q.shape[:3], v.shape[-1]) + (q.sum() + k.sum() + v.sum()) * 0, state
        return torch.stack(outputs, 2), state


def _series(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """sum_n c_n x^n, nested."""
    total = torch.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def _steps(clock: Tensor) -> Tensor:
    """What one token leaves of the state before it: exp of the difference of the clock, which stood at 0 before the first."""
    return torch.diff(clock, dim=1, prepend=torch.zeros_like(clock[:, :1])).exp()
