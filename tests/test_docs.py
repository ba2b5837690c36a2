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


def test_the_badges_say_what_the_project_says(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import picture

    assert (ROOT / "docs/img/badges.svg").read_text() == picture.badges()
    assert (ROOT / "docs/img/series.svg").read_text().startswith("<svg")


def test_every_make_target_is_explained():
    text = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)", text, re.MULTILINE)[1].split()
    assert [t for t in targets if not re.search(rf"^{t}:.*## \S", text, re.MULTILINE)] == []


def test_the_site_names_pages_that_are_there_or_made():
    import yaml

    made = {"CHANGELOG.md", "CONTRIBUTING.md", "results/LOG.md", "reference/commands.md", "decisions.md"}

    def pages(nav):
        return [p for item in nav for v in item.values() for p in (pages(v) if isinstance(v, list) else [v])]

    for page in pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]):
        notebook = ROOT / "docs" / page.replace(".md", ".ipynb")
        assert page in made or (ROOT / "docs" / page).exists() or notebook.exists(), page


def test_the_notebooks_were_run_and_are_small():
    import json

    for path in (ROOT / "docs/notebooks").glob("*.ipynb"):
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert all(cell["execution_count"] for cell in cells), path.name
        assert any(cell["outputs"] for cell in cells)
        assert path.stat().st_size < 500_000


def test_files_can_be_run_only_where_they_should_be():
    lines = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert [line.split("\t")[1] for line in lines.splitlines() if line.startswith("100755")] == [".ci/run"]


def test_ci_on_github_runs_what_ci_runs():
    import yaml

    flow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert {"run": ".ci/run"} in flow["jobs"]["all"]["steps"]
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(path.read_text())
