"""Quality against cost, drawn: ``frontier.svg``, ``recall.svg``, and a page that moves, in one file that opens without a network.

A state of constant size is a dot. Keys and values grow with the context, so softmax and its kin are lines: as good at every length that
was trained, and ever more expensive to the right.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib

from ..files import write_atomically
from ..report.data import Report
from ..report.drawing import STYLE, digest, plt
from ..report.style import counts, embedded, page, table, text, verdict_table
from ..state import readable_bytes
from .design import ARENAS
from .results import FAMILIES, Frontier, Measured, family, footprint, memory, shown

CONTEXTS = (16, 65536)  # between which keys and values are drawn
AXES = {"bytes": "state of a layer, bytes", "operations": "operations for one more token, per layer"}
TITLES = {"recall": "associative recall, right answers, %", "text": "next token of a text, test loss"}
ORDER_NAMES = {f"taylor{n}_norm": f"order {n}" for n in range(5)}
LEAD = (
    "Softmax attention remembers every key and value, so its memory grows with the text. A series cut at order n, with decay or the "
    "delta rule or without, remembers a state of constant size. How good is each of them for how much memory?"
)


def write(report: Frontier, out: Path) -> list[Path]:
    """All files; returns them."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "frontier.json", report.text())
    files = [out / "frontier.json", *draw(report, out)]
    svg = (out / "frontier.svg").read_text()
    write_atomically(out / "index.html", document(report, svg))
    return [*files, out / "index.html"]


# The drawings.


def draw(report: Frontier, out: Path) -> list[Path]:
    """``frontier.svg`` and, where recall was run, ``recall.svg``."""
    data = [m.plain() for m in report.points]
    with matplotlib.rc_context(STYLE):
        drawings = {"frontier": _frontier(report), "recall": _recall(report)}
    for name, drawing in drawings.items():
        drawing.savefig(out / f"{name}.svg", metadata={"Date": None, "Description": f"data {digest(data)}"})
        plt.close(drawing)
    return [out / f"{name}.svg" for name in drawings]


def _frontier(report: Frontier) -> Any:
    there = [arena for arena in TITLES if report.at(arena)] or list(TITLES)[:1]
    size = (10.5, 0.6 + 3.4 * len(there))
    drawing, axes = plt.subplots(len(there), 2, figsize=size, layout="constrained", sharey="row", squeeze=False)
    for line, arena in enumerate(there):
        for column, quantity in enumerate(AXES):
            axis = axes[line][column]
            for m in report.at(arena):
                _point(axis, m, quantity)
            axis.set_xscale("log", base=2 if quantity == "bytes" else 10)
            if quantity == "bytes":
                axis.xaxis.set_major_formatter(lambda x, _: readable_bytes(x))
            axis.set(xlabel=AXES[quantity], ylabel=TITLES[arena] if column == 0 else "")
        if ARENAS[arena].quantity == "loss" and report.at(arena):
            axes[line][0].invert_yaxis()  # better is up
    drawn = {family(m.point.mechanism) for m in report.points if m.point.arena in TITLES}
    handles = [plt.Line2D([], [], color=c, marker="o", ls="") for f, (_, c) in FAMILIES.items() if f in drawn]
    labels = [f for f in FAMILIES if f in drawn]
    drawing.legend(handles, labels, loc="outside lower center", ncols=4)
    return drawing


def _point(axis: Any, m: Measured, quantity: str) -> None:
    p, q = m.point, m.quality
    color = FAMILIES[family(p.mechanism)][1]
    up = 100.0 if p.place.quantity == "accuracy" else 1.0
    if footprint(p, 1).constant:
        x = getattr(footprint(p, 1), quantity)
        size = {4: 3.0, 8: 4.5, 16: 6.0, 32: 7.5}[p.key_dim]
        axis.plot(x, up * q.mean, "o", ms=size, color=color, mfc=color if p.conv or p.arena == "text" else "white")
        axis.annotate(
            _short(p.mechanism), (x, up * q.mean), xytext=(4, 3), textcoords="offset points", fontsize=5.5, color=color
        )
    else:
        ends = [getattr(footprint(p, t), quantity) for t in CONTEXTS]
        axis.plot(ends, [up * q.mean] * 2, color=color, lw=0.6 + p.key_dim / 16, alpha=0.7)


def _short(mechanism: str) -> str:
    """A label for a dot: its order, or its window.

    >>> _short("taylor2_norm_decay"), _short("near2_w64")
    ('2', 'w64')
    """
    found = mechanism.removeprefix("taylor").partition("_")[0]
    return found if found.isdigit() else mechanism.rpartition("_")[2] if "_w" in mechanism else mechanism


def _recall(report: Frontier) -> Any:
    """The point of it all: accuracy order by order, a line for each key width, between linear attention and softmax."""
    drawing, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    there = {
        (m.point.mechanism, m.point.key_dim): m for m in report.points if m.point.arena == "recall" and m.point.conv
    }
    widths = sorted({d for _, d in there})
    names = ["linear_elu", *ORDER_NAMES, "norm", "softmax"]
    for n, width in enumerate(widths):
        some = [(i, there[name, width].quality) for i, name in enumerate(names) if (name, width) in there]
        color = plt.get_cmap("viridis")(0.1 + 0.75 * n / max(len(widths) - 1, 1))
        mean = [100 * q.mean for _, q in some]
        low = [100 * (q.mean - max(q.low, 0.0)) if q.low is not None else 0 for _, q in some]
        high = [100 * (min(q.high, 1.0) - q.mean) if q.high is not None else 0 for _, q in some]
        places = [i for i, _ in some]
        axis.errorbar(places, mean, [low, high], fmt="o", ms=4, lw=1.2, color=color, label=f"keys of {width}")
        orders = [(i, y) for i, y in zip(places, mean, strict=True) if names[i] in ORDER_NAMES]
        axis.plot([i for i, _ in orders], [y for _, y in orders], lw=1.2, color=color)
    labels = ["linear\nattention", *(f"order\n{n}" for n in range(5)), "all orders,\nnorm", "softmax"]
    axis.set_xticks(range(len(names)), labels)
    axis.set(ylim=(-3, 103), ylabel="right answers, %", title="What can be recalled, order by order")
    axis.legend(loc="lower right")
    return drawing


# The page.


def document(report: Frontier, svg: str) -> str:
    """The whole page."""
    static = resources.files("softmax_rnn.report") / "static"
    style = (static / "site.css").read_text(encoding="utf-8") + _file("frontier.css")
    scripts = (static / "theme.js").read_text(encoding="utf-8"), _file("frontier.js")
    head = f'<link rel="icon" href="data:,"><style>{style}</style><script>document.documentElement.classList.add("js")</script>'
    judged = Report(claims=report.claims)
    done = f"{len(report.points)} of {len(report.points) + len(report.missing)} points have all of their runs."
    body = [
        '<header><nav aria-label="Sections"><a href="#charts">Frontier</a><a href="#claims">Claims</a>'
        '<a href="#numbers">Numbers</a><a href="#again">Run it again</a></nav>',
        f"<h1>Which attention for how much memory?</h1><p class='lead'>{LEAD}</p></header><main>",
        _charts(svg),
        f'<section id="claims"><h2>Claims of our own</h2><p>None of these is the paper\'s. They were written down before the runs; '
        "results/LOG.md says what had been seen by then.</p>"
        f"{counts(judged)}{verdict_table(judged)}</section>",
        *_tables(report),
        f'<section id="again"><h2>Run it again</h2><p>{done}</p><pre>softmax-rnn frontier\n'
        "softmax-rnn frontier --from results/frontier --draw</pre></section></main>",
        embedded(_data(report), "frontier"),
        *(f"<script>{script}</script>" for script in scripts),
    ]
    return page("Which attention for how much memory?", body, head)


def _slider(name: str, label: str, low: int, high: int, value: int) -> str:
    """Of powers of two."""
    scale = f'min="{low}" max="{high}" step="0.25" value="{value}"'
    return f'<label>{label} <output id="{name}-value"></output><input type="range" id="{name}" {scale}></label>'


def _plot(arena: str) -> str:
    """A chart with the sentence about the best choice below it."""
    return (
        f'<figure><h3>{text(TITLES[arena])}</h3><div class="plot" id="plot-{arena}"></div>'
        f'<p class="words" id="words-{arena}"></p></figure>'
    )


def _charts(svg: str) -> str:
    drawing = svg[svg.index("<svg") :]
    return f"""<section id="charts"><div class="controls js-only">
<div class="choice" role="group" aria-label="Cost" id="axis"><span>Cost</span></div>
{_slider("context", "Context", 4, 16, 10)}{_slider("budget", "Memory for a layer", 7, 24, 13)}
</div><div class="legend js-only" id="families"></div>
<div class="pair js-only">{_plot("recall")}{_plot("text")}</div>
<figure class="static">{drawing}</figure>
<p class="soft">Dots are states of constant size. Lines are keys and values, which grow with the context; their dot is at the context chosen
above. The larger a dot, the wider the keys. Hollow dots of recall have no convolution. A ring is the best that fits into the memory.
Quality is measured, at the length of training; cost is computed.</p></section>"""


def _tables(report: Frontier) -> list[str]:
    parts = ['<section id="numbers"><h2>Numbers</h2>']
    for arena, about in ARENAS.items():
        some = report.at(arena)
        if some:
            parts.append(
                f"<details><summary>{text(arena)}: {text(about.source)}, rows of {about.length}, {about.steps} steps</summary>"
            )
            head = ["mechanism", "keys", "convolution", about.quantity, "state of a layer", "learning rate", "seeds"]
            lines = [
                [
                    m.point.mechanism + (f", beta up to {m.point.beta_max:g}" if arena == "parity" else ""),
                    m.point.key_dim,
                    m.point.conv,
                    shown(m),
                    memory(m),
                    f"{m.quality.lr:g}",
                    len(m.quality.values),
                ]
                for m in some
            ]
            parts += [table(head, lines), "</details>"]
    return [*parts, "</section>"]


def _data(report: Frontier) -> dict[str, Any]:
    """What the charts show."""
    points = [m.plain() for m in report.points if m.point.arena in TITLES]
    return {"points": points, "families": {family: color for family, (_, color) in FAMILIES.items()}}


def _file(name: str) -> str:
    return (resources.files(__package__) / "static" / name).read_text(encoding="utf-8")
