"""The cache of tokenizers and tokens: ``$SOFTMAX_RNN_CACHE`` or ``~/.cache/softmax-rnn``. Deleting it costs time, nothing else,
and what is damaged in it is made again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..files import writing

ADVICE = "make room, or set SOFTMAX_RNN_CACHE to another folder"


def cache_folder(kind: str) -> Path:
    """The folder for one kind of cached thing, made if needed."""
    root = os.environ.get("SOFTMAX_RNN_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "softmax-rnn")
    folder = Path(root) / kind
    with writing(folder, ADVICE):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time builds ``path``, the others wait and find it built. The lock goes with the process that
    holds it.
    """
    from filelock import FileLock

    with writing(path.parent, ADVICE), FileLock(f"{path}.lock"):
        yield
