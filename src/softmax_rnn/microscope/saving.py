"""An inspection as files: JSON first (the truth), then what is made from it.

inspection.json       the model and its layers
heads.NAME.json       every head, for each centring NAME
calibration.safetensors   the best center, as patch(model, mechanism, center=...) reads it
*.svg, index.html     pictures and a page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .inspection import Inspection


def save(found: Inspection, about: dict[str, Any], folder: Path) -> None:
    """Write everything."""
    from .centers import save_centers  # here, so that reading needs no torch
    from .page import write_page

    folder.mkdir(parents=True, exist_ok=True)
    summary = {**about, **found.summary}
    (folder / "inspection.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    for name, rows in found.heads.items():
        text = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        (folder / f"heads.{name}.json").write_text(f"[{text}]\n")
    if found.centers:
        save_centers(list(found.centers.values())[-1], folder / "calibration.safetensors")
    write_page(folder)


def load(folder: Path) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """The JSON of a folder: the summary and the heads by centring."""
    summary = json.loads((folder / "inspection.json").read_text())
    return summary, {v: json.loads((folder / f"heads.{v}.json").read_text()) for v in summary["needed"]}


def order(n: int | None, top: int) -> str:
    """An order, or that none was enough."""
    return f"more than {top}" if n is None else str(n)


def lines(found: Inspection) -> list[str]:
    """The result in a few lines, for the terminal."""
    s = found.summary
    top = s["orders"][-1]
    out = [f"{s['tokens']} tokens, {s['layers']} layers of {s['heads']} heads, {s['metric']} {s['untouched']:.3f}"]
    for name, n in s["needed"].items():
        out.append(
            f"centring {name}: half of the heads need order {order(n['median'], top)} or less, "
            f"{100 * n['share_within_10']:.0f}% at most 10; the model {order(n['model'], top)}"
        )
    return out
