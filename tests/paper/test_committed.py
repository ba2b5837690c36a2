"""The committed results: summary, figures, README and docs say what the metrics say."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from softmax_rnn.paper.summary import summarise
from softmax_rnn.report.data import Report, plain
from softmax_rnn.report.drawing import digest, finals, main_curves
from softmax_rnn.report.site import write_site
from tests.report.browser import Browser, browser

__all__ = ["browser"]  # the fixture

ROOT = Path(__file__).parents[2]
ENDED = ("done", "diverged")
SCALES = [name for name in ("cpu", "early", "night") if (ROOT / "results" / name / "plan.json").exists()]


@pytest.fixture(scope="module", params=SCALES)
def committed(request: pytest.FixtureRequest) -> Report:
    with contextlib.chdir(ROOT):
        return summarise(Path("results") / request.param)


def folder(report: Report) -> Path:
    return ROOT / "results" / str(report.scale)


def table(page: str, name: str) -> list[list[str]]:
    """The lines of a table that tools/readme.py writes, as cells."""
    part = (ROOT / page).read_text().partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
    return [line.split(" | ") for line in part.splitlines() if line.startswith("| ") and "| claim |" not in line]


def test_the_summary_is_made_from_the_metrics(committed: Report) -> None:
    assert (folder(committed) / "summary.json").read_text() == committed.text()


def test_the_figures_show_these_numbers(committed: Report) -> None:
    for figure in committed.figures:
        drawing = folder(committed) / "figures" / f"{figure.name}.svg"
        assert drawing.exists() == (not figure.empty)
        assert figure.empty or f"data {digest(plain(figure))}" in drawing.read_text(), figure.name
    headline = folder(committed) / "figures/headline.svg"
    assert not headline.exists() or f"data {digest(finals(main_curves(committed)))}" in headline.read_text()


def test_the_docs_show_these_verdicts(committed: Report) -> None:
    if not committed.claims:  # one seed: losses in their place
        final = [f"{c.final_test.mean:.3f} |" for c in committed.figures[0].panels[0].curves if c.final_test]
        ends = [line[-1] for line in table("docs/paper.md", committed.scale) if "test loss after" not in line[0]]
        assert ends == final
        return
    lines = table("docs/paper.md", "early" if committed.scale == "early" else "verdicts")
    assert [(line[1], line[2].strip("*")) for line in lines] == [(c.sentence, c.verdict) for c in committed.claims]


def test_the_readme_shows_the_main_verdicts() -> None:
    text = (ROOT / "README.md").read_text().split("<!-- verdicts -->")[1].split("<!-- /verdicts -->")[0]
    found = [re.fullmatch(r"- \*\*(.+?)\*\*: (.+?)( \*\(450 steps\)\*)?", x) for x in text.splitlines() if x[:1] == "-"]
    lines = {line.groups() for line in found if line is not None}
    assert len(lines) == len(found) == 5
    # Those of the longer scale, or while it has not run them, marked, those of the first edition.
    for verdict, sentence, mark in lines:
        assert (verdict, sentence) in {
            (line[2].strip("*"), line[1]) for line in table("docs/paper.md", "early" if mark else "verdicts")
        }
    assert "213,000 parameters" in text


def test_what_is_committed_has_ended(committed: Report) -> None:
    """Nothing damaged or half done; the first edition's runs are all there, and the page counts those that are not."""
    assert {run.status for run in committed.runs} <= {*ENDED, "missing"}
    done = sum(run.status in ENDED for run in committed.runs)
    assert done == len(committed.runs) or committed.scale == "cpu"
    said = f"{done} of {len(committed.runs)} runs are done" in (ROOT / "README.md").read_text()
    assert said == (committed.scale == "cpu" and done < len(committed.runs))


def test_committed_files_are_few_and_small(committed: Report) -> None:
    files = [path for path in folder(committed).rglob("*") if path.is_file()]
    assert len(files) <= 40
    assert max(path.stat().st_size for path in files) < 2_000_000


@pytest.mark.slow
def test_the_page_of_these_results(committed: Report, tmp_path: Path, browser: Browser) -> None:
    """In a real browser, from disk: every claim and every figure is there, the slider moves, nothing complains."""
    browser.open(write_site(committed, folder(committed) / "figures", tmp_path / "report"))
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
