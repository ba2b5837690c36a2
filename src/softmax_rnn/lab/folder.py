"""A run's folder: ``config.yaml``, ``environment.json``, ``metrics.jsonl``, ``checkpoint-<step>/``; one process trains
in it at a time.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError
from . import checkpoint, environment
from .config import RunConfig, content_hash, to_yaml
from .recorder import read


@dataclass(frozen=True)
class Opened:
    """Where a session begins."""

    checkpoint: Path | None
    finished: bool


@contextlib.contextmanager
def open_folder(config: RunConfig, data_fingerprint: str, world: int, first: bool) -> Iterator[Opened]:
    """Claim the folder and find where to begin; in a distributed run the first process does it and tells the others."""
    if first:
        with _claimed(config.folder):
            opened = _inspect(config, data_fingerprint, world)
            _share(opened, world)
            yield opened
    else:
        yield _share(None, world)


def _share(opened: Opened | None, world: int) -> Opened:
    if world > 1:
        import torch.distributed as dist

        box = [opened]
        dist.broadcast_object_list(box)
        opened = box[0]
    assert opened is not None
    return opened


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    if folder.is_dir() and not (folder / "config.yaml").exists() and any(p.name != ".lock" for p in folder.iterdir()):
        raise UserError(f"{folder} is not empty and not a run: choose another --run.folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise UserError(f"Another process is training in {folder}: wait for it or stop it.") from None
    except OSError as error:
        raise UserError(f"Cannot write to {folder} ({error.strerror}): choose another --run.root.") from None
    with lock:
        yield


def _inspect(config: RunConfig, data_fingerprint: str, world: int) -> Opened:
    folder = config.folder
    written = folder / "config.yaml"
    if written.exists():
        _check_same(config, yaml.safe_load(written.read_text()))
    about = environment.load(folder) or environment.describe(config.seed) | {"data": data_fingerprint, "sessions": []}
    if about["data"] != data_fingerprint:
        raise UserError(
            f"The text of {config.data.source} is no longer what {folder} began with: restore it, or start afresh with another --name."
        )
    if finished(folder):
        return Opened(None, True)
    checkpoint.clean(folder)
    begin = checkpoint.newest(folder, lambda text: print(text, file=sys.stderr))
    about["sessions"].append(environment.session(0 if begin is None else checkpoint.step_of(begin), world))
    try:
        checkpoint.write_atomically(folder / "environment.json", json.dumps(about, indent=1))
        checkpoint.write_atomically(written, to_yaml(config))
    except OSError as error:
        raise UserError(
            f"Cannot write to {folder} ({error.strerror}): make room, or choose another --run.root."
        ) from None
    return Opened(begin, False)


def _check_same(config: RunConfig, there: dict[str, Any]) -> None:
    if content_hash(there) == config.hash:
        return
    wanted, found = _flat(asdict(config)), _flat(there)
    differing = sorted(
        k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k) and not k.startswith(("run.", "name"))
    )
    raise UserError(
        f"{config.folder} belongs to a run with another configuration (different: {', '.join(differing)}): choose another folder."
    )


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    groups = {k: v for k, v in config.items() if isinstance(v, dict)}
    return {f"{group}.{k}": v for group, options in groups.items() for k, v in options.items()} | {
        k: v for k, v in config.items() if k not in groups
    }


def finished(folder: Path) -> bool:
    """True if the run came to its end."""
    rows = read(folder / "metrics.jsonl")
    return bool(rows) and rows[-1].get("event") == "done"
