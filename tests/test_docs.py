"""README and docs do what they say: their Python blocks run, their links lead somewhere, the file tree is complete."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(p for p in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return out.split()


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda p: p.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(BLOCK.findall(page.read_text()))
    exec(compile(code, str(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_made_parts_of_the_readme_are_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "tools/readme.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_no_large_files():
    assert [f for f in tracked() if (ROOT / f).stat().st_size > 2_000_000] == []


def test_the_way_of_a_call_is_the_one_that_is_written_down():
    """Every file on the list is on the way, and nothing that computes is missing from it."""
    import torch

    import softmax_rnn as sr

    text = (ROOT / "docs/architecture.md").read_text()
    listed = set(
        re.findall(r"`((?:slots|forms|backends)?/?\w+\.py)`", text.split("<!-- call -->")[1].split("<!-- /call -->")[0])
    )
    assert len(re.findall(r"^\d+\. ", text.split("<!-- call -->")[1].split("<!-- /call -->")[0], re.MULTILINE)) <= 8
    seen = set()

    def trace(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if "softmax_rnn" in path.parts:
            seen.add("/".join(path.parts[path.parts.index("softmax_rnn") + 1 :]))

    q, k, v = torch.randn(3, 1, 2, 300, 4).unbind()
    sr.attention(q, k, v, "taylor2")  # whatever is imported and cached the first time
    sys.setprofile(trace)
    try:
        sr.attention(q, k, v, "taylor2")
    finally:
        sys.setprofile(None)
    helpers = {"_shapes.py", "__init__.py", "errors.py", "state.py", "slots/base.py", "slots/denominators.py", "slots/feature_maps.py",
               "backends/__init__.py", "backends/operators.py", "backends/weights.py", "backends/powers.py", "forms/base.py",
               "forms/parallel.py", "forms/recurrent.py", "forms/delta.py", "slots/norms.py"}  # fmt: skip
    assert listed - seen - {"forms/__init__.py", "slots/kernels.py"} == set()
    assert seen - listed - helpers == set()


def test_every_file_that_architecture_names_exists():
    for name in re.findall(r"`((?:\w+/)?\w+\.py)`", (ROOT / "docs/architecture.md").read_text()):
        assert (ROOT / "src/softmax_rnn" / name).exists() or (ROOT / name).exists() or name.startswith("test"), name
