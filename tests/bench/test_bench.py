"""A miniature bench: shape and schema only, timings are never asserted."""

import json

import pytest

from softmax_rnn import UserError
from softmax_rnn.bench.main import PARTS, main, others, write
from softmax_rnn.bench.measure import Comparison, interleave
from softmax_rnn.bench.processes import above, in_new_process, peak_mb

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
    for entry in data["records"]:
        assert entry.keys() >= FIELDS
        assert entry["ours"] >= 0  # a small problem may fit into memory that the process has already
        assert entry["anchor"] > 0
        assert entry["met"] is entry["target"] is None
    drawn = {"ops": "time.svg", "decode": "decode.svg", "memory": "memory.svg"}
    if part in drawn:
        assert (tmp_path / "plots" / drawn[part]).stat().st_size > 1000
    said = capsys.readouterr().out
    assert "no target was judged" in said
    assert "missed" not in said.lower()


def test_competitors_take_turns():
    calls = []
    interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls == ["a", "b"] * 3


def test_a_comparison_knows_whether_its_target_is_met():
    comparison = Comparison("x", "", "y", 1.0, 4.0, 0.3)
    assert comparison.ratio == 0.25
    assert comparison.met is True
    assert "met" in str(comparison)
    assert Comparison("x", "", "y", 1.0, 2.0, 0.3).met is False
    assert Comparison("x", "", "y", 1.0, 4.0).met is None


def test_memory_is_that_of_a_fresh_process():
    ballast = bytearray(300 * 2**20)  # none of it is in the new process
    assert 0 < in_new_process(peak_mb) < peak_mb() - 100
    assert len(ballast)


def test_what_needs_no_memory_needs_none():
    assert above(peak_mb() + 1) == 0  # the system's own numbers may fall by some pages


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


def refused(*argv):
    with pytest.raises(UserError) as caught:
        main(["startup", "--quick", *argv])
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_places_that_cannot_be_written_are_refused_before_anything_runs(tmp_path):
    file = tmp_path / "file"
    file.write_text("[]")
    assert "--plot" in refused("--plot", str(file))
    assert "--json" in refused("--json", str(file / "bench.json"))
    assert "is not a file that bench wrote" in refused("--json", str(file))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
