"""The example report, written once, and the browser."""

from pathlib import Path

import pytest

from softmax_rnn.report.site import write_site
from tests.report.browser import browser
from tests.report.example import example

__all__ = ["browser"]
DRAWING = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 300 100"><path d="M0 90L300 10" stroke="black"/></svg>'


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index.html of the example; figure 5 has no static drawing."""
    figures = tmp_path_factory.mktemp("figures")
    for name in ("fig2", "fig4"):
        (figures / f"{name}.svg").write_text(DRAWING)
    return write_site(example(), figures, tmp_path_factory.mktemp("site"))
