"""The committed results: summary, figures and README say what the metrics say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from softmax_rnn.paper.headline import _curves
from softmax_rnn.paper.plots import digest
from softmax_rnn.paper.summary import summarise

ROOT = Path(__file__).parents[2]
FOLDER = Path("results/cpu")


@pytest.fixture(scope="module")
def committed() -> dict:
    return json.loads((ROOT / FOLDER / "summary.json").read_text())


def test_the_summary_is_made_from_the_metrics(committed: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert json.loads(json.dumps(summarise(FOLDER))) == committed


def test_the_figures_show_these_numbers(committed: dict) -> None:
    for figure in committed["figures"]:
        drawn = (ROOT / FOLDER / "figures" / f"{figure['name']}.svg").read_text()
        assert f"data {digest(figure)}" in drawn, figure["name"]
    finals = {name: curve["final_test"] for name, curve in _curves(committed).items()}
    assert f"data {digest(finals)}" in (ROOT / FOLDER / "figures/headline.svg").read_text()


def test_the_readme_shows_these_verdicts(committed: dict) -> None:
    readme = (ROOT / "README.md").read_text()
    assert "results/cpu/figures/headline.svg" in readme
    for claim in committed["claims"]:
        row = next(line for line in readme.splitlines() if claim["sentence"] in line and line.startswith("|"))
        assert re.sub(r"\W+", " ", claim["verdict"]) in re.sub(r"\W+", " ", row)


def test_every_run_is_there(committed: dict) -> None:
    """Committed results are complete: nothing missing, nothing damaged."""
    assert [run["name"] for run in committed["runs"] if run["status"] not in ("done", "diverged")] == []
