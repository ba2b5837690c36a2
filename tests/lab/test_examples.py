"""The example configurations are valid, and the documentation names what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from softmax_rnn.lab.config import RECIPES, parse
from softmax_rnn.lab.corpora import HUB, PACKAGED
from softmax_rnn.lab.sweep import read_sweep

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_example_configurations(file: Path) -> None:
    if "grid:" in file.read_text():
        assert len(read_sweep(file)) > 1
    else:
        parse(["--config", str(file)])


def test_the_documentation_is_complete() -> None:
    text = (ROOT / "docs" / "lab.md").read_text()
    for name in [*RECIPES, *PACKAGED, *HUB]:
        assert f"`{name}`" in text
    for command in re.findall(r"^softmax-rnn train (.*)$", text, re.MULTILINE):
        argv = [a.replace("examples/", f"{ROOT}/examples/") for a in command.split() if a != "--print-config"]
        if "--plugins" not in argv:
            parse(argv)
