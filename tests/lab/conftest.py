"""One cache for all lab tests, a small corpus made from a seed, and children to train in."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import work


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(autouse=True)
def cache(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMAX_RNN_CACHE", str(shared / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def corpus(shared: Path) -> Path:
    """300 short documents of made-up words."""
    folder = shared / "corpus"
    folder.mkdir()
    draw = random.Random(0)
    words = ["".join(draw.choices("aeioutnsrlmk", k=draw.randint(1, 7))) for _ in range(200)]
    for i in range(300):
        (folder / f"{i:03}.txt").write_text(" ".join(draw.choices(words, k=draw.randint(5, 60))))
    return folder


@pytest.fixture
def train(corpus: Path, tmp_path: Path) -> Iterator[Callable[..., work.Child]]:
    """Start ``train`` on the small corpus with a tiny model; runs go to ``tmp_path/root``."""
    started: list[work.Child] = []

    def start(*options: str, root: str = "runs", faults: dict[str, Any] | None = None, **kwargs: Any) -> work.Child:
        argv = work.tiny_on(corpus, tmp_path / root)
        child = work.Child([*argv, *options], tmp_path / f"log{len(started)}", faults=faults, **kwargs)
        started.append(child)
        return child

    yield start
    for child in started:
        if child.process.is_alive():
            child.process.kill()
            child.wait()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)
