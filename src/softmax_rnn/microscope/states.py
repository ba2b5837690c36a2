"""What an order costs as a recurrent state, against keys and values kept for every token. Per kv head, head size d, value size e.

state   C(d + n, n) features (all symmetric powers of order 0..n) x (e + 1) numbers, float32, at any length
cache   tokens x (d + e) numbers, bfloat16
"""

from __future__ import annotations

from typing import Any

from ..features import symmetric_dim

LENGTHS = (1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)
ALWAYS = (1, 2, 3, 4, 6, 8, 10)


def state_bytes(d: int, e: int, order: int) -> int:
    """Bytes of the states of orders 0..order together.

    >>> state_bytes(16, 16, 2) == (1 + 16 + 136) * 17 * 4
    True
    """
    # The powers 0..n of d channels are the powers n of d + 1, one of which is 1.
    return symmetric_dim(d + 1, order) * (e + 1) * 4


def cache_bytes(d: int, e: int, tokens: int) -> int:
    """Bytes of keys and values."""
    return tokens * (d + e) * 2


def state_table(d: int, e: int, needed: list[int]) -> dict[str, Any]:
    """The table for small orders and the needed ones; ``break_even`` is the length from which on the state is smaller."""
    rows = []
    for order in sorted({*ALWAYS, *needed}):
        size = state_bytes(d, e, order)
        rows.append(
            {
                "order": order,
                "bytes": size,
                "break_even_tokens": -(-size // cache_bytes(d, e, 1)),
                "needed": order in needed,
            }
        )
    return {
        "head_dim": d,
        "value_dim": e,
        "cache": [{"tokens": t, "bytes": cache_bytes(d, e, t)} for t in LENGTHS],
        "state": rows,
    }
