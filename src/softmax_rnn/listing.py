"""``softmax-rnn list``: the mechanisms, the model sizes, and the runs there are."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cli import Parser
from .errors import UserError, did_you_mean, printable


def main(argv: list[str]) -> int:
    """Print one of the three tables."""
    parser = Parser("softmax-rnn list", description="Mechanisms, model sizes, and runs with what differs between them.")
    parser.add_argument("--sizes", action="store_true", help="model sizes with their parameter counts")
    parser.add_argument(
        "--runs", nargs="*", metavar="FOLDER", help="finished and unfinished runs of these folders (default: runs)"
    )
    runs = parser.add_argument_group("with --runs")
    runs.add_argument("--sort", metavar="KEY", help="by a column or an option, such as test_loss or train.lr")
    runs.add_argument("--reverse", action="store_true", help="the largest first")
    runs.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="TEST",
        help="only these runs: KEY=VALUE, !=, <, >, <=, >=, for example status=done or 'test_loss<3'; may be repeated",
    )
    runs.add_argument("--json", action="store_true", help="everything about each run as JSON")
    options = parser.parse_args(argv)
    if options.runs is None and (options.sort or options.where or options.json):
        raise UserError("--sort, --where and --json are for runs: add --runs.")
    if options.sizes:
        lines = _sizes()
    elif options.runs is not None:
        lines = _runs(options.runs or ["runs"], options.sort, options.reverse, options.where, options.json)
    else:
        lines = _mechanisms()
    print("\n".join(lines))
    return 0


def _mechanisms() -> list[str]:
    from .slots.presets import AUTHORS, FAMILIES, mechanisms

    names: dict[str, list[str]] = {}
    for theirs, ours in AUTHORS.items():
        names.setdefault(ours, []).append(theirs)
    lines = [f"{'name':<18} mechanism"]
    for name, m in mechanisms().items():
        lines.append(f"{name:<18} {m}")
        lines += [f"{'':<18}   authors: {theirs}" for theirs in names.get(name, [])]
    lines += [
        "",
        "Families, N = 0, 1, 2, ...; with _norm under an l2 norm instead of the sum (needed where weights are signed):",
    ]
    lines += [
        f"{family + '{N}[_norm]':<18} Σ {make(2).text().replace('2(', 'N(', 1)} v / Σ w"
        for family, make in FAMILIES.items()
    ]
    return lines


def _sizes() -> list[str]:
    from .models import SIZES, parameter_count

    lines = [
        f"{'size':<8} {'layers':>6} {'hidden':>7} {'MLP':>6} {'heads':>6} {'parameters':>14}   (vocabulary 32,000)"
    ]
    for name, size in SIZES.items():
        shape = (size["num_hidden_layers"], size["hidden_size"], size["intermediate_size"], size["num_attention_heads"])
        lines.append("{:<8} {:>6} {:>7} {:>6} {:>6} {:>14,}".format(name, *shape, parameter_count(name)))
    return lines


SHOWN = ("mechanism", "source", "size", "seed")  # of every run; more options where they differ
RESULTS = ("status", "step", "train_loss", "test_loss")
TEST = re.compile(r"([\w.]+)(!=|<=|>=|=|<|>)(.*)", re.DOTALL)
TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


def _runs(folders: list[str], sort: str | None, reverse: bool, where: list[str], as_json: bool) -> list[str]:
    from .lab.store import runs_table

    missing = [folder for folder in folders if folder != "runs" and not Path(folder).exists()]
    if missing:
        raise UserError(f"There is no folder {missing[0]}.")
    runs = [run for folder in folders for run in runs_table(folder)]
    for test in where:
        runs = [run for run in runs if _passes(run, test, runs)]
    if sort is not None:
        _check_key(sort, runs)
        known = [run for run in runs if _value(run, sort) is not None]
        known.sort(key=lambda run: _comparable(_value(run, sort)), reverse=reverse)
        runs = known + [run for run in runs if _value(run, sort) is None]
    if as_json:
        return [json.dumps(runs, indent=1, default=str)]
    if not runs:
        return [printable(f"There are no {'such ' if where else ''}runs in {' and '.join(folders)}.")]
    swept = _swept(runs)
    columns = [*SHOWN, *swept, *RESULTS, "folder"]
    table = [columns, *([_cell(run, column) for column in columns] for run in runs)]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns) - 1)]
    lines = [" ".join([*map(_padded, line, widths), line[-1]]) for line in table]
    return lines + [printable(run["note"]) for run in runs if run["note"] is not None]


def _swept(runs: list[dict[str, Any]]) -> list[str]:
    """Options that differ between the runs, beyond those that are always shown."""
    always = {"model.mechanism", "data.source", "model.size", "seed"}
    whole = [run["options"] for run in runs if run["options"]]
    names = dict.fromkeys(name for options in whole for name in options if name not in always)
    return [name for name in names if len({json.dumps(o.get(name), sort_keys=True, default=str) for o in whole}) > 1]


def _value(run: dict[str, Any], key: str) -> Any:
    """Of a column, of an option by its dotted name, or by its last word where only one option ends so."""
    if key in run or key in run["options"]:
        return run.get(key, run["options"].get(key))
    ends = [name for name in run["options"] if name.rpartition(".")[2] == key]
    return run["options"][ends[0]] if len(ends) == 1 else None


def _check_key(key: str, runs: list[dict[str, Any]]) -> None:
    if runs and all(_value(run, key) is None for run in runs):
        known = {name for run in runs for name in [*run, *run["options"]]}
        hint = did_you_mean(key, sorted(known), "--json shows what runs have.")
        raise UserError(f"No run has {key!r}: {hint}")


def _passes(run: dict[str, Any], test: str, runs: list[dict[str, Any]]) -> bool:
    match = TEST.fullmatch(test)
    if match is None:
        raise UserError(f"--where takes KEY=VALUE, or with != < > <= >=, got {test!r}.")
    key, sign, wanted = match.groups()
    _check_key(key, runs)
    value = _value(run, key)
    if value is None:
        return sign == "!=" or (sign == "=" and wanted in ("", "null"))
    try:
        return TESTS[sign](float(value), float(wanted))
    except (TypeError, ValueError):
        return TESTS[sign](str(value), wanted)


def _comparable(value: Any) -> tuple[bool, float, str]:
    """Numbers before words."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)


def _cell(run: dict[str, Any], column: str) -> str:
    value = _value(run, column)
    if column == "step":
        return f"{value:,}/{run['steps']:,}" if run["steps"] is not None else str(value)
    if column in RESULTS and isinstance(value, float):
        return f"{value:.4f}"
    return "-" if value is None else printable(value)


def _padded(text: str, width: int) -> str:
    """Numbers to the right, words to the left."""
    return f"{text:>{width}}" if text[:1].isdigit() else f"{text:<{width}}"
