"""Many runs as tables: what ``softmax-rnn list --runs`` shows and what figures read.

A damaged run is one of the table, with what is wrong with it; it never hides the others. Runs are in folders, or packed: the files of
many run folders as three, for results that are kept and committed.

    softmax-rnn pack out/cpu results/cpu

    runs.json           one line per run: its name, when it ran, on which environment, and what differs in its configuration
    environments.json   versions, revision and hardware, each once
    metrics.parquet     every row of every metrics.jsonl, one column per field; in parts of less than 2 MB

Nothing that was measured is lost or rounded: what is read back equals what was packed. Of ``environment.json`` only the command that
started a worker is left out, which names folders of that machine.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import write_atomically
from .options import flat, nested_all
from .run import DamagedRun, Run, read_run

DEPTH = 4  # how many folders down runs are looked for
LIMIT = 1_900_000  # bytes of a part
COMMON = ("versions", "git", "hardware")  # of an environment; the rest of it is the run's own


def find_runs(root: str | Path) -> list[Run]:
    """All runs in a folder, packed or in folders, by name; a damaged one is among them and says what is wrong with it."""
    packed = read_packed(Path(root)) if is_packed(Path(root)) else []
    found = [_read_or_damaged(folder) for folder in sorted(_folders(Path(root), DEPTH))]
    return packed + [run for run in found if run is not None]


def _read_or_damaged(folder: Path) -> Run | None:
    """None if there is no more than a ``config.yaml`` of somebody else."""
    try:
        return read_run(folder)
    except (DamagedRun, FileNotFoundError) as error:
        ours = any((folder / name).exists() for name in ("metrics.jsonl", "environment.json"))
        return Run(folder, damage=str(error)) if ours else None


def _folders(root: Path, depth: int) -> Iterator[Path]:
    """Run folders below ``root``: not inside of other runs, checkpoints, hidden folders or other disks."""
    try:
        entries = list(os.scandir(root))
        device = os.stat(root).st_dev
    except OSError:
        return
    if {entry.name for entry in entries} & {"config.yaml", "metrics.jsonl"}:
        yield root
        return
    for entry in entries if depth else []:
        try:
            is_place = entry.is_dir(follow_symlinks=depth == DEPTH) and not entry.name.startswith(".")
            if is_place and entry.stat().st_dev == device:
                yield from _folders(Path(entry.path), depth - 1)
        except OSError:
            continue


def runs_table(root: str | Path) -> list[dict[str, Any]]:
    """One line per run: run, status, mechanism, source, size, seed, step, steps, the newest train_loss, test_loss, test_accuracy and
    spikes, tokens, seconds, folder, and for a damaged run a note; an empty list if there are none.
    """
    return [
        run.columns()
        | {"status": run.status, "step": run.step, "steps": run.option("train.steps")}
        | {key: run.last(key) for key in ("train_loss", "test_loss", "test_accuracy", "spikes", "tokens", "seconds")}
        | {"folder": str(run.folder), "note": run.damage, "options": run.options()}
        for run in find_runs(root)
    ]


def tidy(root: str | Path) -> list[dict[str, Any]]:
    """One line per run, step and metric: columns run, mechanism, source, size, seed, step, tokens, metric, value.

    >>> curve = [r for r in tidy("runs") if r["metric"] == "test_loss" and r["mechanism"] == "norm"]
    """
    leave_out = {"step", "tokens", "event"}
    return [
        run.columns() | {"step": row["step"], "tokens": row["tokens"], "metric": metric, "value": value}
        for run in find_runs(root)
        for row in run.rows
        for metric, value in row.items()
        if metric not in leave_out
    ]


# Packed runs.


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
                nested_all(table["common"] | entry["config"]),
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

    Gives how many runs are packed now, and how many of the source had not ended and were left out. A damaged one is refused by name.
    """
    new = find_runs(source)
    damaged = [run.damage for run in new if run.damage is not None]
    if damaged:
        raise UserError(f"{damaged[0]} Nothing was packed.")
    ended = [run for run in new if run.ended]
    there = {run.folder.name: run for run in [*(read_packed(out) if is_packed(out) else []), *ended]}
    if not there:
        raise UserError(f"There is no run in {source} that has ended: nothing to pack.")
    write_packed(list(there.values()), out)
    return len(there), len(new) - len(ended)


def main(argv: list[str]) -> int:
    """``softmax-rnn pack``; returns the exit code."""
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
