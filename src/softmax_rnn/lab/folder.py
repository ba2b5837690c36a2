"""A run's folder: ``config.yaml``, ``environment.json``, ``metrics.jsonl``, ``checkpoint-<step>/``; one process trains
in it at a time.

Checkpoints are whole or not there: written to a temporary folder, made durable, then renamed into place.

    runs/<name>-<hash>/.saving/checkpoint-40/...   being written; removed at the next start
    runs/<name>-<hash>/checkpoint-40/...           complete: manifest.json lists every file with its size and SHA-256

A checkpoint that a crash, a full disk or a bad disk left incomplete is never loaded: ``newest`` verifies and goes back to
the one before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .. import files
from ..errors import UserError
from ..files import read_json, read_yaml, writing
from .config import RunConfig, content_hash, to_yaml
from .options import flat
from .recorder import DamagedMetrics, read

PACKAGES = ("softmax-rnn", "torch", "transformers", "accelerate", "tokenizers", "datasets", "numpy", "safetensors")
SAVING = ".saving"
MANIFEST = "manifest.json"
ADVICE = "make room, or choose another --run.root"
OURS = r"\.lock|\.?(environment\.json|config\.yaml|metrics\.jsonl)(\.new)?|\.saving|(\.removing-|damaged-)?checkpoint-\d+|damaged-.*"


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

    with writing(folder, ADVICE):
        if folder.is_dir() and not (folder / "config.yaml").exists():
            strange = sorted(p.name for p in folder.iterdir() if not is_ours(p.name))
            if strange:
                raise UserError(f"{folder} is not a run and holds {strange[0]}: choose another --run.folder.")
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise UserError(f"Another process is training in {folder}: wait for it or stop it.") from None
    with lock:
        yield


def is_ours(name: str) -> bool:
    """True for what a run writes into its folder: what a kill or a full disk can leave there before ``config.yaml``."""
    return re.fullmatch(OURS, name) is not None


def _inspect(config: RunConfig, data_fingerprint: str, world: int) -> Opened:
    folder = config.folder
    written = folder / "config.yaml"
    begun = written.exists()
    if begun:
        _check_same(config, _read_config(written))
    elif checkpoints(folder) and not folder.name.endswith(config.hash):
        raise UserError(f"{folder} has checkpoints but no config.yaml: choose another --run.folder.")
    fresh = {"data": data_fingerprint, "sessions": []}
    about = (load_environment(folder) if begun else {}) or describe(config.seed) | fresh
    if about["data"] != data_fingerprint:
        raise UserError(
            f"The text of {config.data.source} is no longer what {folder} began with: restore it, or start afresh with another --name."
        )
    if finished(folder):
        return Opened(None, True)
    clean(folder)
    begin = newest(folder, lambda text: print(text, file=sys.stderr))
    about["sessions"].append(session(0 if begin is None else step_of(begin), world))
    with writing(folder, ADVICE):
        if not begun or not written.read_text():
            files.write_atomically(written, to_yaml(config))
        files.write_atomically(folder / "environment.json", json.dumps(about, indent=1))
    return Opened(begin, False)


def _read_config(file: Path) -> dict[str, Any]:
    """The configuration of a run that was begun."""
    try:
        there = read_yaml(file)
        if not isinstance(there, dict):
            raise UserError(f"{file} holds no configuration.")
    except UserError as error:
        name = "damaged-config.yaml"
        raise UserError(
            f"{str(error).rstrip('.')}: the file is damaged; rename it to {name}, then run the same command."
        ) from None
    return there


def _check_same(config: RunConfig, there: dict[str, Any]) -> None:
    if content_hash(there) == config.hash:
        return
    wanted, found = flat(asdict(config)), flat(there)
    differing = sorted(
        k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k) and not k.startswith(("run.", "name"))
    )
    raise UserError(
        f"{config.folder} belongs to a run with another configuration (different: {', '.join(differing)}): choose another folder."
    )


def finished(folder: Path) -> bool:
    """True if the run came to its end, and its metrics are whole."""
    try:
        rows = read(folder / "metrics.jsonl")
    except DamagedMetrics:
        return False  # continuing restores what the last checkpoint holds, and says so
    return bool(rows) and rows[-1].get("event") == "done"


def describe(seed: int) -> dict[str, Any]:
    """Versions, git revision, seed and hardware."""
    import torch

    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "versions": versions,
        "git": git_revision(),
        "seed": seed,
        "hardware": {
            "machine": platform.machine(),
            "system": platform.platform(),
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
    }


def session(step: int, world_size: int) -> dict[str, Any]:
    """One start or restart of a run."""
    return {
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "from_step": step,
        "processes": world_size,
        "command": " ".join(sys.argv),
    }


def git_revision() -> str | None:
    """The commit of the code, with + if files differ from it; None outside a checkout."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def load_environment(run: Path) -> dict[str, Any]:
    """The environment of a run, or nothing; one that cannot be read is refused."""
    file = run / "environment.json"
    if not file.exists():
        return {}
    try:
        about = read_json(file)
    except UserError as error:
        raise UserError(f"{error} Rename it to damaged-environment.json, then run the same command.") from None
    whole = isinstance(about, dict) and isinstance(about.get("data"), str) and isinstance(about.get("sessions"), list)
    if not whole:
        raise UserError(
            f"{file} lacks data and sessions: rename it to damaged-environment.json, then run the same command."
        )
    return about


# Checkpoints.


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
    saved = sorted(p for p in source.rglob("*") if p.is_file())
    listing = {str(p.relative_to(source)): {"size": p.stat().st_size, "sha256": _digest(p)} for p in saved}
    (source / MANIFEST).write_text(json.dumps(listing, indent=1))
    mode = (source / MANIFEST).stat().st_mode & 0o777  # as the user's other files: safetensors makes its own private
    for path in (*saved, source / MANIFEST, source):
        if path.is_file():
            path.chmod(mode)
        files.fsync(path)
    if (run / name).exists():  # the same step again, after a resume from an older checkpoint
        remove(run / name)
    os.replace(source, run / name)
    files.fsync(run)
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


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
