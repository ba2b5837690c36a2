"""A reproduction's folder: its plan (``plan.json``: which scale, how many seeds, and what has more of them), what there is of the
plan's runs, in folders or packed, and the example of a query that its page takes apart (``example.json``). What is missing or
damaged is said, never invented.

A run is found by its name and recognised by its configuration: what it says must be what the plan asks for, and options that did
not exist when it was trained must have their defaults.
"""

from __future__ import annotations

import copy
import json
import math
import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ..cli import quieten
from ..errors import UserError
from ..files import write_atomically
from ..lab.config import RunConfig
from ..lab.run import ENDED, Run, find_run, machine
from ..lab.store import is_packed, read_packed
from ..report.data import Example
from .scales import SCALES, Cell, Scale, scale

Metric = Literal["test_loss", "spikes"]
TOKENS = 40  # of the example
Status = Literal["done", "diverged", "unfinished", "damaged", "missing"]


@dataclass(frozen=True)
class Plan:
    """What a reproduction folder is about: ``plan.json``. Single figures and claims may have more seeds than the rest."""

    scale: Scale
    seeds: int
    more: dict[str, int] = field(default_factory=dict)

    def seeds_of(self, *names: str) -> range:
        """The seeds of a figure, or of a claim and its figure."""
        return range(max(self.seeds, *(self.more.get(name, 0) for name in names)))


def read_plan(folder: Path) -> Plan:
    """``plan.json``; whatever is wrong with it is one sentence."""
    file = folder / "plan.json"
    try:
        plan = json.loads(file.read_text())
        more = dict(plan.get("more", {}))
        if plan["scale"] in SCALES and all(isinstance(n, int) and n > 0 for n in (plan["seeds"], *more.values())):
            return Plan(scale(plan["scale"]), plan["seeds"], more)
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no plan.json: make one with softmax-rnn reproduce quick --out {folder}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise UserError(f"{file} is damaged: delete it and run softmax-rnn reproduce with --out {folder} again.")


def write_plan(folder: Path, plan: Plan) -> None:
    """Make the folder, and say in it what it is about; a plan that is there keeps its scale and the larger numbers of seeds."""
    file, seeds, more = folder / "plan.json", plan.seeds, plan.more
    if file.exists():
        there = read_plan(folder)
        if there.scale.name != plan.scale.name:
            raise UserError(f"{folder} holds the scale {there.scale.name}: choose another --out.")
        seeds = max(seeds, there.seeds)
        more = there.more | {name: max(n, there.more.get(name, 0)) for name, n in more.items()}
    more = {name: n for name, n in more.items() if n > seeds}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        said = {"scale": plan.scale.name, "seeds": seeds} | ({"more": more} if more else {})
        write_atomically(file, json.dumps(said) + "\n")
    except OSError as error:
        raise UserError(f"Cannot write to {folder} ({error.strerror}): choose another --out.") from None


def command(figure: str, chosen: Scale, out: Path, seeds: int, *more: str) -> str:
    """The command that makes a figure, or the runs of a claim."""
    words = ["softmax-rnn", "reproduce", figure]
    words += [] if chosen.name == "quick" else ["--scale", chosen.name]
    words += [] if seeds == chosen.seeds else ["--seeds", str(seeds)]
    return shlex.join([*words, "--out", str(out), *more])


@dataclass(frozen=True)
class PlannedRun:
    """One cell of the plan, and what there is of it."""

    cell: Cell
    folder: Path
    status: Status
    run: Run | None = None
    note: str | None = None

    @property
    def ended(self) -> bool:
        """True if its numbers are final."""
        return self.status in ENDED

    def final(self, metric: Metric) -> float | None:
        """The final value; infinite where the run diverged; None where it has not ended."""
        if self.run is None or not self.ended:
            return None
        diverged = self.status == "diverged"
        if metric == "spikes":  # the last one, from which a run did not recover, comes after its last row
            return float(self.run.last("spikes") or 0) + diverged
        return math.inf if diverged else float(self.run.last("test_loss"))

    def curve(self, metric: str) -> dict[int, tuple[int, float | None]]:
        """step -> (tokens, value)."""
        return {} if self.run is None else self.run.curve(metric)


class Results:
    """All runs of a scale: packed in ``folder``, and in folders under ``folder/runs``."""

    def __init__(self, scale: Scale, folder: Path, seeds: Sequence[int]) -> None:
        self.scale, self.folder, self.seeds = scale, folder, tuple(seeds)
        self._found: dict[Cell, PlannedRun] = {}

    def over(self, seeds: Sequence[int]) -> Results:
        """The same runs, of other seeds."""
        same = copy.copy(self)
        same.seeds = tuple(seeds)
        return same

    def planned(self, cell: Cell) -> PlannedRun:
        """What there is of a cell."""
        if cell not in self._found:
            self._found[cell] = self._find(cell)
        return self._found[cell]

    def final(self, cell: Cell, metric: Metric) -> float | None:
        """Of a cell that has ended."""
        return self.planned(cell).final(metric)

    def _find(self, cell: Cell) -> PlannedRun:
        config = self.scale.config(cell, self.folder / "runs")
        for run in self._packed[cell.name]:
            if agrees(run.config, config):
                return _from_run(cell, run)
        found = [_read(cell, folder, config) for folder in self._folders[cell.name]]
        there = [planned for planned in found if planned is not None]
        return min(there, key=lambda p: not p.ended, default=PlannedRun(cell, config.folder, "missing"))

    @cached_property
    def _packed(self) -> dict[str, list[Run]]:
        runs: dict[str, list[Run]] = defaultdict(list)
        for run in read_packed(self.folder) if is_packed(self.folder) else []:
            runs[_without_hash(run.folder)].append(run)
        return runs

    @cached_property
    def _folders(self) -> dict[str, list[Path]]:
        folders: dict[str, list[Path]] = defaultdict(list)
        for folder in sorted((self.folder / "runs").glob("*-*")):
            folders[_without_hash(folder)].append(folder)
        return folders

    @property
    def _environments(self) -> list[dict[str, Any]]:
        """What the runs that have ended say about where they ran; a file that cannot be read says nothing."""
        said = [p.run.environment for p in self._found.values() if p.ended and p.run is not None]
        return [about for about in said if {"versions", "hardware", "git", "sessions"} <= set(about)]

    @property
    def environment(self) -> dict[str, str]:
        """Of the first run, flat, with the revisions of all."""
        for about in self._environments:
            revisions = sorted({str(other["git"])[:10] for other in self._environments})
            return machine(about) | {"git": ", ".join(revisions)}
        return {}

    @property
    def last_day(self) -> str:
        """The day on which the last run began."""
        return max((about["sessions"][-1]["began"][:10] for about in self._environments), default="")


def agrees(there: dict[str, Any], wanted: RunConfig) -> bool:
    """True if a run's configuration is the wanted one, but for where and how it was run; see above for new options."""
    asked, plain = asdict(wanted), asdict(RunConfig())
    for group, options in asked.items():
        if group in ("run", "name"):
            continue
        if not isinstance(options, dict):
            if there.get(group, plain[group]) != options:
                return False
            continue
        said = plain[group] | there.get(group, {})
        if any(
            said.get(option) != value for option, value in options.items() if (group, option) != ("model", "mechanism")
        ):
            return False
    return _same_mechanism(there.get("model", {}).get("mechanism"), asked["model"]["mechanism"])


def _same_mechanism(there: Any, wanted: Any) -> bool:
    """Names are compared as names; one that is written out may have been written with fewer fields."""
    if isinstance(there, dict) and isinstance(wanted, dict):
        from ..slots.mechanism import Mechanism

        return there == wanted or Mechanism.from_dict(there) == Mechanism.from_dict(wanted)
    return bool(there == wanted)


def _without_hash(folder: Path) -> str:
    return re.sub(r"-[0-9a-f]{10}$", "", folder.name)


def _read(cell: Cell, folder: Path, wanted: RunConfig) -> PlannedRun | None:
    """A folder of the right name; None if it is no run, or another one."""
    run = find_run(folder)
    if run is not None and run.damage is not None:
        return PlannedRun(cell, folder, "damaged", note=run.damage)
    return _from_run(cell, run) if run is not None and agrees(run.config, wanted) else None


def _from_run(cell: Cell, run: Run) -> PlannedRun:
    status: Any = run.status
    return PlannedRun(cell, run.folder, status, run, run.note)


# The example of the order slider.


def read_example(folder: Path) -> Example | None:
    """``example.json``, or None where it is not there or cannot be read."""
    try:
        return Example(**json.loads((folder / "example.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_example(folder: Path) -> None:
    """Taken once, from the finished run, while its checkpoint is there."""
    from ..lab.sweep import status

    chosen, there = read_plan(folder).scale, read_example(folder)
    run = source(chosen, folder)
    if status(run) == "done" and (there is None or there.model != run.folder.name):
        example = take_example(chosen, folder)
        if example is not None:
            write_atomically(folder / "example.json", json.dumps(asdict(example), ensure_ascii=False) + "\n")


def source(scale: Scale, folder: Path) -> RunConfig:
    """The run that the example is taken from."""
    return scale.config(Cell("softmax", scale.main), folder / "runs")


def take_example(scale: Scale, folder: Path) -> Example | None:
    """A query of the softmax run on the main corpus, seed 0, from its test text; None if its checkpoint is not there.

    Of all heads, and all queries of the second half, the one whose weights are neither even nor on a single key: their entropy is
    closest to half of its maximum.
    """
    import torch

    from ..lab.data import prepare
    from ..microscope.probe import Call, scoped
    from ..models import load_model, load_tokenizer

    config = source(scale, folder)
    quieten()
    try:
        model, tokenizer = load_model(config.folder), load_tokenizer(config.folder)
        test = prepare(config.data, config.tokenizer, quiet=True).test
    except UserError:
        return None
    rows = (test[i] for i in range(len(test)) if len(test[i]) >= TOKENS)
    ids = torch.as_tensor(next(rows)[:TOKENS].astype("int64"))[None]
    found: list[tuple[float, int, int, int, list[float]]] = []

    def look(call: Call) -> None:
        scores = (call.scale * call.q @ call.k.transpose(-1, -2))[0].double()
        for head in range(scores.shape[0]):
            for query in range(TOKENS // 2, TOKENS):
                x = scores[head, query, : query + 1]
                p = x.softmax(-1)
                even = float(-(p * p.clamp_min(1e-300).log()).sum()) / math.log(query + 1)
                found.append((abs(even - 0.5), call.layer, head, query, x.tolist()))

    with torch.no_grad(), scoped(model, look):
        model(ids)
    _, layer, head, query, x = min(found)
    return Example(
        model=config.folder.name,
        where=f"layer {layer + 1}, head {head + 1}",
        tokens=[str(tokenizer.decode([token])) for token in ids[0, : query + 1].tolist()],
        query=query,
        scores=[round(value, 5) for value in x],
        head_dim=model.config.head_dim,
        note=f"Test text of {scale.corpora[scale.main]}; keys of width {model.config.head_dim}.",
    )
