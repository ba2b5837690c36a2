"""Packed runs: the files of many run folders as three, for results that are kept and committed.

    softmax-rnn pack out/cpu results/cpu

    runs.json           one line per run: its name, when it ran, on which environment, and what differs in its configuration
    environments.json   versions, revision and hardware, each once
    metrics.parquet     every row of every metrics.jsonl, one column per field; in parts of less than 2 MB

Nothing that was measured is lost or rounded: what is read back equals what was packed. Of ``environment.json`` only the command that
started a worker is left out, which names folders of that machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import UserError
from .checkpoint import write_atomically
from .store import Run, find_runs, flat

LIMIT = 1_900_000  # bytes of a part
COMMON = ("versions", "git", "hardware")  # of an environment; the rest of it is the run's own


def is_packed(folder: Path) -> bool:
    """True if the folder holds packed runs."""
    return (folder / "runs.json").is_file()


def read_packed(folder: Path) -> list[Run]:
    """The packed runs of a folder; each names a folder that is not there."""
    try:
        table = json.loads((folder / "runs.json").read_text())
        environments = json.loads((folder / "environments.json").read_text())
        metrics = _read_metrics(folder)
        return [
            Run(
                folder / entry["run"],
                _nested(table["common"] | entry["config"]),
                metrics.get(number, []),
                packed_environment=environments[entry["environment"]] | entry["about"],
            )
            for number, entry in enumerate(table["runs"])
        ]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"The packed runs of {folder} cannot be read ({error}): restore the folder.") from None


def write_packed(runs: Sequence[Run], folder: Path) -> None:
    """Write runs, in the order of their names, in place of what is packed there."""
    runs = sorted(runs, key=lambda run: run.folder.name)
    configs = [flat(run.config) for run in runs]
    common = {k: v for k, v in (configs[0] if configs else {}).items() if all(c.get(k, ...) == v for c in configs)}
    environments: list[dict[str, Any]] = []
    lines = []
    for run, config in zip(runs, configs, strict=True):
        about = run.environment
        shared = {key: about[key] for key in COMMON if key in about}
        if shared not in environments:
            environments.append(shared)
        entry = {
            "run": run.folder.name,
            "environment": environments.index(shared),
            "about": _own(about),
            "config": {key: value for key, value in config.items() if key not in common},
        }
        lines.append(json.dumps(entry, ensure_ascii=False))
    text = ",\n".join(lines)
    folder.mkdir(parents=True, exist_ok=True)
    _write_metrics(folder, [run.rows for run in runs])
    write_atomically(folder / "environments.json", json.dumps(environments, indent=1) + "\n")
    write_atomically(folder / "runs.json", f'{{"common": {json.dumps(common, indent=1)},\n"runs": [\n{text}\n]}}\n')


def _own(environment: dict[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in environment.items() if key not in COMMON}
    if "sessions" in own:
        own["sessions"] = [{k: v for k, v in session.items() if k != "command"} for session in own["sessions"]]
    return own


def _nested(options: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in options.items():
        group, _, name = key.partition(".")
        if name:
            out.setdefault(group, {})[name] = value
        else:
            out[key] = value
    return out


# Metrics: a column for each field, the number of the run, and which fields the row has, in their order: a field may be null.


def _write_metrics(folder: Path, rows: Sequence[list[dict[str, Any]]]) -> None:
    shapes = {shape: n for n, shape in enumerate(dict.fromkeys(tuple(row) for run in rows for row in run))}
    parts = 1
    while True:
        bounds = [len(rows) * part // parts for part in range(parts + 1)]
        files = [_encode(rows, range(a, b), shapes) for a, b in pairwise(bounds)]
        if max(map(len, files)) <= LIMIT or parts >= len(rows):
            break
        parts += 1
    for old in folder.glob("metrics*.parquet"):
        old.unlink()
    for number, content in enumerate(files):
        (folder / (f"metrics-{number + 1}.parquet" if number else "metrics.parquet")).write_bytes(content)


def _encode(rows: Sequence[list[dict[str, Any]]], which: Iterable[int], shapes: dict[tuple[str, ...], int]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = [(number, row) for number in which for row in rows[number]]
    names = sorted({name for shape in shapes for name in shape})
    columns = {
        "run": pa.array([number for number, _ in flat], pa.int32()),
        "shape": pa.array([shapes[tuple(row)] for _, row in flat], pa.int16()),
        **{name: _column([row.get(name) for _, row in flat]) for name in names},
    }
    table = pa.table(columns).replace_schema_metadata({"shapes": json.dumps(list(shapes))})
    floats = [name for name in names if pa.types.is_floating(table.schema.field(name).type)]
    others = [name for name in table.column_names if name not in floats]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, compression="zstd", compression_level=19, use_dictionary=others, use_byte_stream_split=floats
    )
    return bytes(sink.getvalue())


def _column(values: list[Any]) -> Any:
    import pyarrow as pa

    there = [value for value in values if value is not None]
    if all(isinstance(value, str) for value in there):
        return pa.array(values, pa.string())
    whole = all(isinstance(value, int) for value in there)
    return pa.array(values, pa.int64() if whole else pa.float64())


def _read_metrics(folder: Path) -> dict[int, list[dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: dict[int, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("metrics*.parquet"), key=lambda path: (len(path.name), path.name)):
        try:
            table = pq.read_table(file)
        except pa.ArrowException as error:
            raise ValueError(str(error).splitlines()[0]) from None
        shapes = [tuple(shape) for shape in json.loads((table.schema.metadata or {})[b"shapes"])]
        columns = table.to_pydict()
        for i, (number, shape) in enumerate(zip(columns["run"], columns["shape"], strict=True)):
            found.setdefault(number, []).append({name: columns[name][i] for name in shapes[shape]})
    return found


def pack(source: Path, out: Path) -> tuple[int, int]:
    """Add the ended runs of ``source`` to those packed in ``out``, in place of those of the same name.

    Gives how many runs are packed now, and how many of the source had not ended and were left out.
    """
    new = find_runs(source)
    ended = [run for run in new if run.status in ("done", "diverged")]
    there = {run.folder.name: run for run in [*(read_packed(out) if is_packed(out) else []), *ended]}
    if not there:
        raise UserError(f"There is no run in {source} that has ended: nothing to pack.")
    write_packed(list(there.values()), out)
    return len(there), len(new) - len(ended)


def main(argv: list[str]) -> int:
    """``softmax-rnn pack``; returns the exit code."""
    import shutil

    from ..cli import Parser

    parser = Parser(
        "softmax-rnn pack", description="Put the runs of a folder into a few files, or add them to those there."
    )
    parser.add_argument("folder", type=Path, help="a folder of runs, a sweep, or what reproduce wrote")
    parser.add_argument("out", type=Path, help="where the packed files go; runs packed there stay")
    options = parser.parse_args(argv)
    if not options.folder.is_dir():
        raise UserError(f"{options.folder} is not a folder: name one that holds runs.")
    try:
        packed, left = pack(options.folder, options.out)
        for name in ("plan.json", "example.json"):  # what reproduce keeps beside its runs
            if (options.folder / name).exists() and options.folder.resolve() != options.out.resolve():
                shutil.copyfile(options.folder / name, options.out / name)
    except OSError as error:
        raise UserError(f"Cannot write to {options.out} ({error.strerror}): choose another folder.") from None
    words = f"; {left} that have not ended are left out" if left else ""
    print(f"{options.out} holds {packed} runs{words}.")
    return 0
