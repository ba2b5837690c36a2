"""``environment.json``: what a run ran on, so that a number can be traced to its machine and its code."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import read_json

PACKAGES = ("softmax-rnn", "torch", "transformers", "accelerate", "tokenizers", "datasets", "numpy", "safetensors")


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


def load(run: Path) -> dict[str, Any]:
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
