"""An inspection as files, lines and tables. JSON first (the truth), then what is made from it:

inspection.json           the model and its layers
heads.NAME.json           every head, for each centring NAME
calibration.safetensors   the best center, as patch(model, mechanism, center=...) reads it
*.svg, index.html         pictures and a page

What an order costs, per kv head with keys of d and values of e numbers:

state   C(d + n, n) features (all symmetric powers of order 0..n) x (e + 1) numbers, float32, at any length
cache   tokens x (d + e) numbers, bfloat16
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UserError

if TYPE_CHECKING:
    from .inspection import Inspection

Heads = dict[str, list[dict[str, Any]]]

NAMES = {"none": "none", "mean": "mean key", "best": "learned"}  # of the centrings, in tables
LENGTHS = (1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)
SHOWN_LENGTHS = {1_024: "1k tokens", 65_536: "64k", 1_048_576: "1M"}
SMALL_ORDERS = (1, 2, 3, 4, 6, 8, 10)
SHOWN_ORDERS = (0, 2, 4, 6, 10, 16, 24, 32, 48, 64, 128)


class Found(NamedTuple):
    """What the JSON of a folder holds: the summary, and the heads by centring."""

    summary: dict[str, Any]
    heads: Heads


class Table(NamedTuple):
    """A title, column heads, lines of cells; ``marked`` lines stand out."""

    title: str
    head: list[str]
    lines: list[list[object]]
    marked: Sequence[int] = ()


def save(found: Inspection, about: dict[str, Any], folder: Path) -> None:
    """Write everything."""
    from .heads import save_centers  # here, so that reading needs no torch
    from .page import write_page

    folder.mkdir(parents=True, exist_ok=True)
    summary = {**about, **found.summary}
    (folder / "inspection.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    for name, heads in found.heads.items():
        text = ",\n".join(json.dumps(head, separators=(",", ":")) for head in heads)
        (folder / f"heads.{name}.json").write_text(f"[{text}]\n")
    if found.centers:
        save_centers(list(found.centers.values())[-1], folder / "calibration.safetensors")
    write_page(folder)


def load(folder: Path) -> Found:
    """The JSON of a folder."""
    try:
        summary = json.loads((folder / "inspection.json").read_text())
        return Found(summary, {v: json.loads((folder / f"heads.{v}.json").read_text()) for v in summary["needed"]})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{folder} holds no whole inspection ({type(error).__name__}: {error}).") from None


def folders(places: Iterable[Path]) -> list[Path]:
    """The inspections among some places: each is one itself, or a folder of them."""
    found: list[Path] = []
    for place in places:
        inside = [place] if (place / "inspection.json").exists() else sorted(place.glob("*/inspection.json"))
        if not inside:
            raise UserError(f"There is no inspection in {place}: it would have a file inspection.json.")
        found += [p if p.is_dir() else p.parent for p in inside]
    return found


def order(n: int | None, top: int) -> str:
    """An order, or that none was enough."""
    return f"more than {top}" if n is None else str(n)


def sentences(summary: dict[str, Any]) -> list[str]:
    """The result in a few lines, for the terminal."""
    s, top = summary, summary["orders"][-1]
    say = {"none": "Keys as they are", "mean": "Keys less their mean", "best": "Keys less a learned constant"}
    lines = [f"{s['tokens']} tokens, {s['layers']} layers of {s['heads']} heads, {s['metric']} {s['untouched']:.3f}"]
    for name, n in s["needed"].items():
        lines.append(
            f"{say[name]}: the median head needs {_order(n['median'], top)}, the whole model {_order(n['model'], top)}; "
            f"order 10 is enough for {100 * n['share_within_10']:.0f}% of the heads."
        )
    return lines


def _order(n: int | None, top: int) -> str:
    return f"an order above {top}" if n is None else f"order {n}"


def state_bytes(d: int, e: int, order: int) -> int:
    """Bytes of the states of orders 0..order together.

    >>> state_bytes(16, 16, 2) == (1 + 16 + 136) * 17 * 4
    True
    """
    from .. import symmetric_dim

    # The powers 0..n of d channels are the powers n of d + 1, one of which is 1.
    return symmetric_dim(d + 1, order) * (e + 1) * 4


def cache_bytes(d: int, e: int, tokens: int) -> int:
    """Bytes of keys and values."""
    return tokens * (d + e) * 2


def state_table(d: int, e: int, needed: list[int]) -> dict[str, Any]:
    """Sizes for small orders and the needed ones; ``break_even_tokens`` is the length from which on the state is smaller."""
    states = []
    for n in sorted({*SMALL_ORDERS, *needed}):
        size = state_bytes(d, e, n)
        states.append(
            {"order": n, "bytes": size, "break_even_tokens": -(-size // cache_bytes(d, e, 1)), "needed": n in needed}
        )
    cache = [{"tokens": t, "bytes": cache_bytes(d, e, t)} for t in LENGTHS]
    return {"head_dim": d, "value_dim": e, "cache": cache, "state": states}


def needed(found: Found) -> Table:
    """The orders that heads and the whole model need."""
    s, top = found.summary, found.summary["orders"][-1]
    head = ["centring", "median head", "worst head", f"heads within {s['tolerance']:.0%} at order 10", "whole model"]
    lines: list[list[object]] = []
    for v, n in s["needed"].items():
        share = f"{100 * n['share_within_10']:.0f}%"
        lines.append([NAMES[v], order(n["median"], top), order(n["largest"], top), share, order(n["model"], top)])
    return Table("Order needed", head, lines)


def scores(found: Found) -> Table:
    """How far scores reach, and which order they make dominant."""
    head = ["centring", "scores", "dominant order, median head", "largest", "entropy / uniform, median head"]
    lines: list[list[object]] = []
    for v, heads in found.heads.items():
        low, high = min(h["low"] for h in heads), max(h["high"] for h in heads)
        dominant = sorted(h["dominant_order"] for h in heads)
        entropy = sorted(h["entropy"] / max(h["uniform"], 1e-9) for h in heads)
        middle = len(heads) // 2
        lines.append([NAMES[v], f"{low:.1f} … {high:.1f}", dominant[middle], dominant[-1], f"{entropy[middle]:.2f}"])
    return Table("Scores", head, lines)


def all_layers(found: Found) -> Table:
    """The loss or cosine at each order; a dot where it had settled before."""
    s = found.summary
    lines: list[list[object]] = []
    for v, curve in s["all_layers"].items():
        at = dict(zip(curve["orders"], curve["values"], strict=True))
        cells = [f"{at[n]:.3f}" if n in at else "·" if n > curve["orders"][-1] else "" for n in SHOWN_ORDERS]
        lines.append([NAMES[v], *cells, f"{s['untouched']:.3f}"])
    title = "Loss with all layers cut at order n (for an encoder the cosine with the untouched one)"
    return Table(title, ["centring", *map(str, SHOWN_ORDERS), "untouched"], lines)


def one_layer(found: Found) -> Table:
    """The layer that suffers most when it alone is cut."""
    s, one = found.summary, found.summary["one_layer"]
    lines: list[list[object]] = []
    for v in (v for v in s["needed"] if v in one):
        for i, n in enumerate(one["orders"]):
            changes = {r["layer"]: r["values"][i] - one["untouched"] for r in one[v]}
            worst = (max if s["metric"] == "loss" else min)(changes, key=lambda layer: changes[layer])
            over = sum(abs(x) > s["close"] for x in changes.values())
            lines.append([NAMES[v], n, worst, f"{changes[worst]:+.3f}", f"{over} of {len(changes)}"])
    head = ["centring", "order", "layer", "change", "layers that change it by more than 0.01 (cosine: 0.001)"]
    return Table("One layer cut, the others whole: the layer that suffers most", head, lines)


def states(found: Found) -> Table:
    """One recurrent state against a cache, per head of keys."""
    from ..state import readable_bytes

    s = found.summary["states"]
    cache = {c["tokens"]: readable_bytes(c["bytes"]) for c in s["cache"]}
    shown = [cache[t] for t in SHOWN_LENGTHS]
    lines: list[list[object]] = [
        [s["head_dim"], r["order"], readable_bytes(r["bytes"]), *shown, count(r["break_even_tokens"])]
        for r in s["state"]
    ]
    first, *rest = SHOWN_LENGTHS.values()
    head = ["head size", "order", "state", f"cache, {first}", *rest, "state is smaller from, tokens"]
    marked = [i for i, r in enumerate(s["state"]) if r["needed"]]
    return Table("One recurrent state against a cache, per head of keys", head, lines, marked)


def count(n: int) -> str:
    """A number of tokens for people.

    >>> count(2179), count(3 * 10**16)
    ('2,179', '3e+16')
    """
    return f"{n:,}" if n < 1e12 else f"{n:.0e}"


def compare(found: dict[str, Found]) -> str:
    """Several inspections side by side, by name: all tables, in Markdown."""
    parts: list[str] = []
    for make in (needed, scores, all_layers, one_layer):
        parts += _markdown(_side_by_side(found, make))
    sizes = [states(one) for one in found.values()]
    lines = {
        tuple(line): line for table in sizes for line in table.lines
    }  # models with heads of one size share their lines
    ordered = sorted(lines.values(), key=lambda line: line[:2])
    return "\n".join(parts + _markdown(sizes[0]._replace(lines=ordered))).rstrip() + "\n"


def _side_by_side(found: dict[str, Found], make: Callable[[Found], Table]) -> Table:
    tables = {name: make(one) for name, one in found.items()}
    first = next(iter(tables.values()))
    lines = [[name, *line] for name, table in tables.items() for line in table.lines]
    return Table(first.title, ["inspection", *first.head], lines)


def _markdown(table: Table) -> list[str]:
    def line(cells: Sequence[object]) -> str:
        return f"| {' | '.join(map(str, cells))} |"

    rule = f"|{'---|' * len(table.head)}"
    return [f"**{table.title}.**", "", line(table.head), rule, *map(line, table.lines), ""]
