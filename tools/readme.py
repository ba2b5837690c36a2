"""Writes the parts of README.md and docs that are made from other files: folders and files, verdicts, measured speed, inspections.

python tools/readme.py            write
python tools/readme.py --check    say whether anything would change (exit code 1 if so)
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
BENCH = json.loads((ROOT / "results/bench/bench.json").read_text())
MAIN_CLAIMS = (
    "norm_matches_softmax",
    "gate_slightly_worse",
    "linear_clearly_worse",
    "more_orders_help",
    "order_10_matches_softmax",
    "any_norm_does",
)
FOLDERS = {
    "src/softmax_rnn": "the library",
    "src/softmax_rnn/slots": "what a mechanism is made of; each slot declares its tensors",
    "src/softmax_rnn/forms": "the equivalent ways to compute it",
    "src/softmax_rnn/backends": "three primitives, and what computes them",
    "src/softmax_rnn/backends/triton": "the primitives as kernels for NVIDIA cards",
    "src/softmax_rnn/models": "Llama with any mechanism, and other people's models",
    "src/softmax_rnn/lab": "training that survives anything",
    "src/softmax_rnn/tasks": "recall, copying, state tracking: generated tasks that show expressiveness",
    "src/softmax_rnn/frontier": "quality against memory and work, and claims of our own",
    "src/softmax_rnn/paper": "the paper's figures and claims, executable",
    "src/softmax_rnn/microscope": "how many orders a real model uses",
    "src/softmax_rnn/report": "the look of pages",
    "src/softmax_rnn/bench": "speed and memory, side by side",
    "examples": "short programs that run as they are",
    "tools": "for maintainers",
}


def _arxiv(who: str, number: str) -> tuple[str, str]:
    return who, f"https://arxiv.org/abs/{number}"


FIELD = {
    "softmax": ("Softmax attention", _arxiv("Vaswani et al. 2017", "1706.03762")),
    "norm": ("A vector norm in place of the denominator", _arxiv("Mongaras and Larson 2025", "2507.23632")),
    "gate": ("An output gate in place of the denominator", _arxiv("Mongaras and Larson 2025", "2507.23632")),
    "linear_elu": ("Linear attention", _arxiv("Katharopoulos et al. 2020", "2006.16236")),
    "linear_relu": ("ReLU linear attention, as in SANA", _arxiv("Xie et al. 2024", "2410.10629")),
    "linear_cosine": ("Cottention", _arxiv("Mongaras et al. 2024", "2409.18747")),
    "taylor2": ("Second-order Taylor attention, as in Based", _arxiv("Arora et al. 2024", "2402.18668")),
    "near2": ("Exact near by, a series beyond: Based in one layer", _arxiv("Arora et al. 2024", "2402.18668")),
    "off_by_one": (
        "Softmax with one more in its denominator",
        ("Miller 2023", "https://www.evanmiller.org/attention-is-off-by-one.html"),
    ),
    "sink": ("A learned sink per head, as in GPT-OSS", _arxiv("OpenAI 2025", "2508.10925")),
    "gated_attention": ("A sigmoid gate on every channel after softmax", _arxiv("Qiu et al. 2025", "2505.06708")),
    "fox": ("Forgetting Transformer", _arxiv("Lin et al. 2025", "2503.02130")),
    "wall": (
        "Softmax of channel-decayed scores: GLA at infinite order",
        _arxiv("Yang et al. 2023, order 1", "2312.06635"),
    ),
    "norm_decay": ("Norm with forgetting", _arxiv("Mongaras and Larson 2025", "2507.23632")),
    "mamba2": ("Mamba-2 (SSD): q = C, k = B, v = dt x, log_decay = A dt", _arxiv("Dao and Gu 2024", "2405.21060")),
    "mamba2_squared": ("2Mamba: the square of the score", _arxiv("Mongaras and Larson 2026", "2602.17363")),
    "retnet": ("RetNet, without its gate", _arxiv("Sun et al. 2023", "2307.08621")),
    "gla": ("Gated linear attention, without its gate", _arxiv("Yang et al. 2023", "2312.06635")),
    "deltanet": ("DeltaNet (unit keys)", _arxiv("Yang et al. 2024", "2406.06484")),
    "gated_deltanet": ("Gated DeltaNet (unit keys)", _arxiv("Yang et al. 2024", "2412.06464")),
    "kda": ("Kimi Delta Attention (unit keys)", _arxiv("Kimi Team 2025", "2510.26692")),
    "delta_softmax": (
        "The delta rule at infinite order, under a norm",
        _arxiv("Mongaras and Larson 2025", "2507.23632"),
    ),
    "power2": ("Power attention", _arxiv("Gelada et al. 2025", "2507.04239")),
    "taylorshift": ("TaylorShift", _arxiv("Nauen et al. 2024", "2403.02920")),
    "performer": ("Performer: positive random features", _arxiv("Choromanski et al. 2020", "2009.14794")),
    "rfa": ("Random Feature Attention", _arxiv("Peng et al. 2021", "2103.02143")),
    "cosformer": ("cosFormer", _arxiv("Qin et al. 2022", "2202.08791")),
}


def files(folder: str) -> list[Path]:
    """The tracked Python files directly in a folder."""
    out = subprocess.run(["git", "ls-files", folder], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / f for f in sorted(out.split()) if f.endswith(".py") and str(Path(f).parent) == folder]


def first_sentence(path: Path) -> str:
    """Of the module's docstring, without the full stop."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    line = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<!\beq)(?<!\bApp)(?<!\bsec)\. (?=[A-Z`])|[.:]$", line)[0]


def folders() -> str:
    """A line per folder."""
    return "```\n" + "\n".join(f"{folder + '/':<34} {what}" for folder, what in FOLDERS.items()) + "\n```"


def tree() -> str:
    """A table of files per folder."""
    parts = []
    for folder, what in FOLDERS.items():
        found = [f for f in files(folder) if f.name != "__init__.py"]
        rows = [f"| [{f.name}](../{f.relative_to(ROOT)}) | {first_sentence(f).replace('|', '&#124;')} |" for f in found]
        parts += [f"## {folder}", "", f"{what[0].upper()}{what[1:]}.", "", "| file | what |", "|---|---|", *rows, ""]
    return "\n".join(parts[:-1])


def mechanisms() -> str:
    """Every preset of the field: formula, tensors and state, from the values themselves; sources beside them."""
    import softmax_rnn as sr
    from softmax_rnn.forms.base import constant_state, moment_bytes
    from softmax_rnn.problem import Dims, Setting
    from softmax_rnn.slots.kernels import Near
    from softmax_rnn.state import readable_bytes

    lines = [
        "| name | system | formula | tensors beside q, k, v | state of a head, d = e = 64 |",
        "|---|---|---|---|---|",
    ]
    for name, (system, source) in FIELD.items():
        m = sr.mechanism(name)
        setting = Setting(m, Dims(1, 1, 1, 1, 1, 64, 64))
        size = "grows with the text" if constant_state(setting) is None else readable_bytes(moment_bytes(setting))
        if isinstance(m.kernel, Near):
            size += f" and {m.kernel.window} keys and values"
        tensors = ", ".join(f"`{x.name}` ({x.shape.replace(' ', ', ')})" for x in m.inputs if not x.optional) or "none"
        formula = str(m).replace("|", "&#124;")
        lines.append(f"| `{name}` | {system} [{source[0]}]({source[1]}) | `{formula}` | {tensors} | {size} |")
    return "\n".join(lines)


def targets() -> list[dict]:
    """The measured ratios that have a target, but for the choices of ``form="auto"``."""
    return [r for r in BENCH["records"] if r["target"] is not None and ": auto" not in r["name"]]


def bench() -> str:
    """The measured ratios, a line for each comparison."""
    groups: dict[tuple, list[dict]] = {}
    for r in targets():
        groups.setdefault((r["part"], r["anchor_name"], r["target"]), []).append(r)
    lines = [*bench_head(), "| ours | against | ours / theirs | target | met |", "|---|---|---|---|---|"]
    for (_, anchor, target), rows in groups.items():
        names = ", ".join(dict.fromkeys(r["name"].replace(",", "") for r in rows))
        low, high = (f"{pick(r['ratio'] for r in rows):.2f}" for pick in (min, max))
        met = sum(r["met"] for r in rows)
        ratio = low if low == high else f"{low} to {high}"
        count = f"{met} of {len(rows)}"
        lines.append(
            f"| {names} | {anchor} | {ratio} | ≤ {target:.2f} | {count if met == len(rows) else f'**{count}**'} |"
        )
    auto = [r for r in BENCH["records"] if ": auto" in r["name"]]
    good = sum(r["met"] for r in auto)
    return "\n".join(
        [*lines, "", f'`form="auto"` is within 1.3x of the best form at {good} of {len(auto)} measured points.']
    )


def bench_head() -> list[str]:
    about = BENCH["environment"]
    return [f"{about['cpu']}, {about['threads']} threads, torch {about['torch']}, {about['date']}: `make bench`.", ""]


def measurements() -> str:
    """The measured ratios, one by one."""
    lines = [*bench_head(), "| work | shape | against | ours / theirs | target | |", "|---|---|---|---|---|---|"]
    for r in targets():
        mark = "met" if r["met"] else "**missed**"
        shape = f"{r['shape']}{', ' + r['dtype'] if r['dtype'] not in ('float32', '-') else ''}"
        lines.append(
            f"| {r['name']} | {shape} | {r['anchor_name']} | {r['ratio']:.2f} | ≤ {r['target']:.2f} | {mark} |"
        )
    return "\n".join(lines)


def headline() -> str:
    """The main claims of the paper and what became of them at the laptop scale, with the loss curves."""
    found = summary("cpu")
    done = sum(run["status"] in ("done", "diverged") for run in found["runs"])
    if 2 * done < len(found["runs"]):  # until the longer scale has something to say
        where = "[docs/paper.md](docs/paper.md#verdicts)"
        note = f"A scale four times as long is being run ({done} of {len(found['runs'])} runs are done): {where}."
        old = summary("early")
        return "\n".join([*verdict_head(old), *verdict_lines(old, MAIN_CLAIMS), "", note])
    words = ", ".join(f"{many} {verdict}" for verdict, many in found["counts"].items() if many)
    lines = [*verdict_head(found), *verdict_lines(found, MAIN_CLAIMS), ""]
    return "\n".join(
        [*lines, f"All {len(found['claims'])} claims: {words}. [The whole table](docs/paper.md#verdicts)."]
    )


def verdicts() -> str:
    """Every claim at the laptop scale."""
    found = summary("cpu")
    return "\n".join([*verdict_head(found), *verdict_lines(found)])


def early() -> str:
    """Every claim at the scale of the first edition."""
    found = summary("early")
    return "\n".join([*verdict_head(found), *verdict_lines(found)])


def summary(scale: str) -> dict:
    """The committed results of a scale."""
    return json.loads((ROOT / "results" / scale / "summary.json").read_text())


def verdict_head(found: dict) -> list[str]:
    """What was run, and how much of it is done."""
    done = sum(run["status"] in ("done", "diverged") for run in found["runs"])
    progress = "" if done == len(found["runs"]) else f" **{done} of {len(found['runs'])} runs are done so far.**"
    return [found["setting"] + progress, "", "| section | claim | verdict | measured |", "|---|---|---|---|"]


def verdict_lines(found: dict, only: Sequence[str] | None = None) -> list[str]:
    """A line of a table for each claim."""
    lines = []
    for claim in found["claims"]:
        if only is None or claim["name"] in only:
            decided = claim["verdict"] in ("holds", "does not hold")
            mark = f"**{claim['verdict']}**" if decided else claim["verdict"]
            section = f"{claim['section']}, ours" if claim["ours"] else claim["section"]
            tests = [measured(test) for test in claim["tests"] if test["verdict"] != "not run"]
            lines.append(f"| {section} | {claim['sentence']} | {mark} | {'<br>'.join(tests)} |")
    return lines


def measured(test: dict) -> str:
    """A test as a few words: the statistic, its interval over the seeds, and whether a match is an equivalence."""
    what = test["text"].removesuffix(", test loss").removesuffix(", spikes")
    if test["mean"] is None or test["verdict"] == "not testable here":
        return f"{what}: {test['note'] or test['verdict']}"
    interval = ", one seed" if test["low"] is None else f" [{test['low']:+.2f}, {test['high']:+.2f}]"
    unit = " spikes" if test["unit"].startswith("spikes") else ""
    beside = " (equivalent)" if test["equivalent"] == "holds" else ""
    return f"{what}: {test['mean']:+.2f}{interval}{unit}{beside}"


def inspections() -> str:
    """The committed inspections side by side."""
    from softmax_rnn.microscope.results import compare, folders, load

    return compare({f.name: load(f) for f in folders([ROOT / "results/microscope"])}).rstrip()


PARTS = {
    "docs/mechanisms.md": {"field": mechanisms},
    "README.md": {"folders": folders, "verdicts": headline, "bench": bench},
    "docs/paper.md": {"verdicts": verdicts, "early": early},
    "docs/files.md": {"tree": tree},
    "docs/performance.md": {"measurements": measurements},
    "docs/microscope.md": {"inspections": inspections},
}


def render(text: str, parts: dict) -> str:
    """A page with its made parts made anew."""
    for name, make in parts.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"\n<!-- /{name} -->")
        text = before + begin + make() + end + after
    return text


def main() -> int:
    old = []
    for name, parts in PARTS.items():
        before = (ROOT / name).read_text()
        after = render(before, parts)
        if before != after:
            old.append(name)
            if "--check" not in sys.argv:
                (ROOT / name).write_text(after)
    if "--check" in sys.argv:
        print(f"Out of date: {', '.join(old)}; python tools/readme.py" if old else "Everything is up to date.")
    return int("--check" in sys.argv and bool(old))


if __name__ == "__main__":
    sys.exit(main())
