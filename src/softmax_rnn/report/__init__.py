"""The command ``softmax-rnn report``: from runs to curves, tables and a page that opens offline.

softmax-rnn report                        the newest reproduction in out/
softmax-rnn report out/quick              a reproduction of the paper: verdicts, figures, page (``paper/summary.py``)
softmax-rnn report runs                   any runs: a folder of them, a sweep, or several by name
softmax-rnn report runs/a runs/b --out compared

Of any runs it shows curves with seeds as bands, final losses against what was swept, and a table of what differs. Runs whose
configurations differ only in the seed are one curve. Runs on different text, whose losses do not compare, get panels of their own.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cli import Parser
from ..errors import UserError, printable
from ..files import nearest_name
from .data import Band, CurveView, FigureView, PanelView, Report, RunView, Spread

if TYPE_CHECKING:
    from ..lab.run import Run

PALETTE = ("#1b1b1b", "#d1495b", "#2a78c2", "#2e8b57", "#c8860d", "#8a4fbf", "#5d7f9e", "#8c8c8c", "#b5651d", "#1b9e9e")
DASHES = ("solid", "dash", "dot")
TEXTS = ("data.", "tokenizer.")  # what a loss is measured on
ITSELF = ("model.mechanism", "data.source")  # values that need no name beside them
Config = dict[str, Any]


def main(argv: list[str]) -> int:
    """The command; returns its exit code."""
    parser = Parser(prog="softmax-rnn report", description="Curves, tables and a page from what was run.")
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        help="what reproduce wrote, a folder of runs, a sweep, or runs (default: newest in out/)",
    )
    parser.add_argument("--out", type=Path, help="where to put the page (default: FOLDER/report)")
    parser.add_argument(
        "--update",
        "--keep",
        action="store_true",
        help="also renew summary.json and the figures inside packed results",
    )
    given = parser.parse_args(argv)
    runs: list[Path] = given.runs or [_newest()]
    if len(runs) == 1 and (runs[0] / "plan.json").exists():
        from ..paper.summary import build

        return build(runs[0], given.out, update=given.update)
    return _compare(runs, given.out)


def _newest() -> Path:
    plans = sorted(Path("out").glob("*/plan.json"), key=lambda p: p.stat().st_mtime)
    if not plans:
        raise UserError("Nothing to report on in out/: run softmax-rnn reproduce quick, or name a folder of runs.")
    return plans[-1].parent


def _compare(runs: list[Path], out: Path | None) -> int:
    """The report on any runs."""
    from .drawing import draw
    from .site import write_site

    report = compare(find(runs))
    site = out or (runs[0] / "report" if len(runs) == 1 else Path("out") / "compared")
    try:
        (site / "figures").mkdir(parents=True, exist_ok=True)
        draw(report.figures, site / "figures")
        index = write_site(report, site / "figures", site)
    except OSError as error:
        raise UserError(f"Cannot write to {site} ({error.strerror}): choose another --out.") from None
    for run in report.runs:
        if run.status == "damaged":
            print(printable(run.note), file=sys.stderr)
    print(f"{len(report.runs)} runs; the report: {index}")
    return 0


def find(paths: Sequence[Path]) -> list[Run]:
    """All runs that are named: by their folder, by a folder that holds them, or by a name in ``runs``; each once."""
    from ..lab.store import find_runs

    found: dict[Path, Run] = {}
    for path in paths:
        folder = path if path.exists() else Path("runs") / path
        runs = find_runs(folder) if folder.is_dir() else []
        if not runs:
            raise UserError(_nothing(path))
        found |= {run.folder.resolve(): run for run in runs}
    return list(found.values())


def _nothing(path: Path) -> str:
    if path.is_dir():
        return f"There are no runs in {path}: name a folder that holds some, or a run."
    return f"There is no run or folder {str(path)!r}{nearest_name(path)}"


def options(run: Run) -> Config:
    """Every option by its full name, the overrides of the model one by one."""
    out: Config = {}
    for name, value in run.options().items():
        inner = isinstance(value, dict) and name != "model.mechanism"
        out |= {f"{name}.{key}": v for key, v in value.items()} if inner else {name: value}
    return out


def differing(configs: Sequence[Config]) -> list[str]:
    """The options in which runs differ, the mechanism first and the seed last."""
    names = dict.fromkeys(name for config in configs for name in config)
    differ = [n for n in names if any(config.get(n) != configs[0].get(n) for config in configs)]
    return sorted(differ, key=lambda name: (name == "seed", name != "model.mechanism"))


def short(name: str) -> str:
    """An option as tables show it: its last word.

    >>> short("train.lr"), short("data.source")
    ('lr', 'corpus')
    """
    return {"model.mechanism": "mechanism", "data.source": "corpus"}.get(name, name.rpartition(".")[2])


def shown(value: Any) -> str:
    """A value as tables show it; a mechanism that is written out, as its formula."""
    if isinstance(value, dict) and "kernel" in value:
        from ..slots.mechanism import Mechanism

        return str(Mechanism.from_dict(value))
    return (
        json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else "" if value is None else str(value)
    )


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by their size, then names, softmax first: it is what the others are compared with."""
    number = isinstance(value, int | float)
    return (not number, float(value) if number else float(value != "softmax"), "" if number else shown(value))


def compare(found: Sequence[Run]) -> Report:
    """The report on runs; one that is damaged is in the table, with what is wrong with it."""
    from ..lab.run import machine

    runs = [run for run in found if run.damage is None]
    damaged = [RunView(run.folder.name, "damaged", note=run.damage) for run in found if run.damage is not None]
    if not runs:
        raise UserError(str(found[0].damage))
    differ = differing([options(run) for run in runs])
    runs = sorted(runs, key=lambda run: [_order(options(run).get(name)) for name in differ])
    configs = [options(run) for run in runs]
    about = [name for name in differ if name != "seed"]
    environment = next((run.environment for run in runs if run.environment), {})
    began = [s["began"][:10] for run in runs for s in run.environment.get("sessions", [])[-1:]]
    seconds = [run.last("seconds") or 0.0 for run in runs]
    return Report(
        title=f"{len(runs)} runs compared" if len(runs) > 1 else runs[0].folder.name,
        setting=_setting(configs, differ),
        figures=[_curves(runs, configs, about), *_sweeps(runs, configs, about)],
        runs=[_run(run, config, differ) for run, config in zip(runs, configs, strict=True)] + damaged,
        environment=machine(environment),
        commands=[f"softmax-rnn train --config {shlex.quote(str(r.folder / 'config.yaml'))}" for r in runs][:12],
        made=max(began, default=""),
        minutes=round(sum(seconds) / 60, 1),
    )


def _setting(configs: Sequence[Config], differ: Sequence[str]) -> str:
    """What differs, and the most important of what does not."""
    same = {short(name): configs[0].get(name) for name in ("model.mechanism", "data.source", "train.steps", "train.lr")}
    words = [f"{name} {shown(value)}" for name, value in same.items() if name not in map(short, differ)]
    if len(configs) == 1:
        return f"{', '.join(words).capitalize()}."
    first = f"What differs: {', '.join(map(short, differ))}." if differ else "All configurations are equal."
    return f"{first} The same in all: {', '.join(words)}." if words else first


Grouped = dict[tuple[str, ...], list[int]]


def _group(configs: Sequence[Config], names: Sequence[str]) -> Grouped:
    """Runs by the values of some options, in order of appearance."""
    groups: Grouped = {}
    for number, config in enumerate(configs):
        groups.setdefault(tuple(shown(config.get(name)) for name in names), []).append(number)
    return groups


def _label(values: Sequence[str], names: Sequence[str]) -> str:
    return ", ".join(v if n in ITSELF else f"{short(n)} {v}" for n, v in zip(names, values, strict=True))


Draw = Callable[[list[int]], tuple[Band, Band]]  # what a curve shows of training and of test


def _panels(
    runs: Sequence[Run], configs: Sequence[Config], about: list[str], x: tuple[str, bool], draw: Draw
) -> list[PanelView]:
    """A panel for each text, a curve for each group of runs in it; colours and dashes belong to a label everywhere."""
    texts = [name for name in about if name.startswith(TEXTS)]
    rest = [name for name in about if name not in texts]
    looks = {key: n for n, key in enumerate(_group(configs, rest))}
    panels = []
    for text, members in _group(configs, texts).items():
        curves = []
        inside = _group([configs[i] for i in members], rest)
        for key, positions in inside.items():
            numbers = [members[p] for p in positions]
            name = _label(key, rest) or shown(configs[numbers[0]].get("model.mechanism"))
            curves.append(_curve(name, looks[key], [runs[i] for i in numbers], *draw(numbers)))
        title = _label(text, texts) if texts else str(configs[members[0]].get("data.source", "loss"))
        panels.append(PanelView(title, curves, x[0], "log" if x[1] else "linear"))
    return panels


def _curve(label: str, look: int, runs: Sequence[Run], train: Band, test: Band) -> CurveView:
    from ..lab.model import ModelConfig

    given = ModelConfig(runs[0].config["model"]["mechanism"])
    states = {run.status for run in runs} - {"done"}
    finals = [loss for run in runs if run.status == "done" and (loss := run.last("test_loss")) is not None]
    return CurveView(
        label=label + (f" ({', '.join(sorted(states))})" if states else ""),
        color=PALETTE[look % len(PALETTE)],
        dash=DASHES[look // len(PALETTE) % len(DASHES)],
        formula=str(given.value()),
        mechanism=given.label,
        train=train,
        test=test,
        seeds=sorted({run.config["seed"] for run in runs}),
        runs=[run.folder.name for run in runs],
        spikes=sum(run.last("spikes") or 0 for run in runs) / len(runs),
        final_test=Spread.of(finals),
    )


def _curves(runs: Sequence[Run], configs: Sequence[Config], about: list[str]) -> FigureView:
    def draw(numbers: list[int]) -> tuple[Band, Band]:
        train, test = (Band.over([runs[i].curve(f"{split}_loss") for i in numbers]) for split in ("train", "test"))
        return train, test

    panels = _panels(runs, configs, about, ("tokens", False), draw)
    return FigureView(
        "curves",
        "Loss",
        caption="Loss against tokens read. Runs that differ only in the seed are one curve.",
        panels=panels,
    )


def _sweeps(runs: Sequence[Run], configs: Sequence[Config], about: list[str]) -> list[FigureView]:
    """Final test loss of finished runs against every number that has at least three values in them."""
    done = [number for number, run in enumerate(runs) if run.status == "done"]
    runs, configs = [runs[i] for i in done], [configs[i] for i in done]
    figures = []
    for name in about:
        values = {config.get(name) for config in configs if not isinstance(config.get(name), dict | list)}
        numbers = sorted(v for v in values if isinstance(v, int | float) and not isinstance(v, bool))
        if len(numbers) < 3 or len(numbers) < len(values):
            continue
        log = numbers[0] > 0 and numbers[-1] / numbers[0] >= 8

        def draw(members: list[int], name: str = name, numbers: list[float] = numbers) -> tuple[Band, Band]:
            band = Band()
            for x in numbers:
                at = [runs[i] for i in members if configs[i].get(name) == x]
                if at:
                    band.add(x, [run.last("test_loss") for run in at])
            return Band(), band

        others = [other for other in about if other != name]
        panels = _panels(runs, configs, others, (short(name), log), draw)
        caption = f"Final test loss of finished runs against {name}."
        figures.append(FigureView(f"by-{short(name)}", f"Final loss by {short(name)}", caption=caption, panels=panels))
    return figures


def _run(run: Run, config: Config, differ: list[str]) -> RunView:
    words = [short(name) for name in differ]
    keys = {name if words.count(short(name)) > 1 else short(name): shown(config.get(name)) for name in differ}
    return RunView.of(run.folder.name, run.status, keys, run, run.note)
