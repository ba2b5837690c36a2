"""Checkpoints that are whole or not there: written to a temporary folder, made durable, then renamed into place.

    runs/<name>-<hash>/.saving/checkpoint-40/...   being written; removed at the next start
    runs/<name>-<hash>/checkpoint-40/...           complete: manifest.json lists every file with its size and SHA-256

A folder that a crash, a full disk or a bad disk left incomplete is never loaded: ``newest`` verifies and goes back to
the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from ..errors import UserError

SAVING = ".saving"
MANIFEST = "manifest.json"


def checkpoints(run: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first."""
    found = [p for p in run.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(checkpoint.name.rpartition("-")[2])


def clean(run: Path) -> None:
    """Remove what an interrupted save or removal left behind."""
    for leftover in (run / SAVING, *run.glob(".removing-*")):
        shutil.rmtree(leftover, ignore_errors=True)


def publish(run: Path, name: str) -> None:
    """Turn ``.saving/<name>`` into ``<name>``: manifest, fsync of everything, one rename, fsync of the parent."""
    source = run / SAVING / name
    files = sorted(p for p in source.rglob("*") if p.is_file())
    listing = {str(p.relative_to(source)): {"size": p.stat().st_size, "sha256": _digest(p)} for p in files}
    (source / MANIFEST).write_text(json.dumps(listing, indent=1))
    mode = (source / MANIFEST).stat().st_mode & 0o777  # as the user's other files: safetensors makes its own private
    for path in (*files, source / MANIFEST, source):
        if path.is_file():
            path.chmod(mode)
        fsync(path)
    if (run / name).exists():  # the same step again, after a resume from an older checkpoint
        remove(run / name)
    os.replace(source, run / name)
    fsync(run)
    shutil.rmtree(run / SAVING, ignore_errors=True)


def prune(run: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints."""
    for old in checkpoints(run)[:-keep]:
        remove(old)


def remove(checkpoint: Path) -> None:
    """Rename first, so that no kill can leave half a checkpoint under its name."""
    doomed = checkpoint.with_name(f".removing-{checkpoint.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.replace(checkpoint, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def newest(run: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is what was written; each damaged one before it is reported and set aside."""
    for checkpoint in reversed(checkpoints(run)):
        fault = damage(checkpoint)
        if fault is None:
            return checkpoint
        aside = checkpoint.with_name(f"damaged-{checkpoint.name}")
        shutil.rmtree(aside, ignore_errors=True)
        try:
            os.replace(checkpoint, aside)
        except OSError as error:
            raise UserError(f"{checkpoint} is damaged ({fault}) and cannot be set aside ({error.strerror}).") from None
        warn(f"{checkpoint} is damaged ({fault}); it is now {aside.name}, and the one before it is used.")
    return None


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        listing = json.loads((checkpoint / MANIFEST).read_text())
        expected = {name: (about["size"], about["sha256"]) for name, about in listing.items()}
    except (OSError, ValueError, AttributeError, TypeError, KeyError, RecursionError):
        return f"no readable {MANIFEST}"
    for name, (size, digest) in expected.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if _digest(path) != digest:
            return f"the content of {name} has changed"
    return None


def write_atomically(path: Path, text: str) -> None:
    """The old file or the new one, never a part of either."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    fsync(new)
    os.replace(new, path)
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Make a file's content, or a folder's entries, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
