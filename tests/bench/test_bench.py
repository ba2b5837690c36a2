"""A miniature bench: shape and schema only, timings are never asserted."""

import json

import pytest

from softmax_rnn.bench.main import PARTS, main, others, write
from softmax_rnn.bench.measure import Record, interleave

FIELDS = {"name", "shape", "dtype", "anchor_name", "ours", "anchor", "unit", "ratio", "target", "met", "spread", "note"}


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_every_part_runs_and_writes(part, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SOFTMAX_RNN_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "out" / "bench.json"
    assert main([part, "--quick", "--threads", "1", "--json", str(file), "--plot", str(tmp_path / "plots")]) == 0
    data = json.loads(file.read_text())
    assert data["environment"]["threads"] == 1
    assert data["records"]
    for record in data["records"]:
        assert record.keys() >= FIELDS
        assert record["ours"] >= 0  # a small problem may fit into memory that the process has already
        assert record["anchor"] > 0
        assert record["met"] in (True, False, None)
    drawn = {"ops": "time.svg", "decode": "decode.svg", "memory": "memory.svg"}
    if part in drawn:
        assert (tmp_path / "plots" / drawn[part]).stat().st_size > 1000
    assert "targets met" in capsys.readouterr().out


def test_competitors_take_turns():
    calls = []
    interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls == ["a", "b"] * 3


def test_a_record_knows_whether_its_target_is_met():
    record = Record("x", "", "float32", "y", 1.0, 4.0, "s", 0.3)
    assert record.ratio == 0.25
    assert record.met is True
    assert Record("x", "", "float32", "y", 1.0, 4.0, "s", None).met is None


def test_bad_thread_count(capsys):
    from softmax_rnn.cli import main as cli

    assert cli(["bench", "ops", "--threads", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_one_part_keeps_the_records_of_the_others(tmp_path):
    file = tmp_path / "bench.json"
    about = {"cpu": "x", "cores": 2, "threads": 1, "python": "3", "torch": "2"}
    write(file, [{"part": "train", "name": "a"}, {"part": "ops", "name": "b"}], about)
    assert [r["name"] for r in others(file, ["ops"], about)] == ["a"]
    assert [r["name"] for r in json.loads(file.read_text())["records"]] == ["b", "a"]  # in the order of the parts
    assert others(file, ["ops"], about | {"torch": "3"}) == []
