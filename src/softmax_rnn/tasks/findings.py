"""What ``softmax-rnn recall`` found: lines for the terminal, JSON, and a drawing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..report.data import Bar
from . import Task, task

CONSTANT, GROWS, INK = "#b3261e", "#1f5fa8", "#1c1c1c"


@dataclass(frozen=True)
class Cell:
    """What is compared: one mechanism of one key width on one task. ``source`` is the task as the lab names it."""

    source: str
    length: int
    mechanism: str
    key_dim: int

    @property
    def task(self) -> Task:
        """The task as a value."""
        return task(self.source)


@dataclass(frozen=True)
class Result:
    """What became of a cell: accuracy at the best learning rate, its interval over the seeds, and what it remembers.

    ``longer`` has the accuracy at greater lengths, ``rates`` the accuracies of all seeds at each learning rate.
    """

    cell: Cell
    lr: float
    accuracy: float
    low: float | None
    high: float | None
    longer: dict[int, float]
    state_bytes: int | None
    constant: bool
    rates: dict[float, list[float]]


def table(results: Sequence[Result]) -> list[str]:
    """Lines for the terminal: a block for each task, the best mechanism first."""
    from ..state import readable_bytes

    lines: list[str] = []
    for source in dict.fromkeys(r.cell.source for r in results):
        some = sorted((r for r in results if r.cell.source == source), key=lambda r: -r.accuracy)
        cell = some[0].cell
        lines += ["", f"{cell.source.removeprefix('task:')}, rows of {cell.length} tokens ({cell.task.published})"]
        longer = "  ".join(f"{f'at {n}':>7}" for n in some[0].longer)
        lines.append(
            f"{'mechanism':<18} {'key dim':>7}  {'accuracy':>8} {'95% interval':>16}  {longer}  {'state per layer':>15}  {'lr':>6}"
        )
        for r in some:
            interval = "one seed" if r.low is None or r.high is None else f"{r.low:.1%} to {r.high:.1%}"
            at = "  ".join(f"{x:>7.1%}" for x in r.longer.values())
            size = "both sides" if r.state_bytes is None else readable_bytes(r.state_bytes)
            size += "" if r.constant else ", grows"
            lines.append(
                f"{r.cell.mechanism:<18} {r.cell.key_dim:>7}  {r.accuracy:>8.1%} {interval:>16}  {at}  {size:>15}  {r.lr:>6g}"
            )
    return lines


NAMES = {"linear_elu": "linear attention", "norm": "all orders, norm"} | {
    f"taylor{n}{suffix}": f"order {n}" for n in range(21) for suffix in ("", "_norm")
}


def bars(results: Sequence[Result]) -> list[Bar]:
    """A bar for each result, in the order given."""
    from ..state import readable_bytes

    found = []
    for r in results:
        grows = "" if r.constant else ", grows"
        note = f"{r.cell.mechanism}: {readable_bytes(r.state_bytes or 0)} per layer{grows}, learning rate {r.lr:g}"
        found.append(
            Bar(NAMES.get(r.cell.mechanism, r.cell.mechanism), r.accuracy, note, r.cell.mechanism == "softmax")
        )
    return found


def picture(found: Sequence[Bar], width: int = 50) -> list[str]:
    """Bars for the terminal.

    >>> picture([Bar("order 2", 0.5)], width=4)
    ['order 2            ██·· 50%']
    """
    lines = []
    for bar in found:
        full = round(width * bar.share)
        lines.append(f"{bar.label:<18} {'█' * full}{'·' * (width - full)} {bar.share:.0%}")
    return lines


def write(results: Sequence[Result], about: dict[str, Any], path: Path) -> Path:
    """Everything as JSON; ``about`` says how it was made."""
    entries = [{**asdict(r.cell), **{k: v for k, v in asdict(r).items() if k != "cell"}} for r in results]
    path.write_text(json.dumps({"setting": about, "results": entries}, indent=1) + "\n")
    return path


def draw(results: Sequence[Result], path: Path) -> Path:
    """A panel for each task, a bar for each mechanism with its interval; states of constant size first, the smallest at the top."""
    import matplotlib
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    from ..report.drawing import STYLE

    sources = list(dict.fromkeys(r.cell.source for r in results))
    panels = [
        sorted((r for r in results if r.cell.source == s), key=lambda r: (not r.constant, r.state_bytes or 0))
        for s in sources
    ]
    sizes = [len(panel) + 1 for panel in panels]
    with matplotlib.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(panels),
            1,
            figsize=(6.4, 0.34 * sum(sizes) + 0.9),
            layout="constrained",
            squeeze=False,
            height_ratios=sizes,
        )
        for axis, panel in zip(axes[:, 0], panels, strict=True):
            _bars(axis, panel)
        axes[-1, 0].set_xlabel("right answers, %")
        kinds = {"a state of constant size": CONSTANT, "keys and values, which grow": GROWS}
        patches = [Patch(color=color, label=label) for label, color in kinds.items()]
        figure.legend(handles=patches, loc="outside lower center", ncols=2)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
    return path


def _bars(axis: Any, panel: Sequence[Result]) -> None:
    from ..state import readable_bytes

    cell, place = panel[0].cell, range(len(panel))
    percent = [100 * r.accuracy for r in panel]
    below = [100 * (r.accuracy - r.low) if r.low is not None else 0.0 for r in panel]
    above = [100 * (r.high - r.accuracy) if r.high is not None else 0.0 for r in panel]
    axis.barh(place, percent, color=[CONSTANT if r.constant else GROWS for r in panel], height=0.7)
    axis.errorbar(percent, place, xerr=[below, above], fmt="none", ecolor=INK, lw=0.8)
    labels = [f"{r.cell.mechanism}, d={r.cell.key_dim}, {readable_bytes(r.state_bytes or 0)}" for r in panel]
    axis.set_yticks(place, labels)
    axis.set(xlim=(0, 100), title=f"{cell.source.removeprefix('task:')}, rows of {cell.length}")
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
