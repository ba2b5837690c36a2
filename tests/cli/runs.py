"""Run folders made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from softmax_rnn.lab.config import from_dict, to_yaml


def a_run(folder: Path, options: dict[str, Any] | None = None, loss: float = 2.5, **files: bytes | None) -> None:
    """A finished run, with some options, or with some files replaced or removed."""
    folder.mkdir(parents=True)
    rows: list[dict[str, Any]] = [
        {"step": 20, "train_loss": 3.0, "spikes": 0, "tokens": 8},
        {"step": 20, "test_loss": loss, "tokens": 8},
        {"step": 20, "event": "done", "tokens": 8},
    ]
    content: dict[str, bytes | None] = {
        "config.yaml": to_yaml(from_dict(options or {}, "tiny")).encode(),
        "metrics.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
        "environment.json": b"{}",
    }
    for name, data in (content | files).items():
        if data is not None:
            (folder / name).write_bytes(data)
