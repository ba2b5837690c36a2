"""The report as files: whole, offline, escaped, and honest about what is missing. No browser needed."""

import dataclasses
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from softmax_rnn.errors import UserError
from softmax_rnn.report.data import ClaimView, JudgedTest, Report, RunView
from softmax_rnn.report.site import write_site
from softmax_rnn.report.style import embedded, glyph, measured, page, region_words
from tests.report.example import NASTY, example

VOID = {"meta", "link", "img", "input", "br"}


class Reader(HTMLParser):
    """Collects elements and text, and insists that every element is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def read(site: Path) -> Reader:
    return Reader(site.read_text())


def poisoned(value: Any) -> Any:
    """The same data with something nasty in every text that is shown, and none of the words that the page knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        words = ("name", "figure", "verdict", "equivalent", "x_scale", "scale", "headline")
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name not in words}
        return dataclasses.replace(value, **{k: poisoned(v) for k, v in fields.items()})
    if isinstance(value, dict):
        return {k: poisoned(v) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(v) for v in value]
    return f'"{NASTY}' if isinstance(value, str) else value


def test_every_claim_is_there_without_scripts(read):
    for claim in example().claims:
        assert claim.sentence in read.words
    assert "nothing yet" in read.words
    assert "Missing: taylor10 on code, seeds 0, 1 and 2" in read.words


def test_ids_are_unique_and_links_lead_to_them(read):
    ids = [a["id"] for _, a in read.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    targets = [a["href"][1:] for a in read.all("a") if (a["href"] or "").startswith("#")]
    assert "claim-norm_matches_softmax" in targets
    assert "figure-fig2" in targets
    assert set(targets) <= set(ids)


def test_everything_it_loads_is_beside_it(site, read):
    loaded = [a["src"] for t in ("script", "img") for a in read.all(t) if "src" in a]
    loaded += [a["href"] for a in read.all("link") if a["rel"] != "icon"]
    files = [a["href"] for a in read.all("a") if not a["href"].startswith("#")]
    assert {"plotly.min.js", "app.js", "site.css", "figures/fig2.svg"} <= set(loaded)
    assert "summary.json" in files
    for name in [*loaded, *files]:
        assert (site.parent / name).is_file(), name


def test_our_scripts_and_styles_ask_nobody(site):
    for name in ("site.css", "theme.js", "curves.js", "orders.js", "app.js"):
        text = (site.parent / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert not any(word in text for word in ("http:", "https:", "fetch(", "@import", "url(", "innerHTML"))


def test_missing_seeds_and_drawings_are_named(read):
    assert "Missing: gate on tunes, seed 2." in read.words
    assert f"{NASTY} on code, seeds 1 and 2" in read.words
    assert "No runs yet." in read.words
    assert "figures/fig5.svg" not in [a.get("src") for a in read.all("img")]


def test_nothing_a_user_names_becomes_html(tmp_path):
    index = write_site(poisoned(example()), tmp_path, tmp_path / "out")
    found = Reader(index.read_text())
    assert found.all("img") == []
    assert not any("onerror" in a for _, a in found.elements)
    clean = Reader(write_site(example(), tmp_path, tmp_path / "clean").read_text())
    assert len(found.all("script")) == len(clean.all("script"))
    assert NASTY in found.words


def test_embedded_data_cannot_end_its_element():
    script = embedded(Report(title=NASTY, question="<!--<script>").plain(), "summary")
    inside = script.removeprefix('<script type="application/json" id="summary">').removesuffix("</script>")
    assert "<" not in inside
    assert json.loads(inside)["title"] == NASTY


def test_an_empty_report_says_what_is_missing(tmp_path):
    found = Reader(write_site(Report(scale="quick"), tmp_path / "nowhere", tmp_path / "out").read_text())
    for sentence in (
        "No claims have been tested",
        "headline figure has no runs",
        "no query of a trained model",
        "no runs yet",
    ):
        assert sentence in found.words


def test_numbers_that_json_does_not_have_become_null(tmp_path):
    given = Report(title="t", runs=[RunView("r", "done", test_loss=math.nan, seconds=math.inf)])
    index = write_site(given, tmp_path, tmp_path / "out")
    run = json.loads((index.parent / "summary.json").read_text())["runs"][0]
    assert (run["name"], run["test_loss"], run["seconds"]) == ("r", None, None)


def test_a_report_may_be_written_over_itself(tmp_path):
    out = tmp_path / "out"
    write_site(example(), tmp_path, out)
    (out / "figures" / "fig2.svg").write_text("<svg/>")
    assert "figures/fig2.svg" in write_site(example(), out / "figures", out).read_text()


def test_a_file_in_the_way_is_one_sentence(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="is a file"):
        write_site(Report(), tmp_path, tmp_path / "out")


def test_the_common_page_is_as_it_was():
    assert page("a<b", ["<p>x</p>"]).endswith("</style></head>\n<body>\n<p>x</p>\n</body></html>\n")


def test_the_deciding_test_is_one_that_came_out_as_the_claim():
    tests = [JudgedTest("a", "holds", (None, 1.0)), JudgedTest("b", "does not hold", (None, 1.0))]
    assert ClaimView("c", "4", "c", "fig2", "does not hold", tests).deciding is tests[1]
    assert ClaimView("c", "4", "c", "fig2", "not run").deciding is None


@pytest.mark.parametrize(
    ("region", "words"),
    [
        ((-0.02, 0.02), "within ±0.02"),
        ((0.1, None), "above 0.1"),
        ((None, -1), "up to −1"),
        ((0, 2), "between 0 and 2"),
    ],
)
def test_regions_in_words(region, words):
    assert region_words(region) == words


def test_the_glyph_puts_the_interval_into_the_region():
    drawn = Reader(glyph(JudgedTest("x", "holds", (-0.02, 0.02), 0.0, -0.01, 0.01)))
    left = float(drawn.all("rect")[0]["x"] or 0)
    right = left + float(drawn.all("rect")[0]["width"] or 0)
    line = next(a["d"] for a in drawn.all("path") if a["class"] == "interval") or ""
    start, end = (float(v) for v in line[1:].split(" 9H"))
    assert left < start < end < right


def test_a_test_without_numbers_has_words():
    nothing = JudgedTest("x", "not run", (None, None), values=[None])
    assert glyph(nothing) == ""
    assert measured(nothing) == "no number"
    assert measured(JudgedTest("x", "inconclusive", (None, None), 0.25)) == "+0.250 nats, no interval"


def test_accuracy_has_a_column_where_a_run_has_one(tmp_path):
    runs = [RunView("r", "done", test_accuracy=0.875), RunView("s", "done")]
    assert "0.875" in Reader(write_site(Report(runs=runs), tmp_path, tmp_path / "a").read_text()).words
    assert "test accuracy" not in Reader(write_site(Report(runs=runs[1:]), tmp_path, tmp_path / "b").read_text()).words
