"""``softmax-rnn list``: the mechanisms, the model sizes, and the runs there are."""

from __future__ import annotations

from typing import Any

from .cli import Parser
from .errors import printable


def main(argv: list[str]) -> int:
    """Print one of the three tables."""
    parser = Parser("softmax-rnn list", description=__doc__)
    parser.add_argument("--sizes", action="store_true", help="model sizes with their parameter counts")
    parser.add_argument(
        "--runs", nargs="?", const="runs", metavar="FOLDER", help="finished and unfinished runs (default: runs)"
    )
    options = parser.parse_args(argv)
    lines = _sizes() if options.sizes else _runs(options.runs) if options.runs is not None else _mechanisms()
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
    from .models.sizes import SIZES, parameter_count

    lines = [
        f"{'size':<8} {'layers':>6} {'hidden':>7} {'MLP':>6} {'heads':>6} {'parameters':>14}   (vocabulary 32,000)"
    ]
    for name, size in SIZES.items():
        shape = (size["num_hidden_layers"], size["hidden_size"], size["intermediate_size"], size["num_attention_heads"])
        lines.append("{:<8} {:>6} {:>7} {:>6} {:>6} {:>14,}".format(name, *shape, parameter_count(name)))
    return lines


def _runs(folder: str) -> list[str]:
    from .lab.store import runs_table

    rows = runs_table(folder)
    if not rows:
        return [printable(f"There are no runs in {folder}.")]
    columns = ("mechanism", "source", "size", "seed", "status", "step", "train_loss", "test_loss", "folder")
    table = [list(columns), *([_cell(row, column) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns) - 1)]
    lines = [" ".join([*map(_padded, line, widths), line[-1]]) for line in table]
    return lines + [printable(row["note"]) for row in rows if row["note"] is not None]


def _cell(row: dict[str, Any], column: str) -> str:
    value = row[column]
    if column == "step":
        return f"{value:,}/{row['steps']:,}" if row["steps"] is not None else str(value)
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else printable(value)


def _padded(text: str, width: int) -> str:
    """Numbers to the right, words to the left."""
    return f"{text:>{width}}" if text[:1].isdigit() else f"{text:<{width}}"
