"""Tables of several inspections side by side, in Markdown: ``python -m softmax_rnn.microscope.findings FOLDER``.

The folder holds one inspection per subfolder. ``--write PAGE`` puts the tables between the two markers of a page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .page import count, size
from .saving import load, order

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
NAMES = {"none": "none", "mean": "mean key", "best": "learned"}
SHOWN = (0, 2, 4, 6, 10, 16, 24, 32, 48, 64, 128)

Found = dict[str, tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]]


def read(folder: Path) -> Found:
    """The inspections in the subfolders, by name."""
    return {p.parent.name: load(p.parent) for p in sorted(folder.glob("*/inspection.json"))}


def rows(head: Iterable[str], body: Iterable[Iterable[object]]) -> list[str]:
    """A Markdown table."""
    head = list(head)
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(str(c) for c in line)} |" for line in body), ""]


def tables(found: Found) -> str:
    """All tables."""
    parts = ["**Order needed.**", "", *_needed(found), "**Scores.**", "", *_scores(found)]
    parts += [
        "**Loss with all layers cut at order n** (for an encoder the cosine with the untouched one).",
        "",
        *_curves(found),
    ]
    parts += ["**One layer cut, the others whole: the layer that suffers most.**", "", *_one_layer(found)]
    parts += ["**One recurrent state against a cache, per head of keys.**", "", *_states(found)]
    return "\n".join(parts).rstrip() + "\n"


def _needed(found: Found) -> list[str]:
    body = []
    for name, (s, _) in found.items():
        top = s["orders"][-1]
        for v, n in s["needed"].items():
            share = f"{100 * n['share_within_10']:.0f}%"
            body.append(
                [name, NAMES[v], order(n["median"], top), order(n["largest"], top), share, order(n["model"], top)]
            )
    return rows(
        ["inspection", "centring", "median head", "worst head", "heads within 1% at order 10", "whole model"], body
    )


def _scores(found: Found) -> list[str]:
    body = []
    for name, (_, heads) in found.items():
        for v, some in heads.items():
            low, high = min(r["low"] for r in some), max(r["high"] for r in some)
            dominant = sorted(r["dominant_order"] for r in some)
            entropy = sorted(r["entropy"] / max(r["uniform"], 1e-9) for r in some)
            body.append(
                [name, NAMES[v], f"{low:.1f} … {high:.1f}", dominant[len(some) // 2], dominant[-1], f"{entropy[len(some) // 2]:.2f}"]
            )  # fmt: skip
    head = [
        "inspection",
        "centring",
        "scores",
        "dominant order, median head",
        "largest",
        "entropy / uniform, median head",
    ]
    return rows(head, body)


def _curves(found: Found) -> list[str]:
    body = []
    for name, (s, _) in found.items():
        for v, curve in s["all_layers"].items():
            at = dict(zip(curve["orders"], curve["values"], strict=True))
            settled = curve["orders"][-1]
            cells = [f"{at[n]:.3f}" if n in at else "·" if n > settled else "" for n in SHOWN]
            body.append([name, NAMES[v], *cells, f"{s['untouched']:.3f}"])
    return rows(["inspection", "centring", *(str(n) for n in SHOWN), "untouched"], body)


def _one_layer(found: Found) -> list[str]:
    body = []
    for name, (s, _) in found.items():
        one = s["one_layer"]
        for v in (v for v in s["needed"] if v in one):
            for i, n in enumerate(one["orders"]):
                changes = {r["layer"]: r["values"][i] - one["untouched"] for r in one[v]}
                worst = (max if s["metric"] == "loss" else min)(changes, key=lambda layer: changes[layer])
                over = sum(abs(x) > s["close"] for x in changes.values())
                body.append([name, NAMES[v], n, worst, f"{changes[worst]:+.3f}", f"{over} of {len(changes)}"])
    head = [
        "inspection",
        "centring",
        "order",
        "layer",
        "change",
        "layers that change it by more than 0.01 (cosine: 0.001)",
    ]
    return rows(head, body)


def _states(found: Found) -> list[str]:
    body = []
    for d in sorted({s["head_dim"] for s, _ in found.values()}):
        tables = [s["states"] for s, _ in found.values() if s["head_dim"] == d]
        cache = {c["tokens"]: size(c["bytes"]) for c in tables[0]["cache"]}
        needed = {r["order"]: r for t in tables for r in t["state"]}
        for n, r in sorted(needed.items()):
            body.append(
                [d, n, size(r["bytes"]), *(cache[t] for t in (1024, 65536, 1048576)), count(r["break_even_tokens"])]
            )
    return rows(["head size", "order", "state", "cache, 1k tokens", "64k", "1M", "state is smaller from, tokens"], body)


def write(page: Path, text: str) -> None:
    """Put the tables between the markers of a page."""
    old = page.read_text()
    before, after = old[: old.index(BEGIN) + len(BEGIN)], old[old.index(END) :]
    page.write_text(f"{before}\n{text}\n{after}")


def main(argv: list[str]) -> int:
    """Print the tables, or write them into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path, metavar="PAGE")
    args = parser.parse_args(argv)
    text = tables(read(args.folder))
    if args.write:
        write(args.write, text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
