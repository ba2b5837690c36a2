"""What is on disk: missing seeds, interrupted runs and damaged files are said, never invented."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import yaml

from softmax_rnn import cli
from softmax_rnn.errors import UserError
from softmax_rnn.paper import cost, plan, read_options, results
from softmax_rnn.paper.figures import MAIN
from softmax_rnn.paper.results import Results
from softmax_rnn.paper.scales import SCALES, Cell
from softmax_rnn.paper.summary import build, summarise
from softmax_rnn.report.data import Spread
from softmax_rnn.report.drawing import draw

from .synthetic import write_plan, write_run, write_runs

QUICK = SCALES["quick"]
STEPS = QUICK.recipe("base").train.steps


def loss(cell: Cell) -> float:
    base = {"softmax": 3.0, "norm": 3.01, "gate": 3.1, "linear_elu": 3.4, "taylor0_norm": 3.6, "taylor2_norm": 3.1}
    return base[cell.mechanism] + 0.001 * cell.seed * (cell.mechanism == "norm") + 0.2 * cell.seed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_runs(tmp_path / "quick", QUICK, plan("quick", QUICK, seeds=2), loss)
    return tmp_path / "quick"


def test_a_whole_reproduction(folder: Path) -> None:
    report = summarise(folder)
    assert report.counts == {
        "holds": 3,
        "does not hold": 0,
        "inconclusive": 0,
        "not testable here": 0,
        "not run": 0,
    }
    assert {run.status for run in report.runs} == {"done"}
    (panel,) = report.figures[0].panels
    softmax = panel.curves[0]
    assert softmax.final_test == Spread(pytest.approx(3.1), pytest.approx(3.0), pytest.approx(3.2))
    assert softmax.test.mean[-1] == pytest.approx(3.1)
    assert softmax.train.high[-1] - softmax.train.low[-1] == pytest.approx(0.2)
    assert json.loads(report.text()) == report.plain()


def test_a_missing_seed_is_named(folder: Path) -> None:
    gone = QUICK.config(Cell("norm", QUICK.main, seed=1), folder / "runs").folder
    (gone / "config.yaml").unlink()
    report = summarise(folder)
    claim = next(c for c in report.claims if c.name == "linear_worse_than_norm")
    assert claim.verdict == "inconclusive"
    assert claim.missing == ["norm on tunes, base, seed 1 (missing)"]
    assert "without seed 1" in str(claim.tests[0].note)
    norm = next(c for c in report.figures[0].panels[0].curves if c.mechanism == "norm")
    assert (norm.seeds, norm.missing) == ([0], [1])


@pytest.mark.parametrize(
    ("file", "damage", "status", "note"),
    [
        (
            "metrics.jsonl",
            lambda text: text[:-60],
            "unfinished",
            f"stopped at step {STEPS} of {STEPS}",
        ),  # the end was cut off
        ("metrics.jsonl", lambda text: text[: len(text) // 2], "unfinished", "stopped at step"),
        ("metrics.jsonl", lambda text: "", "unfinished", f"stopped at step 0 of {STEPS}"),
        ("metrics.jsonl", lambda text: '{"a": 1}\n' + text, "damaged", "has no step and tokens"),
        ("metrics.jsonl", lambda text: text.replace("test_loss", "tost_loss"), "damaged", "no test loss"),
        (
            "metrics.jsonl",
            lambda text: text.splitlines()[0] + '\n{"step": 5, "tokens": 9, "event": "done"}\n',
            "damaged",
            f"says done at step 5 of {STEPS}",
        ),
        ("config.yaml", lambda text: text[:40] + "\x00: [", "damaged", "not that of a run"),
        ("config.yaml", lambda text: text[: text.index("train:")], "damaged", "not that of a run"),
        ("config.yaml", lambda text: "", "damaged", "not that of a run"),
    ],
)
def test_half_written_files_are_seen(folder: Path, file: str, damage, status: str, note: str) -> None:
    cell = Cell("softmax", QUICK.main, seed=0)
    path = QUICK.config(cell, folder / "runs").folder / file
    path.write_text(damage(path.read_text()))
    planned = Results(QUICK, folder, [0, 1]).planned(cell)
    assert planned.status == status
    assert note in str(planned.note)
    assert planned.final("test_loss") is None
    report = summarise(folder)
    assert any(run.status == status and note in str(run.note) for run in report.runs)
    (claim,) = (claim for claim in report.claims if claim.name == "linear_clearly_worse")
    assert claim.verdict != "holds"


def test_a_diverged_run_has_a_hole_not_a_number(folder: Path, tmp_path: Path) -> None:
    run = QUICK.config(Cell("linear_elu", QUICK.main, seed=0), folder / "runs").folder / "metrics.jsonl"
    rows = [json.loads(line) for line in run.read_text().splitlines()]
    rows[-2]["test_loss" if "test_loss" in rows[-2] else "train_loss"] = None
    rows[-1]["event"] = "diverged"
    run.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = summarise(folder)
    linear = next(c for c in report.figures[0].panels[0].curves if c.mechanism == "linear_elu")
    assert None in linear.test.mean + linear.train.mean
    assert linear.final_test is not None
    assert linear.final_test.low == pytest.approx(3.6)  # seed 1 alone
    assert draw(report.figures, tmp_path / "figures")


def test_nothing_run_draws_nothing(tmp_path: Path) -> None:
    write_plan(tmp_path, SCALES["cpu"], 3)
    report = summarise(tmp_path)
    assert report.counts["not run"] == len(report.claims)
    assert draw(report.figures, tmp_path / "figures") == []


def test_a_claim_may_have_more_seeds_than_the_rest(tmp_path: Path) -> None:
    quick = SCALES["quick"]
    cells = [Cell(name, "tunes", seed=seed) for name in ("softmax", "norm", "linear_elu") for seed in range(4)]
    noisy = {0: 0.0, 1: 0.4, 2: 0.5, 3: 0.45}  # with two seeds nobody knows
    write_runs(tmp_path, quick, cells, lambda cell: 3 + noisy[cell.seed] * (cell.mechanism == "linear_elu"))
    (tmp_path / "plan.json").unlink()
    results.write_plan(tmp_path, results.Plan(quick, 2))
    before = {claim.name: claim for claim in summarise(tmp_path).claims}
    assert before["linear_clearly_worse"].tests[0].seeds == [0, 1]
    results.write_plan(tmp_path, results.Plan(quick, 2, {"linear_clearly_worse": 4}))
    results.write_plan(tmp_path, results.Plan(quick, 2, {"linear_clearly_worse": 3}))  # never fewer
    results.write_plan(tmp_path, results.Plan(quick, 2))
    report = summarise(tmp_path)
    after = {claim.name: claim for claim in report.claims}
    assert after["linear_clearly_worse"].tests[0].seeds == [0, 1, 2, 3]
    assert after["linear_worse_than_norm"].tests[0].seeds == [0, 1]
    assert len(after["linear_clearly_worse"].runs) == 8
    curve = next(c for c in report.figures[0].panels[0].curves if c.mechanism == "softmax")
    assert curve.seeds == [0, 1]  # figures show the seeds that all have
    assert any("linear_clearly_worse --seeds 4" in command for command in report.commands)
    # The same command again, without --seeds, asks for what is planned.
    options = read_options(["linear_clearly_worse", "--scale", "cpu", "--out", str(tmp_path / "new")])
    assert options.seeds == 3
    assert options.plan.more == {}


def test_a_figure_may_have_more_seeds_than_the_rest(tmp_path: Path) -> None:
    """More seeds of one figure leave the others decided: before, they were asked for as many, and had lost their verdicts."""
    cpu, folder = SCALES["cpu"], tmp_path / "cpu"
    cells = {*plan("fig2", cpu, 1), *plan("fig4", cpu, 1), *plan("fig3", cpu, 2)}
    write_runs(folder, cpu, cells, lambda cell: 3.0)

    def ask(*words: str) -> Namespace:
        options = read_options([*words, "--scale", "cpu", "--out", str(folder)])
        results.write_plan(folder, options.plan)
        return options

    (folder / "plan.json").unlink()
    assert ask("fig2", "--seeds", "1").seeds == 1  # the first figure says how many all have
    assert ask("fig3", "--seeds", "2").seeds == 2
    assert ask("ranking_kept_larger").seeds == ask("fig3").seeds == 2
    assert ask("fig2").seeds == ask("norm_matches_softmax").seeds == 1
    there = results.read_plan(folder)
    assert (there.seeds, there.more) == (1, {"fig3": 2})
    report = summarise(folder)
    seeds = {claim.name: claim.tests[0].seeds for claim in report.claims}
    assert (seeds["norm_matches_softmax"], seeds["ranking_kept_larger"]) == ([0], [0, 1])
    drawn = {figure.name: figure.panels[0].curves[0] for figure in report.figures}
    assert (drawn["fig2"].seeds, drawn["fig3"].seeds) == ([0], [0, 1])
    assert not any(drawn[name].missing for name in ("fig2", "fig3", "fig4"))
    assert any("fig3 --scale cpu --seeds 2" in command for command in report.commands)
    assert ask("all", "--seeds", "2").seeds == 2
    assert results.read_plan(folder) == results.Plan(cpu, 2)


def test_the_night_has_one_figure_and_decides_nothing(tmp_path: Path) -> None:
    night = SCALES["night"]
    write_runs(tmp_path, night, plan("fig2", night, 1), lambda cell: 3.0 + 0.2 * (cell.mechanism == "gate"))
    report = summarise(tmp_path)
    assert [figure.name for figure in report.figures] == ["fig2"]
    assert [curve.mechanism for curve in report.figures[0].panels[0].curves] == [*MAIN, "norm_small"]
    assert report.claims == []
    assert "one seed" in report.setting
    assert "4.7 million parameters" in report.setting
    assert round(cost(night.config(Cell("norm", "torch"), tmp_path)).parameters / 1e6, 1) == 4.7
    assert [file.name for file in draw(report.figures, tmp_path / "figures")] == ["fig2.svg"]
    assert build(tmp_path) == 0
    with pytest.raises(UserError, match="no figure 'fig3'"):
        plan("fig3", night, 1)


@pytest.mark.parametrize("more", [{"norm_matches_softmax": 0}, {"norm_matches_softmax": "six"}, 5])
def test_a_damaged_plan_of_more_seeds(tmp_path: Path, more: object) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"scale": "cpu", "seeds": 3, "more": more}))
    with pytest.raises(UserError, match="damaged"):
        results.read_plan(tmp_path)


def test_figures_are_the_same_for_the_same_data(folder: Path, tmp_path: Path) -> None:
    report = summarise(folder)
    first, second = draw(report.figures, tmp_path / "a"), draw(report.figures, tmp_path / "b")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    assert "softmax" in first[0].read_text()
    assert first[0].with_suffix(".pdf").stat().st_size > 1000


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "has no plan.json"),
        ("{", "damaged"),
        ('{"scale": "cpu"}', "damaged"),
        ('{"scale": "huge", "seeds": 1}', "damaged"),
        ("[]", "damaged"),
    ],
)
def test_a_folder_that_is_no_reproduction(
    tmp_path: Path, content: str | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "plan.json").write_text(content)
    with pytest.raises(UserError, match=says):
        summarise(tmp_path)
    assert cli.main(["report", str(tmp_path)]) == 2
    assert ("There are no runs in" if content is None else says) in capsys.readouterr().err
    assert not (tmp_path / "summary.json").exists()


def test_nothing_to_report_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report"]) == 2
    assert "Nothing to report on" in capsys.readouterr().err


def test_more_spikes_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path, QUICK, Cell("gate", "tunes"), 3.0, spikes=3)
    assert Results(QUICK, tmp_path, [0]).final(Cell("gate", "tunes"), "spikes") == 3


def test_packed_results_say_the_same(folder: Path, tmp_path: Path) -> None:
    """Claims and report read both forms: same verdicts, same curves, same runs."""
    unfinished = QUICK.config(Cell("linear_elu", QUICK.main, seed=1), folder / "runs").folder / "metrics.jsonl"
    unfinished.write_text(unfinished.read_text()[:-60])
    assert cli.main(["pack", str(folder), str(tmp_path / "packed")]) == 0
    plain, packed = summarise(folder), summarise(tmp_path / "packed")
    assert packed.figures[0].panels == plain.figures[0].panels
    assert packed.figures[0].command.endswith("--out out/quick")  # not into what is kept
    assert [(c.name, c.verdict, c.tests) for c in packed.claims] == [(c.name, c.verdict, c.tests) for c in plain.claims]
    assert [run for run in packed.runs if run.status == "done"] == [run for run in plain.runs if run.status == "done"]
    assert [run.status for run in packed.runs].count("missing") == 1  # what has not ended is not packed


def test_packed_runs_are_not_run_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Packed results in the folder count, so that a plan goes on from committed ones."""
    assert cli.main(["pack", str(folder), str(folder)]) == 0
    shutil.rmtree(folder / "runs")
    assert cli.main(["reproduce", "quick", "--out", str(folder), "--dry-run"]) == 0
    assert "10 runs, 10 of them done" in capsys.readouterr().out


def test_a_run_from_before_an_option_existed_is_recognised(folder: Path) -> None:
    """An option that did not exist then has its default now; another value is another run."""
    cell = Cell("norm", QUICK.main, seed=0)
    file = QUICK.config(cell, folder / "runs").folder / "config.yaml"
    config = yaml.safe_load(file.read_text())
    del config["train"]["schedule_steps"], config["data"]["max_tokens"]
    file.write_text(yaml.safe_dump(config))
    file.parent.rename(file.parent.with_name(f"{cell.name}-0123456789"))  # whose hash was another
    assert Results(QUICK, folder, [0]).planned(cell).status == "done"
    config["train"]["lr"] = 0.5
    (folder / "runs" / f"{cell.name}-0123456789" / "config.yaml").write_text(yaml.safe_dump(config))
    assert Results(QUICK, folder, [0]).planned(cell).status == "missing"


def test_a_mechanism_written_out_with_fewer_fields_is_recognised(tmp_path: Path) -> None:
    cpu, cell = SCALES["cpu"], Cell("rms_free", "sotu")
    file = write_run(tmp_path, cpu, cell, 3.0) / "config.yaml"
    config = yaml.safe_load(file.read_text())
    del config["model"]["mechanism"]["kernel"]["softcap"], config["model"]["mechanism"]["allow_signed"]
    file.write_text(yaml.safe_dump(config))
    assert Results(cpu, tmp_path, [0]).planned(cell).status == "done"
    config["model"]["mechanism"]["kernel"]["clamp"] = 7.0
    file.write_text(yaml.safe_dump(config))
    assert Results(cpu, tmp_path, [0]).planned(cell).status == "missing"


def test_a_page_of_packed_results_leaves_them_as_they_are(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    packed = tmp_path / "kept"
    cli.main(["pack", str(folder), str(packed)])
    before = {path.name: path.read_bytes() for path in packed.iterdir()}
    assert cli.main(["report", str(packed)]) == 0
    assert {path.name: path.read_bytes() for path in packed.iterdir()} == before
    assert (tmp_path / "out/kept-report/index.html").exists()
    assert cli.main(["report", str(packed), "--update"]) == 0
    assert (packed / "summary.json").read_text() == (tmp_path / "out/kept-report/summary.json").read_text()
    assert (packed / "figures/quick.svg").exists()
