"""The frontier: what it plans, what it costs, how runs become verdicts, and the page that shows it."""

import json
import random
from pathlib import Path

import pytest
import torch

from softmax_rnn.cli import main as cli
from softmax_rnn.frontier.claims import CLAIMS, decisive
from softmax_rnn.frontier.design import ARENAS, POINTS, Point
from softmax_rnn.frontier.page import write
from softmax_rnn.frontier.results import CHOOSING, Found, counted, footprint, judge_claim, summarise, table
from softmax_rnn.lab.config import to_yaml
from softmax_rnn.lab.model import build_model
from softmax_rnn.models import cache_bytes
from softmax_rnn.tasks.base import tokenizer
from tests.report.browser import browser  # noqa: F401 (a fixture)

RESULTS = Path(__file__).parents[2] / "results/frontier"


class Made(Found):
    """Runs that never were: accuracy by what a function says."""

    def __init__(self, says):
        super().__init__(Path("/nowhere"))
        self.says = says

    def quality(self, point, lr, seed, longest=False):
        return self.says(point, lr, seed)


def by_size(point, lr, seed):
    share = min(1.0, footprint(point, 32).bytes / 2**16) * random.Random(f"{point.name}{seed}").uniform(0.98, 1.0)
    return share if point.place.quantity == "accuracy" else 3.0 - share


def test_every_claim_rests_on_points_that_are_run():
    assert decisive() <= set(POINTS)
    assert len({p.name for p in POINTS}) == len(POINTS)
    assert {p.arena for p in POINTS} == set(ARENAS)
    assert all(claim.ours for claim in CLAIMS)
    for claim in CLAIMS:  # all points of a claim have as many seeds
        assert len({(p.arena, len(counted(p))) for test in claim.tests for p in test.points}) == 1


@pytest.mark.parametrize("point", POINTS, ids=lambda p: p.name)
def test_every_point_is_a_run_of_the_lab(point, tmp_path):
    config = point.config(0.01, 3, tmp_path)
    assert (config.seed, config.train.lr) == (3, 0.01)
    assert config.folder.name.startswith(f"{point.name}-0.01-3-")
    assert config.model.values()[0] == point.value


@pytest.mark.parametrize(
    "mechanism", ["softmax", "taylor2", "taylor3_norm", "near2_w16", "linear_elu", "taylor2_norm_delta"]
)
@pytest.mark.parametrize("conv", [0, 2])
def test_the_memory_is_that_of_the_models_cache(mechanism, conv, tmp_path):
    point, tokens = Point("recall", mechanism, 4, conv), 40
    model: object = build_model(point.config(0.01, 0, tmp_path).model, tokenizer(64), 64, 0)
    with torch.no_grad():
        cache = model.eval()(torch.zeros(1, tokens, dtype=torch.long), use_cache=True).past_key_values
    measured = cache_bytes(cache) / 2
    assert footprint(point, tokens).bytes == pytest.approx(measured, abs=64)  # but for a few counters
    assert footprint(point, tokens).constant == (mechanism != "softmax")


def pretend(config, accuracy, event="done"):
    config.folder.mkdir(parents=True)
    (config.folder / "config.yaml").write_text(to_yaml(config))
    row = {"step": 300, "test_loss": 1.0, "test_accuracy": accuracy, "test_accuracy_128": accuracy / 2, "tokens": 1}
    end = {"step": 300, "event": event, "tokens": 1}
    (config.folder / "metrics.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(end)}\n")


def test_one_seed_chooses_the_rate_and_the_others_count(tmp_path):
    point, found = Point("recall", "softmax"), Found(tmp_path)
    assert found.wanted(point) == [(0.003, CHOOSING), (0.01, CHOOSING)]
    pretend(point.config(0.003, CHOOSING, tmp_path), 0.9)
    pretend(point.config(0.01, CHOOSING, tmp_path), 0.99, event="diverged")
    found.forget()
    assert found.rate(point) == 0.003  # of one that diverged no answer is right
    seeds = range(1, 1 + point.place.decisive)
    assert found.wanted(point) == [(0.003, seed) for seed in seeds]
    assert found.summary(point) is None
    for seed in seeds:
        pretend(point.config(0.003, seed, tmp_path), 0.4 + seed / 10)
    found.forget()
    summary = found.summary(point)
    assert summary.values == pytest.approx((0.5, 0.6, 0.7, 0.8, 0.9))
    assert summary.mean == pytest.approx(0.7)
    assert summary.longest == pytest.approx(0.35)
    assert found.wanted(point) == []


def test_packed_runs_need_not_be_there(tmp_path):
    point = Point("recall", "softmax")
    for lr in (0.003, 0.01):
        pretend(point.config(lr, CHOOSING, tmp_path / "runs"), lr)
    assert cli(["pack", str(tmp_path / "runs"), str(tmp_path / "packed")]) == 0
    assert Found(tmp_path / "elsewhere", [tmp_path / "packed"]).rate(point) == 0.01


def test_verdicts_follow_from_the_seeds():
    found = Made(lambda p, lr, seed: {"taylor2": 0.95, "linear_elu": 0.3}.get(p.mechanism, 0.5) + seed / 1000)
    verdicts = {claim.name: judge_claim(claim, found).verdict for claim in CLAIMS}
    assert verdicts["linear_fails_where_order_2_succeeds"] == "holds"
    assert verdicts["order_2_recalls_more"] == "does not hold"  # exactly equal is not more
    assert verdicts["norm_recalls_as_softmax"] == "holds"
    assert verdicts["parity_needs_beta_up_to_2"] == "does not hold"


def test_what_is_missing_is_said(tmp_path):
    point = Point("recall", "taylor2")
    report = summarise(Made(lambda p, lr, seed: 0.9 if p == point else None))
    assert [m.point for m in report.points] == [point]
    assert {c.verdict for c in report.claims} == {"not run", "inconclusive"}
    assert f"{len(POINTS) - 1} of {len(POINTS)} points" in table(report)[-1]
    write(report, tmp_path)


def test_the_committed_numbers_are_those_of_the_committed_runs(tmp_path):
    found = Found(tmp_path, [RESULTS])
    assert summarise(found).text() == (RESULTS / "frontier.json").read_text()


def test_the_page_moves_in_a_browser(browser, tmp_path):  # noqa: F811
    write(summarise(Made(by_size)), tmp_path)
    data = json.loads((tmp_path / "frontier.json").read_text())
    assert len(data["points"]) == len(POINTS)
    for width, dark in ((1280, False), (390, True)):
        browser.open(tmp_path / "index.html", width=width, dark=dark)
        browser.until("return document.documentElement.dataset.ready")
        assert browser.problems() == []
        assert browser.run("return document.documentElement.scrollWidth") <= width
        circles = "return document.querySelectorAll('#plot-recall circle').length"
        assert browser.run(circles) == 1 + sum(p.arena == "recall" for p in POINTS)
        words = "return document.getElementById('words-recall').textContent"
        before = browser.run(words)
        assert "8.0 KB" in before
        browser.run("const s = document.getElementById('budget'); s.value = 20; s.dispatchEvent(new Event('input'));")
        assert "1.0 MB" in browser.run(words)
        browser.run("document.querySelectorAll('#axis button')[1].click()")
        assert "operations" in browser.run("return document.querySelector('#plot-recall svg').textContent")
    words = (tmp_path / "index.html").read_text()
    assert words.count("<table") == 1 + len(ARENAS)  # claims and numbers are there without scripts
    assert "http://" not in words.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["recal"], "Unknown arena 'recal'"),
        (["--from", "nowhere"], "nowhere holds no packed runs"),
        (["--jobs", "0"], "--jobs"),
        (["--out", "/dev/null/x"], "/dev/null"),
    ],
)
def test_what_does_not_fit_is_one_sentence(argv, said, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused("frontier", *argv)
    assert not list(tmp_path.iterdir())


def test_nothing_there_is_nothing_drawn(tmp_path, capsys):
    assert cli(["frontier", "--draw", "--out", str(tmp_path / "out")]) == 1
    assert "nothing to draw" in capsys.readouterr().out
