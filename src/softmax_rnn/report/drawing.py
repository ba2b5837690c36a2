"""One look for every drawing, and files that are the same for the same data. Importing this chooses matplotlib's Agg."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "softmax-rnn",  # the same data, the same file
    "svg.fonttype": "none",  # letters as letters, not outlines: a third of the size
}


def save(drawing: Any, path: Path, data: Any) -> Path:
    """As SVG and PDF, both with the digest of what they show, so that it can be checked against the records."""
    drawing.savefig(path, metadata={"Date": None, "Description": f"data {digest(data)}"})
    drawing.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None, "Subject": f"data {digest(data)}"})
    return path


def digest(data: Any) -> str:
    """Of plain data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
