"""The made parts of docs/expressiveness.md: verdicts and tables, from results/frontier/frontier.json. ``readme.py`` writes them."""

import json
from collections import Counter
from functools import cache, partial
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def frontier() -> dict:
    """The committed results of the frontier."""
    return json.loads((ROOT / "results/frontier/frontier.json").read_text())


def claims() -> str:
    """The claims of our own, with what was measured."""
    lines = ["| claim | verdict | measured |", "|---|---|---|"]
    for claim in frontier()["claims"]:
        decided = claim["verdict"] in ("holds", "does not hold")
        mark = f"**{claim['verdict']}**" if decided else claim["verdict"]
        tests = [measured(test).replace(", accuracy", "") for test in claim["tests"] if test["verdict"] != "not run"]
        lines.append(f"| {claim['sentence']} | {mark} | {'<br>'.join(tests)} |")
    return "\n".join(lines)


def quality(point: dict) -> str:
    """Accuracy or loss of a point, with its 95% interval where several seeds count."""
    up, unit, digits = (100, "%", 0) if frontier()["arenas"][point["arena"]]["quantity"] == "accuracy" else (1, "", 3)
    mean = f"{up * point['mean']:.{digits}f}{unit}"
    if point["low"] is None or len(point["values"]) < 3:
        return mean
    return f"{mean} ± {up * (point['high'] - point['low']) / 2:.{digits}f}"


def recalled() -> str:
    """Accuracy by mechanism and key width."""
    points = {(p["mechanism"], p["key_dim"]): p for p in frontier()["points"] if p["arena"] == "recall" and p["conv"]}
    widths = sorted({width for _, width in points})
    lines = [f"| | {' | '.join(f'keys of {w}' for w in widths)} |", "|---|" + "---|" * len(widths)]
    for name in dict.fromkeys(name for name, _ in points):
        cells = [quality(points[name, w]) if (name, w) in points else "" for w in widths]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def arena(name: str) -> str:
    """All points of an arena, the best first."""
    from softmax_rnn.state import readable_bytes

    found = frontier()
    best_is_high = found["arenas"][name]["quantity"] == "accuracy"
    points = sorted((p for p in found["points"] if p["arena"] == name), key=lambda p: p["mean"], reverse=best_is_high)
    both = found["arenas"][name]["masked"] > 0 or name == "digits"
    if not points:
        return "Planned, and not run yet."
    lines = ["| mechanism | keys | convolution | mean | seeds |" + ("" if both else " state of a layer |")]
    lines.append("|---|---|---|---|---|" + ("" if both else "---|"))
    for p in points:
        size = readable_bytes(p["bytes"][0] + 1024 * p["bytes"][1]) + ("" if p["constant"] else " at 1,024 tokens")
        turned = f", beta up to {p['beta_max']:g}" if name == "parity" else ""
        seeds = ", ".join(f"{x:.0%}" if best_is_high else f"{x:.3f}" for x in p["values"])
        mean = f"{p['mean']:.0%}" if best_is_high else f"{p['mean']:.3f}"
        row = f"| `{p['mechanism']}`{turned} | {p['key_dim']} | {p['conv']} | {mean} | {seeds} |"
        lines.append(row + ("" if both else f" {size} |"))
    missing = sum(m.startswith(f"{name}-") for m in found["missing"])
    return "\n".join([*lines, *(["", f"{missing} more were planned and not run."] if missing else [])])


def measured(test: dict, usual: int | None = None) -> str:
    """A test as a few words: the statistic, its interval, how many seeds if unusual, whether a match is an equivalence, and its note."""
    what = test["text"].removesuffix(", test loss").removesuffix(", spikes")
    if test["mean"] is None or test["verdict"] == "not testable here":
        return f"{what}: {test['note'] or test['verdict']}"
    digits = 3 if test["unit"] == "of the answers" else 2
    interval = "" if test["low"] is None else f" [{test['low']:+.{digits}f}, {test['high']:+.{digits}f}]"
    unit = " spikes per run" if test["unit"].startswith("spikes") else ""
    beside = " (equivalent)" if test["equivalent"] == "holds" else ""
    more = f", {len(test['seeds'])} seeds" if usual is not None and len(test["seeds"]) > usual else ""
    note = f" ({test['note'].removeprefix('spikes: ')})" if test["note"] else ""
    return f"{what}: {test['mean']:+.{digits}f}{unit}{interval}{more}{beside}{note}"


def progress() -> str:
    """How much of the plan has been run."""
    found = frontier()
    done, left = Counter(p["arena"] for p in found["points"]), Counter(m.split("-")[0] for m in found["missing"])
    lines = ["| arena | points with all of their runs | planned |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {done[name]} | {done[name] + left[name]} |" for name in found["arenas"])])


PARTS = {
    "progress": progress,
    "claims": claims,
    "recalled": recalled,
    **{name: partial(arena, name) for name in ("forgetting", "parity", "text", "masked", "digits")},
}
