"""The report in a real Chromium, opened as a file: what readers see, and what they can move."""

import json

import pytest
from PIL import Image
from selenium.webdriver import ActionChains

from softmax_rnn.report.data import Report
from softmax_rnn.report.site import write_site
from tests.report.example import NASTY, example

pytestmark = pytest.mark.slow

HEADLINE = ".beside .chart"
FIGURE = "#figure-fig4 .chart"


def lines(browser, chart):
    """The curves that are drawn in a chart: names, panels and colours, as plotly has them."""
    return browser.run(
        """return document.querySelector(arguments[0] + ' .plot').data.filter(t => t.fill !== 'toself')
           .map(t => [t.name, t.xaxis, t.line.color])""",
        chart,
    )


def press(browser, chart, words):
    """Press the button of a chart that has these words."""
    browser.run(
        "[...document.querySelectorAll(arguments[0] + ' button')].find(b => b.textContent === arguments[1]).click()",
        chart,
        words,
    )


def bars(browser):
    return browser.run(
        "return [...document.querySelectorAll('#order-bars rect.series')].map(r => +r.getAttribute('height'))"
    )


def move(browser, key):
    browser.driver.find_element("id", "order").send_keys(key)


def turn(browser, dark):
    """Light or dark, and wait until the charts have followed."""
    browser.dark(dark)
    browser.until(
        """const ink = getComputedStyle(document.documentElement).getPropertyValue('--ink').trim();
           return matchMedia('(prefers-color-scheme: dark)').matches === arguments[0]
               && [...document.querySelectorAll('.plot')].every(p => p.layout.font.color === ink)""",
        dark,
    )


def double_click(browser, selector):
    """As a browser does it; the pointer's own double click would depend on how fast the machine is."""
    browser.run(
        """const target = document.querySelector(arguments[0]);
           for (const kind of ['click', 'click', 'dblclick']) target.dispatchEvent(new MouseEvent(kind, {bubbles: true}))""",
        selector,
    )


@pytest.fixture
def shown(browser, site):
    browser.open(site)
    yield browser
    assert browser.problems() == []


def test_claims_and_curves_are_on_the_first_screen(shown):
    visible = """return document.querySelector(arguments[0]).getBoundingClientRect().top"""
    for part in (".lead", ".counts", "#claim-norm_matches_softmax", "#claim-gate_is_worse", HEADLINE):
        assert 0 <= shown.run(visible, part) < 700, part
    drawn = shown.run("return document.querySelectorAll('.beside .plot path.js-line').length")
    assert drawn >= 9
    assert {name for name, _, _ in lines(shown, HEADLINE)} == {"softmax", "norm", "gate"}


def test_curves_can_be_seen(shown, tmp_path):
    """In the picture, not only in the document: a layer above them may be opaque."""
    for dark in (False, True):
        turn(shown, dark)
        box = shown.run(
            "const b = document.querySelector('.beside .plot').getBoundingClientRect(); return [b.x, b.y, b.right, 900]"
        )
        shown.screenshot(tmp_path / "page.png")
        pixels = Image.open(tmp_path / "page.png").convert("RGB").crop(box).get_flattened_data()
        for name, _, color in lines(shown, HEADLINE)[:3]:
            wanted = tuple(int(c) for c in color.removeprefix("rgb(").removesuffix(")").split(","))
            assert sum(pixel == wanted for pixel in pixels) > 50, (name, dark)


def test_hovering_shows_the_losses(shown):
    panel = shown.driver.find_element("css selector", ".beside .plot .nsewdrag")
    ActionChains(shown.driver).move_to_element(panel).perform()
    hover = shown.until("return document.querySelector('.beside .hoverlayer').textContent")
    assert all(name in hover for name in ("softmax", "norm", "gate"))


def test_the_slider_changes_the_picture(shown):
    before, words = bars(shown), "return document.getElementById('order-words').textContent"
    assert "first 3 recurrent networks" in shown.run(words)
    move(shown, "\ue014")  # arrow right
    assert "first 4 recurrent networks" in shown.run(words)
    assert bars(shown) != before
    move(shown, "\ue010")  # end
    exact = shown.run(
        "return [...document.querySelectorAll('#order-bars rect.softmax')].map(r => +r.getAttribute('height'))"
    )
    assert bars(shown) == pytest.approx(exact, abs=0.5)
    move(shown, "\ue011")  # home
    assert "every token weighs the same" in shown.run(words)
    assert len(set(bars(shown))) == 1


def test_an_odd_order_that_crosses_zero_says_so(shown):
    move(shown, "\ue011")
    move(shown, "\ue014")
    assert "crosses zero" in shown.run("return document.getElementById('order-words').textContent")
    assert shown.run("return document.querySelectorAll('#order-bars rect.below').length") > 0


def test_the_legend_hides_a_mechanism_in_all_panels(shown):
    assert sum(name == "gate" for name, _, _ in lines(shown, HEADLINE)) == 3
    press(shown, HEADLINE, "gate")
    assert {name for name, _, _ in lines(shown, HEADLINE)} == {"softmax", "norm"}
    pressed = "return document.querySelector('.beside .legend button:last-child').getAttribute('aria-pressed')"
    assert shown.run(pressed) == "false"
    press(shown, HEADLINE, "gate")
    assert sum(name == "gate" for name, _, _ in lines(shown, HEADLINE)) == 3


def test_a_double_click_leaves_one_curve(shown):
    chip = ".beside .legend button:nth-child(2)"
    double_click(shown, chip)
    assert {name for name, _, _ in lines(shown, HEADLINE)} == {"norm"}
    double_click(shown, chip)
    assert {name for name, _, _ in lines(shown, HEADLINE)} == {"softmax", "norm", "gate"}


def test_an_address_with_a_figure_opens_there(browser, site):
    browser.open(site, part="#figure-fig4")
    assert 0 <= browser.run("return document.getElementById('figure-fig4').getBoundingClientRect().top") < 100


def test_train_test_and_axes(shown):
    points = "return document.querySelector(arguments[0] + ' .plot').data.find(t => t.fill !== 'toself').x.length"
    axis = "return document.querySelector(arguments[0] + ' .plot').layout.yaxis.type"
    assert (shown.run(points, FIGURE), shown.run(axis, FIGURE)) == (12, "log")
    press(shown, FIGURE, "train")
    press(shown, FIGURE, "linear")
    assert (shown.run(points, FIGURE), shown.run(axis, FIGURE)) == (80, "linear")
    press(shown, FIGURE, "both")
    assert {name for name, _, _ in lines(shown, FIGURE)} >= {"softmax train", "softmax test"}


def test_a_label_like_html_is_text(shown):
    assert shown.run("return document.images.length") == 3  # the static drawings
    chips = shown.run(
        "return [...document.querySelectorAll(arguments[0] + ' .legend button')].map(b => b.textContent)", FIGURE
    )
    assert NASTY in chips
    shown.run(
        """const plot = document.querySelector(arguments[0] + ' .plot');
           Plotly.Fx.hover(plot, [{curveNumber: plot.data.length - 1, pointNumber: 5}], 'xy')""",
        FIGURE,
    )
    assert NASTY in shown.until("return document.querySelector('#figure-fig4 .hoverlayer')?.textContent")


def test_links_to_runs_filter_the_table(shown):
    rows = "return [...document.querySelectorAll('#runs tbody tr')].filter(r => !r.hidden).map(r => r.cells[0].textContent)"
    assert len(shown.run(rows)) == len(example().runs)
    shown.run("document.querySelector('#claim-norm_matches_softmax a[data-filter]').click()")
    assert sorted(shown.run(rows)) == sorted(example().claims[0].runs)
    assert shown.run("return location.hash") == "#runs"
    box = shown.driver.find_element("id", "filter")
    box.clear()
    box.send_keys("damaged gate")
    assert shown.run(rows) == ["gate-tunes-2a1b2c3d4e"]
    assert shown.run("return document.getElementById('filter-count').textContent") == f"1 of {len(example().runs)} runs"


def test_darkness_changes_page_and_curves_at_once(shown):
    page = "return getComputedStyle(document.body).backgroundColor"
    text = "return document.querySelector('.beside .plot').layout.font.color"
    light = [shown.run(page), shown.run(text), lines(shown, HEADLINE)]
    turn(shown, True)
    assert shown.run(page) != light[0]
    assert shown.run(text) != light[1]
    assert all(a[2] != b[2] for a, b in zip(lines(shown, HEADLINE), light[2], strict=True))


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_width_scrolls_sideways(browser, site, width):
    browser.open(site, width, 844)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true })")
    inside = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert inside[0] <= inside[1] == width
    assert browser.problems() == []


def test_turning_a_phone_gives_panels_their_columns(browser, site):
    browser.open(site, 390, 844)
    columns = "return new Set(document.querySelector('#figure-fig2 .plot').data.map(t => t.xaxis)).size"
    tops = """const l = document.querySelector('#figure-fig2 .plot').layout;
              return new Set([l.yaxis, l.yaxis2, l.yaxis3].map(a => a.domain[1])).size"""
    assert browser.run(columns) == 3
    assert browser.run(tops) == 3  # one above the other
    browser.resize(1280)
    browser.until(f"{tops.replace('return', 'return 1 ===')}")
    box = "const p = document.querySelector('#figure-fig2 .plot'); return p.clientHeight === p.querySelector('svg').clientHeight"
    browser.until(box)
    assert browser.problems() == []


def test_without_scripts_the_verdicts_and_drawings_are_there(browser, site):
    browser.open(site, scripts=False)
    text = browser.run("return document.body.innerText")
    assert all(claim.sentence in text for claim in example().claims)
    seen = browser.run("return [...document.images].filter(i => i.offsetHeight > 0).map(i => i.getAttribute('src'))")
    assert set(seen) == {"figures/fig2.svg", "figures/fig4.svg"}
    assert browser.run("return document.getElementById('filter').offsetHeight") == 0


def test_without_plotly_the_drawings_stand_in(browser, tmp_path):
    (tmp_path / "fig2.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 30 10"/>')
    index = write_site(example(), tmp_path, tmp_path / "out")
    (index.parent / "plotly.min.js").write_text("")
    browser.open(index)
    assert browser.run("return [...document.images].every(i => i.offsetHeight > 0)")
    assert browser.problems() == []


def test_an_empty_report_opens(browser, tmp_path):
    browser.open(write_site(Report("Nothing yet", "quick"), tmp_path, tmp_path / "out"))
    assert "No figures have been run yet." in browser.run("return document.body.innerText")
    assert browser.problems() == []


def test_the_data_in_the_page_is_the_summary(shown, site):
    embedded = json.loads(shown.run("return document.getElementById('summary').textContent"))
    assert embedded == json.loads((site.parent / "summary.json").read_text())
