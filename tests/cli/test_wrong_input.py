"""Whatever a user can get wrong is one line on stderr and exit code 2, for every command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from softmax_rnn import cli

from .runs import a_run

Refused = Callable[..., str]
LOOP = "a: &a [*a]"
MANY = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture
def refused(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """As everywhere, in an empty folder in which no run is begun."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOFTMAX_RNN_CACHE", str(tmp_path / "cache"))

    def run(*argv: str) -> str:
        said = refused(*argv)
        assert not (tmp_path / "runs").exists()
        return said

    return run


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--seed", str(2**32)], "seed must be from 0 to 4,294,967,295"),
        (["--train.steps", "1e20"], "train.steps must be from 1 to 1,000,000,000"),
        (["--train.steps", "9" * 400], "train.steps must be a whole number"),
        (["--train.lr", "nan"], "train.lr must be a number, got 'nan'"),
        (["--train.lr", "inf"], "train.lr must be a number"),
        (["--data.split_seed", str(2**127)], "data.split_seed must be from"),
        (["--run.threads", "100000"], "run.threads must be from 1 to 1,024"),
        (["--name", "n" * 300], "name may have up to 200 letters"),
        (["--name", "é" * 150], "name may have up to 200 letters"),
        (["--model.overrides", "{hidden_size: 'x'}"], "hidden_size must be a whole number from 1"),
        (["--model.overrides", "{rms_norm_eps: [x]}"], "The model cannot be built"),
        (["--model.overrides", "{num_hidden_layers: 1000000000}"], "num_hidden_layers must be a whole number from 1"),
        (["--model.overrides", "{hidden_size: 1048576, intermediate_size: 1048576}"], "of memory"),
        (["--model.overrides", "["], "is not YAML"),
        (["--model.overrides", LOOP], "model.overrides must be a table"),
        (["--model.mechanism", "[softmax, 3]"], "model.mechanism must be a name or a table"),
        (["--model.mechanism", "{kernel: 3}"], ""),
        (["--model.size", "huge"], "Unknown model size 'huge'"),
        (["--model.size", "\x1b[2Jnano"], r"Unknown model size '\x1b[2Jnano'"),
        (["--data.source", ""], "The name of the corpus is empty"),
        (["--data.source", "\x1b]0;owned\x07"], r"\x1b]0;owned\x07"),
        (["--data.source", "a\udcffb"], "data.source must be text"),
        (["--tokenizer.source", ""], "No tokenizer at ''"),
        (["--run.sharded", "perhaps"], "run.sharded must be true or false"),
        (["--trian.steps", "3"], "did you mean train.steps"),
        (["--train", "[1]"], "train is a group of options"),
        (["--config", "/dev/null/x"], "Cannot read /dev/null/x"),
        (["--config", "."], "Cannot read .: Is a directory"),
    ],
)
def test_train_options(refused: Refused, options: list[str], says: str) -> None:
    assert says in refused("train", "--preset", "tiny", *options)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x00\xff\xfe binary", "is not text in UTF-8"),
        (b"\x00\x01", "is not YAML"),
        (LOOP.encode(), "contains itself"),
        (MANY.encode(), "is too large for a configuration"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b"{a: " * 100_000 + b"}" * 100_000, "nested too deeply"),
        (b"- " * 100_000, "nested too deeply"),
        (b"data: {source: null}", "data.source must be text, got None"),
        (b"run: {root: null}", "run.root must be text, got None"),
        (b"train: 3", "train is a group of options"),
        (b"3: 4", "has the key 3"),
        (b"seed: 1\ntrain: {lr: 1}\nseed: 2", "has 'seed' a second time in line 3: keep one"),
        (b"train: {lr: 1, lr: 2}", "has 'lr' a second time in line 1: keep one"),
        (b"seed: 2020-13-45", "is not YAML that can be used: month must be in 1..12"),
        (b"seed: 2020-10-10", "where text or a number belongs"),
        (b"preset: [a]", "Unknown preset ['a']"),
        (b"preset: {a: 1}", "Unknown preset"),
        (b"? [a, b]\n: c", "is not YAML"),
        (b"train.steps.more: 4", "train.steps must be a whole number"),
        (b'name: "a\\0b"', "name must be text"),
        (b'run: {root: "a\\0b"}', "run.root must be text"),
        (b"!!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)
def test_train_files(refused: Refused, tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "run.yaml").write_bytes(content)
    assert says in refused("train", "--config", "run.yaml")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff", "is not text in UTF-8"),
        (LOOP.encode(), "contains itself"),
        (b"base: [1]\ngrid: {seed: [0]}", "base must hold options"),
        (b"preset: [a]\ngrid: {seed: [0]}", "Unknown preset"),
        (b"grid: {3: [0]}", "has the key 3"),
        (b"grid: {seed: []}", "The grid has 0 runs"),
        (b"grid: {seed: [[1, 2]]}", "seed must be a whole number"),
        (b"grid: {train: [1]}", "train is a group of options"),
        (("grid: {" + ", ".join(f"x{i}: [0, 1]" for i in range(64)) + "}").encode(), "18,446,744,073,709,551,616 runs"),
        (b"grid: {run.root: [null]}", "run.root must be text"),
    ],
)
def test_sweep_files(refused: Refused, tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "grid.yaml").write_bytes(content)
    assert says in refused("sweep", "grid.yaml")
    assert says in refused("sweep", "grid.yaml", "--dry-run")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b"3\n", "Line 1 of"),
        ("a.jsonl", b'{"text": "x"}\n[1, 2]\n', "Line 2 of"),
        ("a.jsonl", b'{"text": 5}\n', "Line 1 of"),
        ("a.jsonl", b'{"text": ["x"]}\n', "Line 1 of"),
        ("a.jsonl", b'{"text": "\xff"}\n', "Line 1 of"),
        ("a.jsonl", b"[" * 100_000, "Line 1 of"),
        ("a.parquet", b"PAR1", "is not a readable parquet file"),
        ("a.txt", b" \n", "There is no text in text"),
        ("a.txt", b"two words", "is smaller than one row"),
        ("a.txt", b"a caf\xe9", "text/a.txt is not text in UTF-8 (byte 6)"),
        ("a.txt", "in UTF-16".encode("utf-16"), "text/a.txt is not text in UTF-8 (byte 1)"),
    ],
)
def test_corpus_files(refused: Refused, tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / name).write_bytes(content)
    assert says in refused("train", "--preset", "tiny", "--data.source", "text")


def test_more_runs_than_asked_for(refused: Refused) -> None:
    assert "does a pattern such as runs/name-* match several runs?" in refused("generate", "first-1", "first-2")
    assert "match several runs?" in refused("export", "first-1", "first-2", "out")


def test_a_prompt_that_is_no_text(refused: Refused) -> None:
    assert "The prompt is not text in UTF-8" in refused("generate", "nowhere", "--prompt", os.fsdecode(b"\xff"))


def test_a_parquet_file_with_numbers(refused: Refused, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": [1, 2]}), tmp_path / "a.parquet")
    assert "holds int, not text" in refused("train", "--preset", "tiny", "--data.source", "a.parquet")


@pytest.mark.parametrize("kind", ["broken link", "pipe"])
def test_what_is_no_file_in_a_corpus(refused: Refused, tmp_path: Path, kind: str) -> None:
    (tmp_path / "text" / "folder.txt").mkdir(parents=True)
    (tmp_path / "text" / "folder.txt" / "a.txt").write_text("fine")
    strange = tmp_path / "text" / "strange.txt"
    if kind == "pipe":
        os.mkfifo(strange)
    else:
        strange.symlink_to("nowhere")
    says = "not a regular file" if kind == "pipe" else "a broken link"
    assert f"strange.txt: it is {says}" in refused("train", "--preset", "tiny", "--data.source", "text")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--temperature", "1e-300"], "--temperature: must be 0, or a number from 0.01 to 100"),
        (["--temperature", "nan"], "--temperature"),
        (["--seed", str(2**70)], "--seed: must be a whole number from 0"),
        (["--max-new-tokens", "0"], "--max-new-tokens"),
        (["--top-k", "0"], "--top-k"),
        (["--chunk", "-1"], "--chunk"),
    ],
)
def test_generate_options(refused: Refused, options: list[str], says: str) -> None:
    assert says in refused("generate", "nowhere/at/all", *options)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["inspect", "m", "--text", "t", "--max-tokens", "0"], "--max-tokens"),
        (["inspect", "m", "--text", "t", "--tolerance", "nan"], "--tolerance"),
        (["inspect", "m", "--text", "t", "--threads", "100000"], "--threads"),
        (["inspect", "m", "--text", "/nowhere"], "Cannot read /nowhere"),
        (["inspect", "m", "--text", "/"], "Cannot read /: Is a directory"),
        (["bench", "ops", "--threads", "100000"], "--threads"),
        (["bench", "startup", "--quick", "--json", "/dev/null/x.json"], "/dev/null is a file"),
        (["reproduce", "all", "--seeds", "1000000", "--dry-run"], "--seeds"),
        (["reproduce", "quick", "--out", "/dev/null/out"], "Cannot write to /dev/null/out"),
        (["report", "/nowhere"], "/nowhere"),
        (["sweep", "x", "--minutes", "0"], "--minutes"),
        (["sweep", "x", "--cpus", "0"], "--cpus"),
        (["list", "--nope\x1b[31m"], r"\x1b[31m"),
    ],
)
def test_other_commands(refused: Refused, argv: list[str], says: str) -> None:
    assert says in refused(*argv)


def test_a_full_or_unwritable_out_is_found_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from softmax_rnn.files import check_folder

    (tmp_path / "file").write_text("")
    for place, says in ((tmp_path / "file", "is a file"), (tmp_path / "file" / "out", "Not a directory")):
        with pytest.raises(Exception, match=says):
            check_folder(place, "--out")
    check_folder(tmp_path / "new" / "out", "--out")
    assert not (tmp_path / "new").exists()


def test_list_runs_where_there_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place, code in (("/proc", 0), ("/nowhere", 2), (str(tmp_path), 0), ("a\x1b[2Jb", 2)):
        assert cli.main(["list", "--runs", place]) == code
        printed = capsys.readouterr()
        assert (printed.err if code else printed.out)[:-1].isprintable()


def test_one_damaged_run_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path / "good")
    a_run(tmp_path / "also\x1b[2Jgood")
    harms: dict[str, tuple[str, bytes | None, str]] = {
        "byte": ("metrics.jsonl", b'{"step": 1, "tokens": 1}\n{"st\xffp": 2}\n', "line 2 of metrics.jsonl is not JSON"),
        "blank": ("metrics.jsonl", b'{"step": 1, "tokens": 1}\n\n', "line 2 of metrics.jsonl is empty"),
        "list": ("metrics.jsonl", b"[1]\n", "line 1 of metrics.jsonl has no step and tokens"),
        "early": ("metrics.jsonl", b'{"step": 1, "tokens": 1, "event": "done"}\n', "it says done at step 1 of 20"),
        "config": ("config.yaml", b"\xff", "config.yaml is not that of a run"),
        "other": ("config.yaml", b"a: 1", "config.yaml is not that of a run"),
        "loop": ("config.yaml", LOOP.encode(), "config.yaml is not that of a run"),
    }
    for name, (file, content, _) in harms.items():
        a_run(tmp_path / name, **{file: content})
    assert cli.main(["list", "--runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    assert out.count(" done    20/20 ") == 2
    assert out.count(" damaged ") >= len(harms)
    for name, (_, _, says) in harms.items():
        assert f"{tmp_path / name} is damaged ({says})" in out


@pytest.mark.parametrize("name", ["é", "-a", "a..b", "x" * 97])
def test_what_no_hub_could_have_does_not_exist(refused: Refused, name: str) -> None:
    assert "does not exist" in refused("generate", "--prompt", "x", "--", name)


@pytest.mark.parametrize("what", ["missing", "empty", "a pipe"])
def test_a_run_whose_metrics_are_gone_is_damaged(
    tmp_path: Path, refused: Refused, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    for name in ("one", "two"):
        a_run(tmp_path / name, {}, 2.0)
    metrics = tmp_path / "one" / "metrics.jsonl"
    (tmp_path / "one" / "checkpoint-4").mkdir()
    (tmp_path / "one" / "checkpoint-4" / "metrics.jsonl").write_bytes(metrics.read_bytes())
    metrics.unlink()
    if what == "empty":
        metrics.write_text("")
    if what == "a pipe":
        os.mkfifo(metrics)
    assert cli.main(["list", "--runs", str(tmp_path)]) == 0
    assert "one is damaged" in capsys.readouterr().out
    assert "one is damaged" in refused("pack", str(tmp_path), str(tmp_path / "packed"))
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "page")]) == 0
    assert "one is damaged" in capsys.readouterr().err


def test_a_run_that_saved_before_its_first_row_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path / "young", {}, 2.0)
    (tmp_path / "young" / "metrics.jsonl").unlink()
    (tmp_path / "young" / "checkpoint-4").mkdir()
    (tmp_path / "young" / "checkpoint-4" / "metrics.jsonl").write_text("")
    assert cli.main(["list", "--runs", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "unfinished" in printed
    assert "damaged" not in printed
