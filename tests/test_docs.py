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
