"""Finished and unfinished runs as tables: what ``softmax-rnn list --runs`` shows and what figures read.

Nothing here needs torch: a run's ``config.yaml`` and ``metrics.jsonl`` are enough, so committed results without checkpoints count
too. A damaged run is one of the table, with the file and the line that are damaged; it never hides the others.

Runs are in folders, or packed: the files of many run folders as three, for results that are kept and committed.

    softmax-rnn pack out/cpu results/cpu

    runs.json           one line per run: its name, when it ran, on which environment, and what differs in its configuration
    environments.json   versions, revision and hardware, each once
    metrics.parquet     every row of every metrics.jsonl, one column per field; in parts of less than 2 MB

Nothing that was measured is lost or rounded: what is read back equals what was packed. Of ``environment.json`` only the command that
started a worker is left out, which names folders of that machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import nearest_name, read_json, read_yaml, write_atomically
from .model import label
from .recorder import DamagedMetrics, read

DEPTH = 4  # how many folders down runs are looked for
LIMIT = 1_900_000  # bytes of a part
COMMON = ("versions", "git", "hardware")  # of an environment; the rest of it is the run's own


@dataclass(frozen=True)
class Run:
    """One run, read from its folder or from packed files."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    damage: str | None = None
    packed_environment: dict[str, Any] | None = None

    @property
    def environment(self) -> dict[str, Any]:
        """What it ran on; nothing if that cannot be read."""
        if self.packed_environment is not None:
            return self.packed_environment
        with contextlib.suppress(OSError, UserError):
            about = read_json(self.folder / "environment.json")
            return about if isinstance(about, dict) else {}
        return {}

    @property
    def status(self) -> str:
        """``done``, ``diverged``, ``unfinished`` or ``damaged``."""
        if self.damage is not None:
            return "damaged"
        return str(self.rows[-1].get("event", "unfinished")) if self.rows else "unfinished"

    @property
    def step(self) -> int:
        """How far it came."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    def last(self, key: str) -> Any:
        """The newest value of a metric, or None."""
        return next((row[key] for row in reversed(self.rows) if row.get(key) is not None), None)

    def option(self, name: str) -> Any:
        """A value of the configuration by its dotted name, or None."""
        value: Any = self.config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def model(self) -> Any:
        """The model of the newest checkpoint."""
        from ..models import load_model

        return load_model(self.folder)

    def tokenizer(self) -> Any:
        """The tokenizer beside it."""
        from ..models import load_tokenizer

        return load_tokenizer(self.folder)

    def options(self) -> dict[str, Any]:
        """The configuration by dotted names, without where and how the work was done."""
        return flat({group: options for group, options in self.config.items() if group not in ("run", "name")})

    def columns(self) -> dict[str, Any]:
        """What tells this run from others."""
        mechanism = self.option("model.mechanism")
        return {
            "run": self.folder.name,
            "mechanism": None if mechanism is None else label(mechanism),
            "source": self.option("data.source"),
            "size": self.option("model.size"),
            "seed": self.option("seed"),
        }


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Groups of options as ``group.option``; a mapping inside an option stays whole.

    >>> flat({"seed": 1, "model": {"overrides": {"hidden_size": 64}}})
    {'seed': 1, 'model.overrides': {'hidden_size': 64}}
    """
    out: dict[str, Any] = {}
    for key, value in config.items():
        out |= {f"{key}.{option}": v for option, v in value.items()} if isinstance(value, dict) else {key: value}
    return out


class DamagedRun(UserError):
    """The files of a run contradict themselves or cannot be read."""


def read_run(folder: str | Path) -> Run:
    """One run; a folder without ``config.yaml`` raises ``FileNotFoundError``, files that make no sense ``DamagedRun``."""
    folder = Path(folder)
    if not os.path.lexists(folder / "config.yaml"):
        raise FileNotFoundError(f"{folder} is not a run: it has no config.yaml")
    config = _read_config(folder)
    try:
        rows = read(folder / "metrics.jsonl")
    except DamagedMetrics as error:
        raise _damaged(folder, str(error)) from None
    except OSError as error:
        raise _damaged(folder, f"metrics.jsonl cannot be read: {error.strerror}") from None
    run = Run(folder, config, rows)
    steps = config["train"]["steps"]
    if run.status == "done" and run.step != steps:
        raise _damaged(folder, f"it says done at step {run.step} of {steps}")
    if run.status == "done" and run.last("test_loss") is None:
        raise _damaged(folder, "it says done and has no test loss")
    return run


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_yaml(folder / "config.yaml")
        told = (config["train"]["steps"], config["seed"], config["model"]["mechanism"], config["data"]["source"])
    except (UserError, KeyError, TypeError):
        raise _damaged(folder, "config.yaml is not that of a run") from None
    if not isinstance(told[0], int) or not isinstance(told[1], int):
        raise _damaged(folder, "config.yaml is not that of a run")
    return dict(config)


def _damaged(folder: Path, why: str) -> DamagedRun:
    return DamagedRun(
        f"{folder} is damaged ({why}): train it again with the same command, which continues from its last checkpoint."
    )


def load_run(folder: str | Path) -> Run:
    """A run that is there: its configuration, metrics and checkpoints.

    >>> load_run("runs/norm-tunes-845a626a08").model()  # doctest: +SKIP
    """
    folder = Path(folder)
    try:
        return read_run(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"There is no run {folder}{nearest_name(folder)}") from None


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
    if any(entry.name == "config.yaml" for entry in entries):
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
