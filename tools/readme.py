"""Writes the parts of README.md that are made from other files: the file tree, the verdicts, the table of measured speed.

python tools/readme.py            write
python tools/readme.py --check    say whether anything would change (exit code 1 if so)
"""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FOLDERS = {
    "src/softmax_rnn": "the library",
    "src/softmax_rnn/ops": "attention in its equivalent forms",
    "src/softmax_rnn/models": "Llama with any mechanism, and other people's models",
    "src/softmax_rnn/lab": "training that survives anything",
    "src/softmax_rnn/paper": "the paper's figures and claims, executable",
    "src/softmax_rnn/microscope": "how many orders a real model uses",
    "src/softmax_rnn/report": "the look of pages",
    "src/softmax_rnn/bench": "speed and memory, side by side",
    "examples": "short programs that run as they are",
    "tools": "for maintainers",
}


def files(folder: str) -> list[Path]:
    """The tracked Python files directly in a folder."""
    out = subprocess.run(["git", "ls-files", folder], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / f for f in sorted(out.split()) if f.endswith(".py") and str(Path(f).parent) == folder]


def first_sentence(path: Path) -> str:
    """Of the module's docstring, without the full stop."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    line = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<!\beq)(?<!\bApp)\. |[.:]$", line)[0]


def tree() -> str:
    """A line per file."""
    lines = []
    for folder, what in FOLDERS.items():
        found = [f for f in files(folder) if f.name != "__init__.py"]
        if found:
            lines += [f"{folder + '/':<34} {what}"]
            lines += [f"  {f.name:<32} {first_sentence(f)}" for f in found]
    return "```\n" + "\n".join(lines) + "\n```"


def bench() -> str:
    """The measured ratios that have a target."""
    path = ROOT / "results/bench/bench.json"
    if not path.exists():
        return "Not measured yet."
    data = json.loads(path.read_text())
    about = data["environment"]
    head = f"{about['cpu']}, {about['threads']} threads, torch {about['torch']}, {about['date']}: `make bench`."
    lines = [head, "", "| work | shape | against | ours / theirs | target | |", "|---|---|---|---|---|---|"]
    for r in data["records"]:
        if r["target"] is None or r["name"].count(": auto"):
            continue
        mark = "met" if r["met"] else "**missed**"
        shape = f"{r['shape']}{', ' + r['dtype'] if r['dtype'] not in ('float32', '-') else ''}"
        lines.append(
            f"| {r['name']} | {shape} | {r['anchor_name']} | {r['ratio']:.2f} | ≤ {r['target']:.2f} | {mark} |"
        )
    auto = [r for r in data["records"] if ": auto" in r["name"]]
    if auto:
        good = sum(r["met"] for r in auto)
        lines += ["", f'`form="auto"` is within 1.3x of the best form at {good} of {len(auto)} measured points.']
    return "\n".join(lines)


def verdicts() -> str:
    """The claims of the paper and what became of them at the laptop scale."""
    path = ROOT / "results/cpu/summary.json"
    if not path.exists():
        return "Not run yet."
    data = json.loads(path.read_text())
    lines = [
        data["setting"],
        "",
        "| section | claim of the paper | verdict at this scale | measured |",
        "|---|---|---|---|",
    ]
    for claim in data["claims"]:
        mark = {"holds": "**holds**", "does not hold": "**does not hold**"}.get(claim["verdict"], claim["verdict"])
        lines.append(
            f"| {claim['section']} | {claim['sentence']} | {mark} | {'<br>'.join(map(measured, claim['tests']))} |"
        )
    return "\n".join(lines)


def measured(test: dict) -> str:
    """A test as a few words: the statistic, and its interval over the seeds."""
    what = test["text"].removesuffix(", test loss").removesuffix(", spikes")
    if test["mean"] is None:
        return f"{what}: {test['note'] or test['verdict']}"
    interval = "" if test["low"] is None else f" [{test['low']:+.2f}, {test['high']:+.2f}]"
    unit = " spikes" if test["unit"].startswith("spikes") else ""
    return f"{what}: {test['mean']:+.2f}{interval}{unit}"


def render(text: str) -> str:
    """README with its made parts made anew."""
    for name, make in (("tree", tree), ("verdicts", verdicts), ("bench", bench)):
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"\n<!-- /{name} -->")
        text = before + begin + make() + end + after
    return text


def main() -> int:
    before = README.read_text()
    after = render(before)
    if "--check" in sys.argv:
        print("README.md is up to date." if before == after else "README.md is out of date: python tools/readme.py")
        return int(before != after)
    README.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
