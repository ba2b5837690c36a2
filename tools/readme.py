"""Writes the parts of README.md and docs that are made from other files: lists of files, verdicts, measured speed, inspections.

python tools/readme.py            write
python tools/readme.py --check    say whether anything would change (exit code 1 if so)
"""

import ast
import json
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import expressiveness
from expressiveness import measured

ROOT = Path(__file__).parents[1]
BENCH, AMD = (json.loads((ROOT / f"results/bench/{name}.json").read_text()) for name in ("bench", "amd"))
MAIN_CLAIMS = (
    "norm_matches_softmax",
    "gate_slightly_worse",
    "linear_clearly_worse",
    "order_10_matches_softmax",
    "any_norm_does",
)
FOLDERS = {
    "src/softmax_rnn": "the library",
    "src/softmax_rnn/slots": "what a mechanism is made of; each slot declares its tensors",
    "src/softmax_rnn/forms": "the equivalent ways to compute it",
    "src/softmax_rnn/backends": "three primitives, and what computes them",
    "src/softmax_rnn/backends/native": "the inner loops in C: what builds and calls them",
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


def _defines(path: Path) -> bool:
    """True if the file has functions or classes of its own."""
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in ast.parse(path.read_text()).body)


def tree() -> str:
    """A table of files per folder."""
    parts = []
    for folder, what in FOLDERS.items():
        found = [f for f in files(folder) if f.name != "__init__.py" or _defines(f)]
        rows = [f"| [{f.name}](../{f.relative_to(ROOT)}) | {first_sentence(f).replace('|', '&#124;')} |" for f in found]
        parts += [f"## {folder}", "", f"{what[0].upper()}{what[1:]}.", "", "| file | what |", "|---|---|", *rows, ""]
    return "\n".join(parts[:-1])


def mechanisms() -> str:
    """Every preset of the field: formula, tensors and state, from the values themselves; sources beside them."""
    import softmax_rnn as sr
    from softmax_rnn.forms.reference import constant_state, moment_bytes
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


STEP = "(1, 8, 4096, 64) forward+backward"
SPEED = (  # what the README shows: our work, its shape, what it is compared with, and the words for both
    ("norm", STEP, "SDPA", "`norm`, forward and backward, 4,096 tokens", "torch's SDPA"),
    (
        "taylor10",
        "(1, 8, 2048, 64) forward+backward",
        "dense",
        "`taylor10`, forward and backward, 2,048 tokens",
        "T × T tensors, as in the paper's code",
    ),
    (
        "taylor2 chunked d=16 e=64",
        "(1, 8, 16384) forward+backward",
        "SDPA d=64",
        "`taylor2` with keys of 16 channels, forward and backward, 16,384 tokens",
        "SDPA with keys of 64 channels",
    ),
    (
        "taylor2 step d=16 e=64",
        "(1, 8, 1) after 65536",
        "SDPA over a KV cache d=64",
        "`taylor2` with keys of 16 channels, one more token after 65,536",
        "SDPA over a cache",
    ),
    (
        "train norm",
        "laptop preset, per token",
        "bare loop, Llama sdpa",
        "`softmax-rnn train` with `norm`, everything included",
        "a bare loop over transformers' Llama",
    ),
)


def bench() -> str:
    """Five measured ratios in words, on both machines."""
    found = [{(r["name"], r["shape"], r["anchor_name"]): r["ratio"] for r in m["records"]} for m in (BENCH, AMD)]
    lines = [*bench_head(), "| work | compared with | Intel | AMD |", "|---|---|---|---|"]
    for *key, ours, theirs in SPEED:
        lines.append(f"| {ours} | {theirs} | {' | '.join(times(ratios[tuple(key)]) for ratios in found)} |")
    return "\n".join(lines)


def times(ratio: float) -> str:
    """A ratio of times in words."""
    return f"{1 / ratio:.0f} times as fast" if ratio < 0.5 else f"{ratio:.2f} times as long"


def bench_head() -> list[str]:
    return [f"{machine(BENCH)}; {machine(AMD)}: `make bench`.", ""]


def machine(record: dict) -> str:
    about = record["environment"]
    return f"{about['cpu']}, {about['threads']} threads, torch {about['torch']}, {about['date']}"


def measurements() -> str:
    """The measured ratios, one by one, on both machines."""

    def key(r: dict) -> tuple[str, ...]:
        return r["name"], r["shape"], r["anchor_name"], r["dtype"]

    def ratio(r: dict | None) -> str:
        return "" if r is None else f"{r['ratio']:.2f}" if r["met"] else f"**{r['ratio']:.2f}**"

    there = {key(r): r for r in AMD["records"]}
    lines = [f"{machine(BENCH)} (`bench.json`)  ", f"{machine(AMD)} (`amd.json`)  "]
    missed = [r for r in targets() if any(x is not None and not x["met"] for x in (r, there.get(key(r))))]
    names = dict.fromkeys(f"{r['name']} against {r['anchor_name']}" for r in missed)
    lines += ["Ours / theirs; **bold** is more than the target,"]
    lines += [f"missed on one machine or both by {', '.join(names)}.", ""]
    lines += ["| work | shape | against | target | Intel | AMD |", "|---|---|---|---|---|---|"]
    for r in targets():
        shape = f"{r['shape']}{', ' + r['dtype'] if r['dtype'] not in ('float32', '-') else ''}"
        cells = (r["name"], shape, r["anchor_name"], f"≤ {r['target']:.2f}", ratio(r), ratio(there.get(key(r))))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


COUNTED = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
    "not testable here": ("cannot be tested here", "cannot be tested here"),
    "not run": ("has not been run", "have not been run"),
}


CAPTIONS = {  # of the drawing that README shows
    "headline": "Final test losses. Left: how far above softmax a model ends when a part is replaced, the mean of three seeds and "
    "their range. Right: the series cut at an order, and the full mechanisms as lines.",
    "fig4": "Loss against tokens read: the mean over three seeds, and a band from the lowest to the highest.",
}
EARLY = " *(450 steps)*"  # marks what the longer scale has not run yet


def headline() -> str:
    """Five claims of the paper and what became of them, a line each; of the first edition's scale where the longer one has not run them."""
    longer, early = summary("cpu"), summary("early")
    decided = whole(longer)
    lines = []
    for name in MAIN_CLAIMS:
        found, mark = (longer, "") if name in decided else (early, EARLY)
        claim = next(claim for claim in found["claims"] if claim["name"] == name)
        lines.append(f"- **{claim['verdict']}**: {claim['sentence']}{mark}")
    theirs, ours = (counted([claim for claim in longer["claims"] if claim["ours"] is own]) for own in (False, True))
    left = len(longer["runs"]) - finished(longer)
    progress = f" So far {finished(longer)} of {len(longer['runs'])} runs are done." if left else ""
    marked = " What is marked is from runs of a quarter of that length." if any(EARLY in line for line in lines) else ""
    figure = "headline" if set(MAIN_CLAIMS) <= set(decided) else "fig4"
    return "\n".join(
        [
            longer["setting"] + progress + marked,
            "",
            *lines,
            "",
            f"Of the paper's {theirs}. Of our own {ours}. [The whole table](docs/paper.md#verdicts).{twenty_times()}",
            "",
            f"![Test loss of softmax and of what replaces it](results/cpu/figures/{figure}.svg)",
            "",
            f"*{CAPTIONS[figure]} The paper's own scale (300M parameters) is there as `--scale paper` and has not been run.*",
        ]
    )


def counted(claims: list[dict]) -> str:
    """35 claims, 19 hold, ..."""
    verdicts = [claim["verdict"] for claim in claims]
    many = {verdict: verdicts.count(verdict) for verdict in COUNTED if verdict in verdicts}
    words = (f"{count} {COUNTED[verdict][count > 1]}" for verdict, count in many.items())
    return f"{len(claims)} claims, {', '.join(words)}"


def twenty_times() -> str:
    """How the model twenty times as large ended, once it has been trained."""
    if not (ROOT / "results/night/summary.json").exists():
        return ""
    ends = ", ".join(f"{curve['label']} {curve['final_test']['mean']:.3f}" for curve in ended(summary("night")))
    about = "In a model twenty times as large, trained with one seed, which decides nothing, the final losses are"
    return f" {about} {ends} ([curves](docs/paper.md#a-model-twenty-times-as-large))."


def ended(found: dict) -> list[dict]:
    """The curves of that model that have ended."""
    return [curve for curve in found["figures"][0]["panels"][0]["curves"] if curve["final_test"]]


def whole(found: dict) -> list[str]:
    """The claims all of whose tests have every planned seed."""
    part = {
        claim["name"]
        for claim in found["claims"]
        for test in claim["tests"]
        if test["verdict"] == "not run" or "without seed" in (test["note"] or "")
    }
    return [claim["name"] for claim in found["claims"] if claim["name"] not in part]


def finished(found: dict) -> int:
    return sum(run["status"] in ("done", "diverged") for run in found["runs"])


def recall() -> str:
    """The drawing of recall, order by order, once it has been run."""
    drawing, page = "results/frontier/recall.svg", "docs/expressiveness.md"
    if not (ROOT / drawing).exists() or not (ROOT / page).exists():
        return ""
    about = "*Right answers on a recall task, order by order: two layers of width 32, 16k parameters."
    return f"![Recall, order by order]({drawing})\n\n{about} [Expressiveness]({page}) has more.*"


def verdicts() -> str:
    """Every claim at the laptop scale."""
    found = summary("cpu")
    return "\n".join([*verdict_head(found), *verdict_lines(found)])


def early() -> str:
    """Every claim at the scale of the first edition."""
    found = summary("early")
    return "\n".join([*verdict_head(found), *verdict_lines(found)])


def night() -> str:
    """The model twenty times as large, once it has been trained: losses on the way, and the curves."""
    if not (ROOT / "results/night/summary.json").exists():
        return ""
    found = summary("night")
    curves = ended(found)
    tokens = curves[0]["test"]["x"]
    shown = [len(tokens) * tenths // 10 - 1 for tenths in (1, 3, 5, 7, 10)]

    def losses(curve: dict) -> str:
        return " | ".join(f"{curve['test']['mean'][i]:.3f}" for i in shown)

    lines = [
        "## A model twenty times as large",
        "",
        f"{found['setting']} One seed decides nothing; it shows whether such a model goes the same way. `{found['commands'][0]}`",
        "",
        f"| test loss after | {' | '.join(f'{tokens[i] / 1e6:.1f} million tokens' for i in shown)} |",
        "|---" * (len(shown) + 1) + "|",
        *(f"| {curve['label']} | {losses(curve)} |" for curve in curves),
        "",
        "![Softmax and its replacements in a model of 4.7 million parameters](../results/night/figures/fig2.svg)",
        "",
    ]
    return "\n".join(lines)


def summary(scale: str) -> dict:
    """The committed results of a scale."""
    return json.loads((ROOT / "results" / scale / "summary.json").read_text())


def verdict_head(found: dict) -> list[str]:
    """What was run, and how much of it is done."""
    done = finished(found)
    progress = "" if done == len(found["runs"]) else f" **{done} of {len(found['runs'])} runs are done so far.**"
    return [found["setting"] + progress, "", "| section | claim | verdict | measured |", "|---|---|---|---|"]


def verdict_lines(found: dict, only: Sequence[str] | None = None) -> list[str]:
    """A line of a table for each claim."""
    lines = []
    usual = json.loads((ROOT / "results" / found["scale"] / "plan.json").read_text())["seeds"]
    for claim in found["claims"]:
        if only is None or claim["name"] in only:
            decided = claim["verdict"] in ("holds", "does not hold")
            mark = f"**{claim['verdict']}**" if decided else claim["verdict"]
            section = f"{claim['section']}, ours" if claim["ours"] else claim["section"]
            tests = [measured(test, usual) for test in claim["tests"] if test["verdict"] != "not run"]
            lines.append(f"| {section} | {claim['sentence']} | {mark} | {'<br>'.join(tests)} |")
    return lines


NORMS = {  # a norm -> the mechanisms that have it, with scores clamped and not
    "L2": ("norm_clamp", "norm"),
    "L2, ÷ √d": (None, "norm_small"),
    "L2, times √d": ("norm_large_clamp", "norm_large"),
    "RMS": ("rms", "rms_free"),
    "RMS, weight 1/√d": ("rms_small", "rms_small_free"),
    "layer": ("layer", "layer_free"),
    "layer, weight 1/√d": ("layer_small", "layer_small_free"),
}


def norms() -> str:
    """Final test losses of the norms, large and small, clamped and not."""
    losses = finals_of(summary("cpu"))
    lines = ["| norm | scores clamped at 5 | not clamped |", "|---|---|---|"]
    for name, pair in NORMS.items():
        lines.append(f"| {name} | {' | '.join(spread(losses, mechanism, 'base') for mechanism in pair)} |")
    return "\n".join(lines)


LAG = {  # what was tried -> corpus, setting, and the mechanisms: softmax, the norm, the norm ÷ √d
    "prose": ("sotu", "large", ("softmax", "norm", "norm_small")),
    "code": ("stdlib", "large", ("softmax", "norm", "norm_small")),
    "code, a gate on every head": ("stdlib", "large", ("softmax_gated", "norm_gated", None)),
    "code, half the learning rate": ("stdlib", "large-lr0.003", ("softmax", "norm", None)),
    "code, four layers": ("stdlib", "deep", ("softmax", "norm", None)),
}


def lag() -> str:
    """Final test losses in the larger of the small models, and what was tried to keep the norm from falling behind."""
    found, lines = summary("cpu"), ["| larger model | softmax | L2 norm | L2 norm ÷ √d |", "|---" * 4 + "|"]
    for what, (corpus, setting, names) in LAG.items():
        losses = finals_of(found, corpus)
        lines.append(f"| {what} | {' | '.join(spread(losses, name, setting) for name in names)} |")
    return "\n".join(lines)


# (mechanism, setting, seed) -> final test loss; infinite where a run diverged
Finals = dict[tuple[str, str, str], float]


def spread(losses: Finals, mechanism: str | None, setting: str) -> str:
    """Mean and range over the seeds there are; how many, where that is not the plan's number."""
    own = [loss for (name, where, _), loss in losses.items() if (name, where) == (mechanism, setting)]
    if not own:
        return "–" if mechanism is None else "not run"
    usual = json.loads((ROOT / "results/cpu/plan.json").read_text())["seeds"]
    many = "" if len(own) == usual else f", {len(own)} seeds"
    return f"{statistics.fmean(own):.3f} ({min(own):.3f} to {max(own):.3f}{many})"


def finals_of(found: dict, corpus: str = "sotu") -> Finals:
    """The runs that have ended on a corpus."""
    out = {}
    for run in found["runs"]:
        keys = run["keys"]
        if keys["corpus"] == corpus and run["status"] in ("done", "diverged"):
            loss = math.inf if run["status"] == "diverged" else run["test_loss"]
            out[keys["mechanism"], keys["setting"], keys["seed"]] = loss
    return out


def stability() -> str:
    """Loss against the learning rate, and the sensitivity, of every mechanism, over the seeds with all rates."""
    from softmax_rnn.paper.intervals import interval, sensitivity
    from softmax_rnn.paper.questions import FREE, STABLE
    from softmax_rnn.paper.scales import GRID, RATES, UNCLIPPED

    losses, worst = finals_of(summary("cpu")), math.log(1024)
    rows = [(name, GRID) for name in dict.fromkeys(STABLE + FREE)] + [(n, UNCLIPPED) for n in ("gate", "gate_free")]
    rates = [f"{rate:g}" for rate in RATES]
    lines = [f"| mechanism | {' | '.join(rates)} | sensitivity | seeds |", "|---" * (len(rates) + 3) + "|"]
    everywhere = sorted({seed for _, _, seed in losses}, key=int)
    for name, grid in rows:
        seeds = [[losses.get((name, str(setting), seed), math.nan) for setting in grid] for seed in everywhere]
        whole = [[min(x, worst) for x in seed] for seed in seeds if not any(map(math.isnan, seed))]
        if len(whole) < 2:
            continue
        mean, low, high = interval([sensitivity(seed, worst) for seed in whole])
        means = [f"{statistics.fmean(column):.2f}" for column in zip(*whole, strict=True)]
        called = f"`{name}`" + ("" if grid is GRID else ", gradients not clipped")
        lines.append(f"| {called} | {' | '.join(means)} | {mean:.2f} [{low:.2f}, {high:.2f}] | {len(whole)} |")
    return "\n".join(lines)


def inspections() -> str:
    """The committed inspections side by side."""
    from softmax_rnn.microscope.results import compare, folders, load

    return compare({f.name: load(f) for f in folders([ROOT / "results/microscope"])}).rstrip()


def compiled() -> str:
    """What the compiler made of the kernels, one row for each kernel and card: the worst of all dtypes, head sizes and masks."""
    record = json.loads((ROOT / "results/gpu/compile.json").read_text())
    lines = ["| kernel | card | compiled | registers | bytes spilled | KB shared, of |", "|---|---|---|---|---|---|"]
    cards = {
        int(c["architecture"].removeprefix("sm_")): (name, c["shared_bytes"])
        for name, c in record["environment"]["cards"].items()
    }
    names = dict.fromkeys((x["kernel"], x["architecture"]) for x in record["kernels"])
    for kernel, architecture in sorted(names, key=lambda x: x[1]):
        own = [x for x in record["kernels"] if (x["kernel"], x["architecture"]) == (kernel, architecture)]
        name, limit = cards[architecture]
        most = {key: max(x[key] for x in own) for key in ("registers", "spilled_bytes", "shared_bytes")}
        shared = f"{most['shared_bytes'] / 1024:.0f}, {limit // 1024}"
        lines.append(f"| {kernel} | {name} | {len(own)} | {most['registers']} | {most['spilled_bytes']} | {shared} |")
    return "\n".join(lines)


def roofline() -> str:
    """The bounds of the kernels, on paper."""
    from softmax_rnn.bench.roofline import table

    return table().rstrip()


PARTS = {
    "docs/expressiveness.md": expressiveness.PARTS,
    "docs/mechanisms.md": {"field": mechanisms},
    "README.md": {"verdicts": headline, "recall": recall, "bench": bench},
    "docs/paper.md": {
        "stability": stability,
        "norms": norms,
        "lag": lag,
        "verdicts": verdicts,
        "night": night,
        "early": early,
    },
    "docs/files.md": {"tree": tree},
    "docs/performance.md": {"measurements": measurements, "compiled": compiled, "roofline": roofline},
    "docs/microscope.md": {"inspections": inspections},
}


def render(text: str, parts: dict) -> str:
    """A page with its made parts made anew."""
    for name, make in parts.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not (begin and end):
            raise SystemExit(f"There is no place for {name!r}: <!-- {name} --> and <!-- /{name} -->, each on its line.")
        made = make()
        text = before + begin + made + "\n" * bool(made) + end + after
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
