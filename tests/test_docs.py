"""README and docs do what they say: their Python blocks run, their links lead somewhere, the file tree is complete."""

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(p for p in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)#?([^)\s]*)\)")


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
    for target, section in LINK.findall(page.read_text()):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not section or section in sections(there), f"{target}#{section}"


def sections(page):
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_made_parts_of_the_readme_are_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "tools/readme.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_part_without_a_place_is_refused(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    render = importlib.import_module("readme").render
    assert render("a\n<!-- x -->\nold\n<!-- /x -->\nb", {"x": lambda: "new"}) == "a\n<!-- x -->\nnew\n<!-- /x -->\nb"
    for page in ("no place", "<!-- x -->\nbegun", "<!-- /x -->"):
        with pytest.raises(SystemExit, match="no place for 'x'"):
            render(page, {"x": lambda: "new"})


def test_no_large_files():
    assert [f for f in tracked() if (ROOT / f).stat().st_size > 2_000_000] == []


ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
SOURCE = ROOT / "src/softmax_rnn"


def part(name):
    """What architecture.md says between two marks."""
    return ARCHITECTURE.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]


def named(text):
    return set(re.findall(r"`((?:\w+/)*\w+\.py)`", text))


class Visited:
    """The files of the package in which a function is called."""

    def __init__(self):
        self.files = set()

    def trace(self, frame, event, argument, ours=f"{SOURCE}/"):  # of every call there is: as little as possible
        code = frame.f_code
        if (
            code.co_filename.startswith(ours) and code.co_flags & inspect.CO_OPTIMIZED
        ):  # not the body of a module or a class
            self.files.add(code.co_filename.removeprefix(ours))

    def __enter__(self):
        sys.setprofile(self.trace)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)


def test_the_way_of_a_call_is_the_one_that_is_written_down():
    """Every function that runs is in a file on one of the two lists, and every file on the lists has one that runs."""
    import torch

    import softmax_rnn as sr

    assert len(re.findall(r"^\d+\. ", part("call"), re.MULTILINE)) == len(named(part("call"))) <= 8
    q, k, v = torch.randn(3, 1, 2, 600, 4).unbind()
    sr.attention(q, k, v, "taylor2")  # whatever is imported and cached the first time
    with Visited() as visited:
        sr.attention(q, k, v, "taylor2")
    assert visited.files == named(part("call")) | named(part("beside the call"))
    assert f"calls functions in {len(visited.files)} files" in ARCHITECTURE


RUN = """
import sys
import softmax_rnn.lab.trainer, softmax_rnn.report.drawing  # what takes long to import, before every call is watched
from softmax_rnn import cli
from tests.test_docs import Visited
with Visited() as visited:
    assert cli.main(["reproduce", "quick", "--seeds", "1", "--out", sys.argv[1]]) == 0
    assert cli.main(["train", *sys.argv[2:]]) == 0
print(*visited.files)
"""
CALLED = ("models/", "slots/", "forms/", "backends/", "nn.py")  # what each step of training calls: the way of a call


@pytest.mark.slow
def test_the_way_of_a_run_is_the_one_that_is_written_down(tmp_path, monkeypatch):
    """From ``reproduce quick`` to its page, with results that are there already, and one run in the same process: what is called."""
    from softmax_rnn.lab.config import to_yaml
    from softmax_rnn.paper import plan
    from softmax_rnn.paper.scales import SCALES
    from softmax_rnn.tasks.recall import configs, first
    from tests.paper.synthetic import write_runs

    assert len(re.findall(r"^\d+\. ", part("run"), re.MULTILINE)) == len(named(part("run"))) <= 15
    monkeypatch.setenv("SOFTMAX_RNN_CACHE", str(tmp_path))
    scale, out, text = SCALES["quick"], tmp_path / "out", tmp_path / "text.txt"
    write_runs(out, scale, plan("quick", scale, 1), lambda cell: 3.0)
    for config in configs(*first(out)):
        config.folder.mkdir(parents=True)
        (config.folder / "config.yaml").write_text(to_yaml(config))
        (config.folder / "metrics.jsonl").write_text('{"step": 1, "tokens": 1, "event": "diverged"}\n')
    text.write_text("\n\n".join(f"word {n} and {n * n}" for n in range(500)))
    train = f"--preset tiny --tokenizer.vocab 300 --data.source {text} --train.steps 1 --run.root {tmp_path / 'runs'}"
    command = [sys.executable, "-c", RUN, str(out), *train.split()]
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()[-1]
    ways = named(part("call")) | named(part("beside the call"))
    files = {f for f in said.split() if not f.startswith(CALLED) and f not in ways}
    assert named(part("run")) <= files
    assert files == (named(part("run")) | named(part("beside the run"))) - ways
    assert f"call functions in {len(files)} files" in ARCHITECTURE


def imported(folder):
    """The other folders of the package that a folder's files import, at the top or inside of functions."""
    found = set()
    for path in (SOURCE / folder).rglob("*.py"):
        inside = path.relative_to(SOURCE).parts[:-1]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                above = inside[: len(inside) - node.level + 1]
                found |= {(*above, *(node.module or name.name).split("."))[0] for name in node.names}
    return {name for name in found if (SOURCE / name).is_dir()} - {folder}


@pytest.mark.parametrize(
    ("folder", "may"),
    {
        "backends": "",
        "slots": "backends",
        "forms": "backends slots",
        "models": "backends forms slots",
        "lab": "models slots tasks",
    }.items(),
)
def test_imports_go_one_way(folder, may):
    assert imported(folder) <= set(may.split())


def test_the_house_has_no_more_files_than_it_says():
    most = int(re.search(r"The source has at most (\d+) files", ARCHITECTURE)[1])
    assert len(list(SOURCE.rglob("*.py"))) <= most


def test_every_file_that_architecture_names_exists():
    for name in named(ARCHITECTURE):
        assert (SOURCE / name).exists() or (ROOT / name).exists() or name.startswith("test"), name


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


def test_the_reference_names_what_there_is():
    import pkgutil

    pages = list((ROOT / "docs/reference").glob("*.md"))
    names = [name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)]
    assert len(names) > 40
    assert [name for name in names if not (pkgutil.resolve_name(name).__doc__ or "").strip()] == []


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


@pytest.mark.slow
def test_the_table_of_presets_is_of_all_presets_and_made_from_the_runs():
    import yaml

    from softmax_rnn.slots.presets import PRESETS

    plan = yaml.safe_load((ROOT / "results/presets/sweep.yaml").read_text())
    assert set(PRESETS) <= set(plan["grid"]["model.mechanism"])
    spec = importlib.util.spec_from_file_location("presets", ROOT / "tools/presets.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    runs = module.read_packed(module.FOLDER)
    assert (module.FOLDER / "README.md").read_text() == module.table(runs)
