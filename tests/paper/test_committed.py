"""The committed results: summary, figures and README say what the metrics say."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from softmax_rnn.paper.headline import finals, main_curves
from softmax_rnn.paper.summary import summarise
from softmax_rnn.report.data import Report, plain
from softmax_rnn.report.drawing import digest
from softmax_rnn.report.site import write_site
from tests.report.browser import Browser, browser

__all__ = ["browser"]  # the fixture

ROOT = Path(__file__).parents[2]
FOLDER = Path("results/early")


@pytest.fixture(scope="module")
def committed() -> Report:
    with contextlib.chdir(ROOT):
        return summarise(FOLDER)


def test_the_summary_is_made_from_the_metrics(committed: Report) -> None:
    assert (ROOT / FOLDER / "summary.json").read_text() == committed.text()


def test_the_figures_show_these_numbers(committed: Report) -> None:
    for figure in committed.figures:
        drawn = (ROOT / FOLDER / "figures" / f"{figure.name}.svg").read_text()
        assert f"data {digest(plain(figure))}" in drawn, figure.name
    assert f"data {digest(finals(main_curves(committed)))}" in (ROOT / FOLDER / "figures/headline.svg").read_text()


def test_the_readme_shows_these_verdicts(committed: Report) -> None:
    readme = (ROOT / "README.md").read_text()
    assert "results/early/figures/headline.svg" in readme
    for claim in committed.claims:
        row = next(line for line in readme.splitlines() if claim.sentence in line and line.startswith("|"))
        assert row.split("|")[3].strip(" *") == claim.verdict


def test_every_run_is_there(committed: Report) -> None:
    """Committed results are complete: nothing missing, nothing damaged."""
    assert [run.name for run in committed.runs if run.status not in ("done", "diverged")] == []


@pytest.mark.slow
def test_the_page_of_these_results(committed: Report, tmp_path: Path, browser: Browser) -> None:
    """In a real browser, from disk: every claim and every figure is there, the slider moves, nothing complains."""
    browser.open(write_site(committed, ROOT / FOLDER / "figures", tmp_path / "report"))
    assert browser.run("return document.querySelectorAll('tbody[id^=claim-]').length") == len(committed.claims)
    shown = browser.run("return [...document.querySelectorAll('[id^=figure-]')].map(f => f.id)")
    assert shown == [f"figure-{figure.name}" for figure in committed.figures]
    before = browser.run("return document.getElementById('order-words').textContent")
    browser.run(
        "const s = document.getElementById('order'); s.value = 9; s.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    browser.until("return document.getElementById('order-words').textContent.includes('10 recurrent networks')")
    assert "10 recurrent networks" not in before
    assert browser.problems() == []
