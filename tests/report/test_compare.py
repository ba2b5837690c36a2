"""Reports on any runs: what differs, seeds as bands, texts apart, sweeps as curves; unfinished and damaged runs are said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from softmax_rnn import cli
from softmax_rnn.lab.config import RunConfig, to_yaml
from softmax_rnn.lab.store import Run
from softmax_rnn.report import compare, differing, find, options
from tests.report.browser import Browser


def run(
    root: Path,
    loss: float,
    mechanism: str = "norm",
    source: str = "sotu",
    seed: int = 0,
    end: str | None = "done",
    **train: Any,
) -> Path:
    """A run that fell to ``loss`` in a straight line."""
    base = RunConfig(seed=seed)
    config = replace(
        base,
        data=replace(base.data, source=source),
        model=replace(base.model, mechanism=mechanism),
        train=replace(base.train, **train),
        run=replace(base.run, root=str(root)),
    )
    config.folder.mkdir(parents=True)
    (config.folder / "config.yaml").write_text(to_yaml(config))
    steps = config.train.steps
    rows: list[dict[str, Any]] = []
    for step in range(30, steps + 1, 30):
        here = {"step": step, "tokens": 4096 * step, "seconds": 0.1 * step}
        rows += [
            {**here, "train_loss": loss + 1 - step / steps, "spikes": 0},
            {**here, "test_loss": loss + 1 - step / steps},
        ]
    rows += [{"step": steps, "tokens": 4096 * steps, "event": end}] if end else []
    (config.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return config.folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for number, lr in enumerate((1e-3, 3e-3, 1e-2)):
        for mechanism, worse in (("softmax", 0.0), ("norm", 0.05)):
            for seed in (0, 1):
                run(tmp_path / "runs", 3.0 - 0.1 * number + worse + 0.02 * seed, mechanism, seed=seed, lr=lr)
    return tmp_path / "runs"


def test_a_sweep(sweep: Path) -> None:
    report = compare(find([sweep]))
    curves, rates = report.figures
    assert [curve.label for curve in curves.panels[0].curves][2:4] == ["softmax, lr 0.01", "norm, lr 0.001"]
    first = curves.panels[0].curves[3]
    assert (first.seeds, len(first.runs)) == ([0, 1], 2)
    assert first.test.high[-1] == pytest.approx(3.07)
    assert first.test.low[-1] == pytest.approx(3.05)
    (panel,) = rates.panels
    assert (rates.name, panel.x_label, panel.x_scale) == ("by-lr", "lr", "log")
    softmax = next(curve for curve in panel.curves if curve.label == "softmax")
    assert softmax.test.x == [1e-3, 3e-3, 1e-2]
    assert softmax.test.mean == pytest.approx([3.01, 2.91, 2.81])
    assert {tuple(run.keys) for run in report.runs} == {("mechanism", "lr", "seed")}
    assert "What differs: mechanism, lr, seed." in report.setting
    assert "corpus sotu" in report.setting


def test_texts_get_panels_of_their_own_and_mechanisms_keep_their_colour(tmp_path: Path) -> None:
    for source in ("sotu", "stdlib"):
        for mechanism in ("softmax", "norm"):
            run(tmp_path, 3.0, mechanism, source)
    (figure,) = compare(find([tmp_path])).figures
    assert [panel.title for panel in figure.panels] == ["sotu", "stdlib"]
    looks = [{curve.label: curve.color for curve in panel.curves} for panel in figure.panels]
    assert looks[0] == looks[1]
    assert len(set(looks[0].values())) == 2


def test_unfinished_diverged_and_damaged_runs_are_said(tmp_path: Path) -> None:
    run(tmp_path, 3.0, "softmax")
    run(tmp_path, 3.1, "norm", end=None)
    run(tmp_path, 3.2, "gate", end="diverged")
    (run(tmp_path, 3.3, "length") / "config.yaml").write_text("model: {")
    report = compare(find([tmp_path]))
    labels = {curve.label for curve in report.figures[0].panels[0].curves}
    assert labels == {"softmax", "norm (unfinished)", "gate (diverged)"}
    assert sorted(r.status for r in report.runs) == ["damaged", "diverged", "done", "unfinished"]
    assert "is damaged" in str(next(r.note for r in report.runs if r.status == "damaged"))


def test_one_run_is_a_report_too(tmp_path: Path) -> None:
    folder = run(tmp_path, 3.0)
    report = compare(find([folder]))
    assert report.title == folder.name
    assert [curve.label for curve in report.figures[0].panels[0].curves] == ["norm"]


def test_runs_by_name_and_the_same_run_twice(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sweep.parent)
    names = sorted(path.name for path in sweep.iterdir())
    found = find([Path(names[0]), sweep / names[1], sweep / names[0]])
    assert [run.folder.name for run in found] == names[:2]


def test_the_command_writes_page_and_drawings(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sweep.parent)
    two = [str(path) for path in sorted(sweep.iterdir())[:2]]
    assert cli.main(["report", *two]) == 0
    assert "2 runs; the report: out/compared/index.html" in capsys.readouterr().out
    assert (sweep.parent / "out/compared/figures/curves.svg").exists()
    page = (sweep.parent / "out/compared/index.html").read_text()
    assert "Verdicts" not in page
    before = sorted(path.name for path in sweep.iterdir())
    assert cli.main(["report", str(sweep), "--out", "page"]) == 0
    assert sorted(path.name for path in sweep.iterdir()) == before
    assert (sweep.parent / "page/figures/by-lr.svg").exists()


def test_packed_runs_are_compared_as_well(sweep: Path, tmp_path: Path) -> None:
    assert cli.main(["pack", str(sweep), str(tmp_path / "packed")]) == 0
    assert compare(find([tmp_path / "packed"])).figures == compare(find([sweep])).figures


def test_a_wrong_name_suggests_the_nearest(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sweep.parent)
    name = sorted(path.name for path in sweep.iterdir())[0]
    assert cli.main(["report", name[:-1] + "x"]) == 2
    assert f"did you mean runs/{name}?" in capsys.readouterr().err
    (sweep.parent / "empty").mkdir()
    assert cli.main(["report", "empty"]) == 2
    assert "There are no runs in empty" in capsys.readouterr().err


def test_options_that_differ(tmp_path: Path) -> None:
    a = {"seed": 0, "model": {"mechanism": {"kernel": 1}, "overrides": {"hidden_size": 64}}, "run": {"root": "a"}}
    b = {
        "seed": 1,
        "model": {"mechanism": {"kernel": 2}, "overrides": {"hidden_size": 64, "head_dim": 8}},
        "run": {"root": "b"},
    }
    assert differing([options(Run(tmp_path, config)) for config in (a, b)]) == [
        "model.mechanism",
        "model.overrides.head_dim",
        "seed",
    ]


@pytest.mark.slow
def test_the_page_in_a_browser(sweep: Path, tmp_path: Path, browser: Browser) -> None:
    assert cli.main(["report", str(sweep), "--out", str(tmp_path / "page")]) == 0
    browser.open(tmp_path / "page" / "index.html")
    assert browser.run("return document.querySelectorAll('#figures .plot path.js-line').length") >= 8
    assert browser.run("return document.querySelectorAll('#runs tbody tr').length") == 12
    browser.resize(390)
    inside = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert inside[0] <= inside[1]
    assert browser.problems() == []
