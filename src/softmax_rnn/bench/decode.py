"""``bench decode``: one more token after N, with a Kronecker state and with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ..ops.api import attention
from ..ops.state import State
from .measure import Record, Work, interleave

MECHANISM, HEADS, D, E = "taylor2", 8, 16, 64


def steps(lengths: list[int]) -> tuple[dict[str, Work], dict[str, int]]:
    """A decoding step of ours and of SDPA after each number of tokens, and the bytes each carries."""
    work: dict[str, Work] = {}
    carried: dict[str, int] = {}
    for T in lengths:
        q, k, v = torch.randn(1, HEADS, T, D), torch.randn(1, HEADS, T, D), torch.randn(1, HEADS, T, E)
        with torch.no_grad():
            state = attention(q, k, v, MECHANISM, form="chunked", return_state=True)[1]
        token = [x[:, :, -1:] for x in (q, k, v)]
        keys, values, query = (torch.randn(1, HEADS, n, E) for n in (T, T, 1))

        def ours(token: list[torch.Tensor] = token, state: State = state) -> None:
            with torch.no_grad():
                attention(token[0], token[1], token[2], MECHANISM, state=state, return_state=True)

        def cached(query: torch.Tensor = query, keys: torch.Tensor = keys, values: torch.Tensor = values) -> None:
            with torch.no_grad():
                F.scaled_dot_product_attention(query, keys, values)

        work[f"ours {T}"], work[f"kv {T}"] = ours, cached
        carried[f"ours {T}"], carried[f"kv {T}"] = state.nbytes, 2 * keys.numel() * 4
    return work, carried


def run(quick: bool = False) -> Iterator[Record]:
    """Steps after more and more tokens: against our own first, and against the cache of the same length."""
    lengths = [16, 64] if quick else [1024, 4096, 16384, 65536]
    work, carried = steps(lengths)
    t = interleave(work, 2 if quick else 30)
    first = t[f"ours {lengths[0]}"]
    for T in lengths:
        ours, kv = t[f"ours {T}"], t[f"kv {T}"]
        last = lengths[-1] == T
        shape = f"(1, {HEADS}, 1) after {T}"
        note = f"state {carried[f'ours {T}']:,} bytes, cache {carried[f'kv {T}']:,}"
        yield Record(
            f"{MECHANISM} step d={D} e={E}",
            shape,
            "float32",
            f"step after {lengths[0]}",
            ours.best,
            first.best,
            "s",
            1.2,
            ours.spread,
        )
        target = 1 / 10 if last and not quick else None
        yield Record(
            f"{MECHANISM} step d={D} e={E}", shape, "float32", "SDPA over a KV cache d=64", ours.best, kv.best, "s", target, ours.spread,
            note=note, curve="decode|state", length=T,
        )  # fmt: skip
        yield Record(
            "KV cache step d=64", shape, "float32", f"step after {lengths[0]}", kv.best, t[f"kv {lengths[0]}"].best, "s", None, kv.spread,
            curve="decode|cache", length=T,
        )  # fmt: skip
