"""``softmax-rnn recall``: what it plans, how it reads runs, and one sentence for what does not fit."""

import json
from pathlib import Path

import pytest

from softmax_rnn.cli import main as cli
from softmax_rnn.lab.config import to_yaml
from softmax_rnn.tasks import recall
from softmax_rnn.tasks.findings import draw, table, write


def planned(*argv):
    return recall.plan(recall._parser().parse_args(argv))


def test_without_options():
    cells, setting = planned()
    assert [c.mechanism for c in cells] == ["linear_elu", "softmax", "norm", "taylor2", "taylor4"]
    assert {(c.source, c.length, c.key_dim) for c in cells} == {("task:mqar,pairs=16", 64, 16)}
    assert len(setting.rates) > 1  # one rate would measure luck


def test_every_combination():
    cells, _ = planned(
        "mqar", "forgetting,reassigned=2", "--pairs", "4", "20", "--orders", "1", "2", "--key-dim", "8", "16"
    )
    assert len(cells) == 2 * 2 * 2 * 2
    assert {c.mechanism for c in cells} == {"taylor1_norm", "taylor2"}
    lengths = {c.source: c.length for c in cells}
    assert lengths["task:mqar,pairs=4"] == 64
    assert lengths["task:mqar,pairs=20"] == 128  # 64 would be too short
    assert lengths["task:forgetting,reassigned=2,pairs=20"] == 128


def test_runs_differ_in_what_is_compared_alone():
    (cell,), setting = planned("parity", "--mechanisms", "norm", "--key-dim", "4", "--seeds", "2")
    one = setting.config(cell, 0.003, 1)
    assert (one.data.source, one.data.length, one.seed, one.train.lr) == ("task:parity", 32, 1, 0.003)
    assert (one.model.mechanism, one.model.overrides["key_dim"], one.model.overrides["conv"]) == ("norm", 4, 3)
    assert one.folder != setting.config(cell, 0.01, 1).folder


def pretend(config, accuracy, event="done"):
    """A run as the lab leaves it."""
    config.folder.mkdir(parents=True)
    (config.folder / "config.yaml").write_text(to_yaml(config))
    length, steps = config.data.length, config.train.steps
    numbers = {
        "test_accuracy": accuracy,
        f"test_accuracy_{2 * length}": accuracy / 2,
        f"test_accuracy_{4 * length}": 0.0,
    }
    rows = [{"step": steps, "test_loss": 1.0, **numbers, "tokens": 1}, {"step": steps, "event": event, "tokens": 1}]
    (config.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_best_rate_counts_and_intervals_are_over_seeds(tmp_path):
    cells, setting = planned(
        "--mechanisms", "softmax", "taylor2", "--seeds", "3", "--lr", "0.001", "0.01", "--out", str(tmp_path)
    )
    softmax, taylor2 = cells
    for seed in range(3):
        pretend(setting.config(softmax, 0.001, seed), 0.2)
        pretend(setting.config(softmax, 0.01, seed), 0.9 + 0.02 * seed)
        pretend(setting.config(taylor2, 0.001, seed), 0.5)
        if seed:
            pretend(setting.config(taylor2, 0.01, seed), 1.0, event="diverged")
    found = recall.collect(softmax, setting)
    assert found.lr == 0.01
    assert found.accuracy == pytest.approx(0.92)
    assert 0.8 < found.low < 0.9
    assert found.high <= 1.0
    assert found.longer == {128: pytest.approx(0.46), 256: 0.0}
    assert not found.constant
    assert (
        found.state_bytes == 64 * (16 + 64) * 4 + 2 * (2 * 16 + 64) * 4
    )  # keys and values, and two inputs of the convolution
    other = recall.collect(taylor2, setting)
    assert (other.lr, other.accuracy) == (0.001, 0.5)  # one run at the other rate is missing
    assert other.constant
    pretend(setting.config(taylor2, 0.01, 0), 1.0, event="diverged")
    assert recall.collect(taylor2, setting).rates[0.01] == [0.0, 0.0, 0.0]

    lines = table([found, other])
    assert lines[1].startswith("mqar,pairs=16, rows of 64 tokens (Arora")
    assert lines[3].split()[:3] == ["softmax", "16", "92.0%"]
    assert "20.75 KB, grows" in lines[3]
    assert lines[4].split()[0] == "taylor2"
    data = json.loads(write([found, other], {"steps": 600}, tmp_path / "recall.json").read_text())
    assert data["results"][0]["accuracy"] == pytest.approx(0.92)
    drawing = draw([found, other], tmp_path / "recall.svg").read_text()
    assert "taylor2, d=16" in drawing


def test_nothing_finished_is_nothing_found(tmp_path):
    (cell,), setting = planned("--mechanisms", "softmax", "--seeds", "2", "--out", str(tmp_path))
    assert recall.collect(cell, setting) is None
    pretend(setting.config(cell, 0.01, 0), 1.0)
    assert recall.collect(cell, setting) is None
    pretend(setting.config(cell, 0.01, 1), 1.0)
    assert recall.collect(cell, setting).accuracy == 1.0


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["mqra"], "did you mean mqar?"),
        (["mqar", "--pairs", "200"], "only 128 keys"),
        (["mqar", "--pairs", "16", "--length", "63"], "at least 64 tokens, got 63"),
        (["parity", "--pairs", "2"], "The task parity has no --pairs"),
        (["mqar,pairs=2", "--pairs", "2"], "has no --pairs, or says itself"),
        (["--mechanisms", "sofmax"], "did you mean softmax"),
        (["--orders", "two"], "whole number"),
        (["--key-dim", "5"], "key_dim must be even"),
        (["--lr", "nan"], "--lr"),
        (["--seeds", "0"], "--seeds"),
        (["--out", "/dev/null/x", "--steps", "1"], "/dev/null"),
    ],
)
def test_what_does_not_fit_is_one_sentence(argv, said, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused("recall", *argv)
    assert not list(tmp_path.iterdir())


def test_a_dry_run_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli(["recall", "--seeds", "1000", "--dry-run"]) == 0
    assert "5 models x 2 learning rates x 1000 seeds: 10,000 runs" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_from_the_command_to_a_drawing(tmp_path, capsys):
    out = tmp_path / "out"
    sizes = ["--steps", "4", "--hidden", "16", "--layers", "1", "--key-dim", "4", "--seeds", "1", "--lr", "0.01"]
    assert cli(["recall", "parity", "--mechanisms", "softmax", *sizes, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "one seed" in said
    assert str(out / "recall.svg") in said
    assert {p.name for p in Path(out).iterdir()} == {"runs", "recall.json", "recall.svg"}
