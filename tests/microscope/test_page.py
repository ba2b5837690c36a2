"""Figures and pages, drawn again from committed JSON."""

import shutil
from pathlib import Path

import pytest

from softmax_rnn.microscope import main
from tests.report.browser import Browser, browser

__all__ = ["browser"]
RESULTS = Path(__file__).parents[2] / "results/microscope"


def drawn(name: str, folder: Path) -> Path:
    folder.mkdir()
    for source in (RESULTS / name).glob("*.json"):
        shutil.copy(source, folder)
    assert main(["--redraw", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of many layers, two of whose heads no order satisfies."""
    return drawn("smollm2-prose", tmp_path_factory.mktemp("page") / "large")


@pytest.mark.slow
def test_heads_that_no_order_satisfies_have_a_legend(large: Path) -> None:
    page = (large / "index.html").read_text()
    assert "No order up to 128 keeps the loss within 0.01 nats" in page
    assert "no order up to 128" in (large / "heads.svg").read_text()
    assert "no order up to 128" in page


@pytest.mark.slow
def test_the_same_json_the_same_files(tmp_path: Path) -> None:
    first, second = (drawn("run-linear_cosine", tmp_path / name) for name in ("first", "second"))
    for file in sorted(first.iterdir()):
        assert file.read_bytes() == (second / file.name).read_bytes(), file.name
    assert "no order up to" not in (first / "heads.svg").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_a_phone(large: Path, browser: Browser, dark: bool) -> None:
    browser.open(large / "index.html", width=390, dark=dark)
    assert browser.problems() == []
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    # Figures are as dark as the page around them.
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    backs = browser.run(
        "return [...document.querySelectorAll('figure svg #patch_1 path')].map(p => getComputedStyle(p).fill)"
    )
    assert len(backs) == 6
    assert set(backs) == {paper}
