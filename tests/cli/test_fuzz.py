"""Command lines and files that nobody would write on purpose: no traceback, no hang, exit code 0 or 2, one line if refused.

hypothesis draws options and their values, YAML and JSON, broken bytes and strange files; every command runs in this process.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from softmax_rnn import cli
from softmax_rnn.lab.config import RunConfig
from softmax_rnn.lab.options import all_options
from tests import PATIENCE

OPTIONS = [name for name, _, _ in all_options(RunConfig)]
WORDS = [
    "", " ", "0", "1", "2", "-1", "0.5", "1e-3", "1e20", "nan", "inf", "-inf", "1e-300", "99999999999999999999", "9" * 500,
    "null", "none", "true", "no", "yes", "x", "softmax", "norm", "gate", "taylor2", "linear_elu", "sofmax", "nano", "tiny",
    "bpe", "packed", "documents", "auto", "cpu", "bf16", "gated", "{", "}", "[", "[]", "{}", "{a: 1}", "[softmax, norm]",
    "{kernel: {type: Exp}}", "{kernel: 3}", "{type: [1]}", "{hidden_size: 16}", "{hidden_size: x}", "{vocab_size: 1}",
    "{num_attention_heads: 3}", "{head_dim: 7}", "{rope_parameters: 3}", "a: &a [*a]", "&a {a: *a}", "!!python/name:os.system",
    "\x1b[2J", "\u202e", "é", "名", "\udcff", "n" * 300, "a/b", "../x", "/", ".", "..", "~", "/dev/null", "/proc", "*", "[", "?",
    "text", "text/*.txt", "strange", "nowhere", "file.yaml", "file.json", "someone/something", "--seed", "-h", "=", "--",
]  # fmt: skip
word = st.sampled_from(WORDS)
# Every scalar that YAML knows, and containers of them.
scalar = st.one_of(
    word, st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8), st.just("softmax")
)
key = st.one_of(
    st.sampled_from([*OPTIONS, *(name.rpartition(".")[2] for name in OPTIONS), "train", "data", "run"]), word
)
tree = st.recursive(
    scalar, lambda t: st.one_of(st.lists(t, max_size=3), st.dictionaries(key, t, max_size=4)), max_leaves=12
)


class Hang(Exception):
    """A command did not end."""


@contextlib.contextmanager
def alarm() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ends_well(*argv: str) -> int:
    """Run a command; returns its exit code, 0 or 2."""
    out, err = io.StringIO(), io.StringIO()
    with alarm(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(list(argv))
        except SystemExit as left:  # --help
            code = int(left.code or 0)
    assert code in (0, 2), (argv, err.getvalue())
    if code == 2:
        lines = err.getvalue().splitlines()
        assert len(lines) == 1, (argv, lines)
        assert lines[0].isprintable(), (argv, lines)
        assert out.getvalue() == ""
    return code


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a small corpus and strange files, which is the working folder of every command."""
    folder = tmp_path_factory.mktemp("fuzz")
    draw = random.Random(0)
    words = ["".join(draw.choices("aeioutnsr", k=draw.randint(1, 6))) for _ in range(100)]
    (folder / "text").mkdir()
    for i in range(60):
        (folder / "text" / f"{i}.txt").write_text(" ".join(draw.choices(words, k=60)))
    (folder / "strange" / "folder.txt").mkdir(parents=True)
    (folder / "strange" / "bytes.txt").write_bytes(bytes(range(256)))
    os.mkfifo(folder / "strange" / "pipe.txt")
    before, environ = Path.cwd(), dict(os.environ)
    os.environ |= {"SOFTMAX_RNN_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    os.chdir(folder)
    yield folder
    os.chdir(before)
    os.environ.clear()
    os.environ.update(environ)


TRAIN = [
    "train", "--preset", "tiny", "--data.source", "text", "--data.length", "8", "--data.test_fraction", "0.2", "--tokenizer.vocab", "300",
    "--train.steps", "1", "--train.batch", "2", "--run.root", "out",
    "--model.overrides", "{hidden_size: 16, intermediate_size: 32, num_attention_heads: 2, num_hidden_layers: 1}",
]  # fmt: skip
pairs = st.lists(st.tuples(st.sampled_from(OPTIONS), word), min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=150)
@given(drawn=pairs)
def test_train(place: Path, drawn: list[tuple[str, str]]) -> None:
    ends_well(*TRAIN, *(f"--{name}={value}" for name, value in drawn))


@pytest.mark.slow
def test_train_really_trains(tmp_path: Path) -> None:
    """The command that the draws change is right by itself: in a process and a folder of its own, whatever they left behind."""
    (tmp_path / "text.txt").write_text("".join(f"{i} words and {i * i} more of them.\n" for i in range(2000)))
    command = [sys.executable, "-m", "softmax_rnn", *TRAIN, "--data.source", "text.txt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def write_yaml(file: Path, value: Any) -> None:
    with contextlib.suppress(yaml.YAMLError):
        file.write_bytes(yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "surrogatepass"))


@settings(max_examples=300)
@given(value=tree, extra=st.lists(word, max_size=1))
def test_configuration_files(place: Path, value: Any, extra: list[str]) -> None:
    write_yaml(place / "file.yaml", value)
    ends_well("train", "--config", "file.yaml", "--print-config", *extra)


@settings(max_examples=200)
@given(base=tree, grid=st.one_of(tree, st.dictionaries(key, st.lists(scalar, max_size=3), max_size=3)), preset=scalar)
def test_sweep_files(place: Path, base: Any, grid: Any, preset: Any) -> None:
    write_yaml(place / "file.yaml", {"base": base, "grid": grid, "preset": preset})
    ends_well("sweep", "file.yaml", "--dry-run")


@settings(max_examples=200)
@given(content=st.one_of(st.binary(max_size=60), st.text(alphabet="{}[]:&*!|>-,#'\"%@ \nab1", max_size=60)))
def test_bytes_as_yaml(place: Path, content: bytes | str) -> None:
    raw = content.encode() if isinstance(content, str) else content
    (place / "file.yaml").write_bytes(raw)
    ends_well("train", "--config", "file.yaml", "--print-config")
    ends_well("sweep", "file.yaml", "--dry-run")


COMMANDS: dict[str, list[str]] = {
    "list": ["--sizes", "--runs", "--help"],
    "sweep": ["--dry-run", "--jobs", "--slurm", "--minutes", "--processes", "--gpus", "--cpus", "--partition"],
    "generate": [
        "--prompt",
        "--mechanism",
        "--max-new-tokens",
        "--temperature",
        "--top-k",
        "--seed",
        "--chunk",
        "--stats",
    ],
    "inspect": [
        "--text",
        "--out",
        "--max-tokens",
        "--orders",
        "--tolerance",
        "--center",
        "--threads",
        "--layer-tokens",
    ],
    "report": ["--out"],
    "bench": ["--json", "--plot", "--quick", "--threads=0"],
    "reproduce": ["--seeds", "--scale", "--out", "--jobs", "--variant"],
}


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(sorted(COMMANDS)))
    argv = [name, *draw(st.lists(st.one_of(word, st.sampled_from(COMMANDS[name])), max_size=5))]
    # What would work for minutes is stopped where its options have been read.
    return [*argv, *({"bench": ["--threads=0"], "reproduce": ["--dry-run"], "sweep": ["--dry-run"]}.get(name, []))]


@settings(max_examples=300)
@given(argv=command_lines())
def test_command_lines(place: Path, argv: list[str]) -> None:
    ends_well(*argv)


@settings(max_examples=100)
@given(
    about=tree, name=st.sampled_from(["config.json", "plan.json", "config.yaml", "metrics.jsonl", "environment.json"])
)
def test_folders_with_strange_files(place: Path, about: Any, name: str) -> None:
    folder = place / "folder"
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    (folder / name).write_bytes(json.dumps(about).encode("utf-8", "surrogatepass") + b"\n")
    if name in ("metrics.jsonl", "environment.json"):
        (folder / "config.yaml").write_text("seed: 0\n")
    assert ends_well("list", "--runs", "folder") == 0
    assert ends_well("generate", "folder", "--prompt", "x", "--max-new-tokens", "1") == 2
    assert ends_well("report", "folder") == 2
