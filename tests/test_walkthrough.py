"""A new user with the README alone: its commands and its code, in its order, on a text of their own.

The commands are read from the README and run as they stand there; only the model is made tiny, so that a run takes seconds.
Each step also has a page in docs, which the site's navigation names.
"""

from __future__ import annotations

import contextlib
import glob
import io
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from softmax_rnn import cli
from softmax_rnn.lab.progress import TrainingBar

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
TINY = shlex.split(
    "--preset tiny --tokenizer.vocab 300 --data.length 32 --train.steps 6 --train.eval_every 3 --run.save_every 2 --train.batch 2"
)
STEPS = ("train", "train", "list", "report", "generate", "export")
PAGES = {
    "train": "lab.md",
    "resume": "lab.md",
    "report": "lab.md",
    "generate": "models.md",
    "export": "models.md",
    "sdpa": "attention.md",
    "patch": "models.md",
    "reproduce": "paper.md",
    "inspect": "microscope.md",
}


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def commands() -> list[list[str]]:
    """What the section on training types, in order."""
    block = re.search(r"```\n(softmax-rnn train.*?)```", section("Train on your text"), re.DOTALL)
    assert block is not None
    return [shlex.split(line.partition(" #")[0])[1:] for line in block[1].splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the user works, with a text."""
    folder = tmp_path_factory.mktemp("user")
    lines = [f"{i} times {j} is {i * j}, said the teacher, and wrote it down." for i in range(40) for j in range(10)]
    (folder / "my.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("SOFTMAX_RNN_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="module")
def trained(place: Path) -> list[tuple[int, str]]:
    """The two runs, the first of them stopped with Ctrl-C and continued; exit codes and what was said."""
    words = typed(first_command("train"))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    step = TrainingBar.step
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(
                TrainingBar, "step", lambda bar, n: (step(bar, n), n == 3 and signal.raise_signal(signal.SIGINT))
            )
            stopped = run(words)
    finally:
        signal.signal(signal.SIGINT, before)
    return [stopped, run(words), run(typed(first_command("train", 1)))]


@pytest.fixture(scope="module")
def exported(trained: list[tuple[int, str]], place: Path) -> Path:
    assert run(typed(first_command("export")))[0] == 0
    return place / "out/second"


def run(words: list[str]) -> tuple[int, str]:
    """Exit code, and everything that was printed."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        return cli.main(words), said.getvalue()


def typed(words: list[str]) -> list[str]:
    """As the shell would pass them on, with a tiny model."""
    found = [name for word in words for name in (sorted(glob.glob(word)) if "*" in word else [word])]
    more = {"train": TINY, "generate": ["--max-new-tokens", "4"]}.get(words[0], [])
    return [*found, *more]


def first_command(name: str, which: int = 0) -> list[str]:
    return [c for c in commands() if c[0] == name][which]


def test_the_readme_has_these_steps() -> None:
    assert tuple(c[0] for c in commands()) == STEPS


@pytest.mark.slow
def test_own_text_is_trained_on_stopped_and_continued(trained: list[tuple[int, str]], place: Path) -> None:
    (stopped, said), (continued, _), (second, _) = trained
    assert (stopped, continued, second) == (130, 0, 0)
    assert "Stopped at step 3 of 6 and saved. To continue: softmax-rnn train" in said
    assert len(list((place / "runs").glob("*/metrics.jsonl"))) == 2


@pytest.mark.slow
def test_both_runs_are_listed_and_drawn(trained: list[tuple[int, str]], place: Path) -> None:
    code, listed = run(typed(first_command("list")))
    assert code == 0
    assert "softmax" in listed
    assert "norm" in listed
    assert run(typed(first_command("report")))[0] == 0
    page = (place / "runs/report/index.html").read_text()
    assert "first" in page
    assert "second" in page


@pytest.mark.slow
def test_the_model_writes(trained: list[tuple[int, str]]) -> None:
    code, said = run(typed(first_command("generate")))
    assert code == 0
    assert said.startswith("Once upon a time")


@pytest.mark.slow
def test_plain_transformers_opens_what_is_exported(exported: Path, place: Path) -> None:
    """The README's three lines, in a process that has loaded nothing yet."""
    assert (exported / "model.safetensors").exists()
    code = re.search(r"```py\n(.*?)```", section("Train on your text"), re.DOTALL)
    assert code is not None
    done = subprocess.run(
        [sys.executable, "-c", code[1] + "\nprint(model.config.mechanism)"], cwd=place, capture_output=True, text=True
    )
    assert done.stdout.strip() == "norm", done.stderr


@pytest.mark.slow
def test_own_module_and_gpt2(place: Path) -> None:
    """The README's Python, from the top to the section on Hugging Face."""
    names: dict[str, object] = {"__name__": "__main__"}
    for title in ("A 60-second example", "Use it in your model", "With Hugging Face"):
        for block in re.findall(r"```python\n(.*?)```", section(title), re.DOTALL):
            exec(block, names)
    assert isinstance(names["y"], torch.Tensor)
    assert "sr.sdpa(" in section("Use it in your model")
    assert "sr.patch(gpt2" in section("With Hugging Face")


@pytest.mark.parametrize("step", PAGES)
def test_every_step_has_its_page(step: str) -> None:
    page = ROOT / "docs" / PAGES[step]
    assert re.search(rf"\b{step}|continue" if step == "resume" else rf"\b{step}\b", page.read_text())
    config = (ROOT / "mkdocs.yml").read_text()
    assert PAGES[step] in str(yaml.safe_load(config)["nav"])


def test_the_readme_keeps_its_order() -> None:
    titles = re.findall(r"^## (.*)", README, re.MULTILINE)
    assert titles == [
        "Install",
        "A 60-second example",
        "Use it in your model",
        "With Hugging Face",
        "Train on your text",
        "Does the paper hold up?",
        "Look inside a model",
        "Speed",
        "Limits",
        "Links",
    ]
    assert "source .venv/bin/activate" in section("Install")
    assert len([line for line in section("Speed").splitlines() if line.startswith("| ") and "---" not in line]) == 6
