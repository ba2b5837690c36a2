"""``write_site``: the interactive report as a folder that opens from disk, on any machine, without a network.

The text, the verdicts and all tables are written here, section by section, so that they are there without JavaScript; the scripts
in ``static`` add what moves: charts, the order slider, the filter of runs.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Collection, Sequence
from importlib import resources
from pathlib import Path

from ..errors import UserError
from .data import Bar, ClaimView, CurveView, FigureView, JudgedTest, Report, RunView
from .style import (
    badge,
    count,
    counts,
    embedded,
    glyph,
    listed,
    number,
    page,
    slug,
    table,
    text,
    verdict_table,
)

SCRIPTS = ["plotly.min.js", "theme.js", "curves.js", "orders.js", "app.js"]  # in the order they need one another
STATIC = ["site.css", *SCRIPTS[1:]]
READING = """<p>The loss is the mean of −log p of the next token, in nats: lower is better. A line is the mean over seeds, the band
around it goes from the lowest to the highest. <span class="js-only">Click a name to hide its curve everywhere in the figure,
double-click to see it alone; drag over a panel to look closer, double-click there to come back.</span></p>"""
HIGHEST = 20  # the order slider's end
NUMBERS = {
    "steps": 0,
    "tokens": 0,
    "test_loss": 3,
    "train_loss": 3,
    "test_accuracy": 3,
    "spikes": 0,
    "seconds": 0,
}  # columns, with decimals
NAMES = {"steps": "steps done"}  # beside an option of the same name
SAMPLE = JudgedTest("", "inconclusive", (-0.02, 0.02), 0.012, -0.003, 0.027, values=[0.006, 0.011, 0.019])


def write_site(report: Report, figures: Path, out: Path) -> Path:
    """Write the page of ``report`` to the folder ``out``, with the static drawings of ``figures``; gives its index.html."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, and the report is a folder: give --out another name.")
    (out / "figures").mkdir(parents=True, exist_ok=True)
    drawn = _copy_figures(figures, out / "figures")
    shutil.copyfile(_plotly(), out / "plotly.min.js")
    for name in STATIC:
        source = resources.files(__package__) / "static" / name
        (out / name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    (out / "summary.json").write_text(report.text(), encoding="utf-8")
    index = out / "index.html"
    index.write_text(_document(report, drawn), encoding="utf-8")
    return index


def _document(report: Report, drawn: set[str]) -> str:
    # The class says, before anything is painted, that charts will come; app.js takes it back if they cannot.
    head = '<link rel="stylesheet" href="site.css"><link rel="icon" href="data:,">'
    head += '<script>document.documentElement.classList.add("js")</script>'
    figures = [figure_section(figure, report.claims, drawn) for figure in report.figures]
    title = "The figures" if report.scale is not None else "Curves"
    body = [
        _header(report),
        "<main>",
        *(_judged(report, drawn) if report.scale is not None else []),
        f'<section id="figures"><h2>{title}</h2>{READING}',
        *(figures or ['<p class="absent">No figures have been run yet.</p>']),
        "</section>",
        *([method_section()] if report.scale is not None else []),
        runs_section(report),
        machine_section(report),
        "</main>",
        embedded(report.plain(), "summary"),
        *(f'<script src="{name}"></script>' for name in SCRIPTS),
    ]
    return page(report.title, body, head)


def _judged(report: Report, drawn: set[str]) -> list[str]:
    """What only a reproduction of the paper has: verdicts, the headline, and the slider."""
    return [
        *([bar_section(report.bars)] if report.bars else []),
        f'<section id="verdicts" class="first"><div class="table">{verdict_table(report)}</div>',
        f'<div class="beside">{headline(report, drawn)}</div></section>',
        rebuild_section(report),
    ]


def _header(report: Report) -> str:
    judged = report.scale is not None
    links = [("#recall", "Recall")] if report.bars else []
    links += [("#verdicts", "Verdicts"), ("#rebuild", "Softmax rebuilt")] if judged else []
    for figure in report.figures:
        links.append((f"#figure-{slug(figure.name)}", f"Figure {figure.number}" if figure.number else figure.title))
    links += [("#method", "Method")] if judged else []
    links += [("#runs", "Runs"), ("#again", "Run it again")]
    items = "".join(f'<a href="{target}">{text(words)}</a>' for target, words in links)
    return f"""<header><nav aria-label="Sections">{items}</nav>
<h1>{text(report.title)}</h1>
<div class="opening"><div><p class="lead">{text(report.question)}</p>
<p class="soft">{text(report.setting)}</p></div>{counts(report) if judged else ""}</div></header>"""


def _copy_figures(source: Path, target: Path) -> set[str]:
    """Copy the drawings; gives their names, without the ending."""
    drawings = sorted(source.glob("*.svg")) if source.is_dir() else []
    for drawing in drawings:
        if drawing.parent.resolve() != target.resolve():
            shutil.copyfile(drawing, target / drawing.name)
    return {drawing.stem for drawing in drawings}


def _plotly() -> Path:
    """The file of plotly.js that the plotly package carries."""
    try:
        import plotly
    except ImportError:
        raise UserError("The report needs plotly: pip install 'softmax-rnn[report]'.") from None
    return Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


# The sections, from top to bottom.


def bar_section(bars: Sequence[Bar]) -> str:
    """What can be recalled, order by order: a bar for each."""
    lines = [
        f'<div class="bar{" strong" if bar.strong else ""}" title="{text(bar.note)}"><span>{text(bar.label)}</span>'
        f'<i><b style="width: {100 * bar.share:.1f}%"></b></i><span>{bar.share:.0%}</span></div>'
        for bar in bars
    ]
    return f"""<section id="recall" class="recall"><figure role="img" aria-label="Recall by mechanism">{"".join(lines)}
<figcaption>Eight pairs of a key and a value are read once; then: which value came with this key? Right answers of small
models with keys of width 8.</figcaption></figure></section>"""


def headline(report: Report, drawn: Collection[str]) -> str:
    """The figure of the first screen."""
    figure = report.figure(report.headline)
    if figure is None or figure.empty:
        return '<p class="absent">The headline figure has no runs yet.</p>'
    return (
        f'<figure class="headline">{_chart(figure, drawn, "headline")}<figcaption>{text(figure.caption)} '
        f'<a href="#figure-{slug(figure.name)}">Larger, with its numbers</a></figcaption></figure>'
    )


def figure_section(figure: FigureView, claims: list[ClaimView], drawn: Collection[str]) -> str:
    """One figure, as far as it has been run; ``drawn`` are the names of the static drawings there are."""
    section = f' <span class="soft">section {text(figure.section)}</span>' if figure.section else ""
    body = '<p class="absent">No runs yet.</p>' if figure.empty else _chart(figure, drawn, "full")
    return "\n".join(
        [
            f'<article class="figure" id="figure-{slug(figure.name)}">',
            f"<h3>{text(figure.heading)}{section}</h3>",
            f"<figure>{body}<figcaption>{text(figure.caption)}</figcaption></figure>",
            _missing(figure),
            _numbers(figure),
            _sources(figure, drawn),
            _claims([claim for claim in claims if claim.figure == figure.name]),
            "</article>",
        ]
    )


def _chart(figure: FigureView, drawn: Collection[str], size: str) -> str:
    name = slug(figure.name)
    chart = f'<div class="chart" data-figure="{text(figure.name)}" data-size="{size}"></div>'
    if name not in drawn:
        return chart + '<p class="static absent">There is no static drawing of this figure; its numbers are below.</p>'
    return chart + f'<img class="static" src="figures/{name}.svg" alt="{text(figure.heading)}" loading="lazy">'


def _missing(figure: FigureView) -> str:
    items = []
    for panel in figure.panels:
        for curve in panel.curves:
            what = f"{text(curve.label)} on {text(panel.title)}"
            if curve.missing:
                items.append(f"{what}, {'seed' if len(curve.missing) == 1 else 'seeds'} {listed(curve.missing)}")
            elif curve.empty:
                items.append(f"{what}, no finite loss")
    return f'<p class="absent">Missing: {"; ".join(items)}.</p>' if items else ""


def _numbers(figure: FigureView) -> str:
    """Final test losses as a table: a line per mechanism, a column per panel."""
    panels = [panel for panel in figure.panels if panel.curves]
    lines: dict[str, list[str]] = {}
    for i, panel in enumerate(panels):
        for curve in panel.curves:
            line = lines.setdefault(curve.label, [curve.formula, *[""] * len(panels)])
            line[1 + i] = _final(curve)
    if not lines:
        return ""
    head = ["final test loss", "formula", *(panel.title for panel in panels)]
    key = '<p class="meta">The mean over seeds, in brackets the lowest and the highest; spikes are the mean number per run.</p>'
    return f"<details><summary>Numbers</summary>{table(head, [[k, *v] for k, v in lines.items()])}{key}</details>"


def _final(curve: CurveView) -> str:
    final, seeds, missing = curve.final_test, curve.seeds, curve.missing
    if final is None:
        return number(None)
    spread = f" [{number(final.low)}, {number(final.high)}]" if final.low < final.high else ""
    there = f", {len(seeds)} of {count(len(seeds) + len(missing), 'seed')}" if missing else ""
    spikes = f", {number(curve.spikes, 1)} spikes" if curve.spikes else ""
    return f"{number(final.mean)}{spread}{there}{spikes}"


def _sources(figure: FigureView, drawn: Collection[str]) -> str:
    name = slug(figure.name)
    items = [f"<code>{text(figure.command)}</code>"] if figure.command else []
    items += [f'<a href="figures/{name}.svg">static drawing</a>'] if name in drawn else []
    if any(curve.runs for panel in figure.panels for curve in panel.curves):
        items.append(f'<a href="#runs" data-filter="figure:{name}">its runs</a>')
    return f'<p class="meta">{" · ".join(items)}</p>'


def _claims(claims: list[ClaimView]) -> str:
    if not claims:
        return ""
    items = "".join(
        f'<li>{badge(claim.verdict)} <a href="#claim-{slug(claim.name)}">{text(claim.sentence)}</a></li>'
        for claim in claims
    )
    return f'<p class="meta">Claims that rest on it:</p><ul class="resting">{items}</ul>'


def rebuild_section(report: Report) -> str:
    """Softmax rebuilt from its terms: the words around the order slider, which ``orders.js`` brings to life."""
    heading = '<section id="rebuild"><h2>Softmax, rebuilt from its terms</h2>'
    story = """<p>Attention gives every earlier token s a weight, the exponential of its score x<sub>s</sub>, divided by the sum
of them all. The exponential is a series, 1 + x + x²/2 + x³/6 + …, and each of its terms can be computed by a recurrent network
that reads the text once: order 0 counts tokens, order 1 is linear attention, order n remembers products of n channels. Cut the
series at an order, divide by its own sum, and see how much of softmax is already there.</p>"""
    example = report.example
    if example is None or not example.scores:
        absent = '<p class="absent">There is no query of a trained model to show yet.</p></section>'
        return f"{heading}{story}{absent}"
    where = ", ".join(words for words in (example.model, example.where) if words)
    return f"""{heading}{story}
<div class="orders js-only">
<div class="slider"><label for="order">Order <output id="order-value" for="order">2</output></label>
<div class="track"><div id="order-errors"></div>
<input id="order" type="range" min="0" max="{HIGHEST}" step="1" value="2" aria-describedby="order-words"></div></div>
<p id="order-words" class="order-words" aria-live="polite"></p>
<div id="order-bars"></div>
<p class="key bars-key"><span><i class="swatch softmax"></i>softmax</span><span><i class="swatch series"></i>the series up to this
order</span><span><i class="swatch below"></i>a negative weight</span>
<span>Over the slider: the largest difference at each order, log scale.</span></p>
</div>
<p class="static">Moving the order needs JavaScript.</p>
<p class="soft">The scores are those of a trained model: {text(where)}; the query is token {example.query}.
{text(example.note)}</p></section>"""


def runs_section(report: Report) -> str:
    """The table of runs, which links from claims and figures filter."""
    if not report.runs:
        return '<section id="runs"><h2>Runs</h2><p class="absent">There are no runs yet.</p></section>'
    groups, keys = _groups(report), list(dict.fromkeys(key for run in report.runs for key in run.keys))
    numbers = [n for n in NUMBERS if n != "test_accuracy" or any(run.test_accuracy is not None for run in report.runs)]
    columns = ["run", *keys, "status", *(NAMES.get(name, name.replace("_", " ")) for name in numbers), "note"]
    head = "".join(f'<th scope="col">{text(column)}</th>' for column in columns)
    lines = "\n".join(_run(run, keys, numbers, groups[run.name]) for run in report.runs)
    return f"""<section id="runs"><h2>Runs</h2>
<p class="filter js-only"><label for="filter">Show runs with</label>
<input id="filter" type="search" placeholder="norm diverged" autocomplete="off" spellcheck="false">
<span id="filter-count" class="soft" aria-live="polite"></span></p>
<div class="scroll runs" role="region" aria-label="Table of runs" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>
{lines}
</tbody></table></div></section>"""


def _groups(report: Report) -> dict[str, list[str]]:
    """For each run the claims and figures it is part of, as words of the filter."""
    groups: dict[str, list[str]] = defaultdict(list)
    for claim in report.claims:
        for run in claim.runs:
            groups[run].append(f"claim:{slug(claim.name)}")
    for figure in report.figures:
        curves = [curve for panel in figure.panels for curve in panel.curves]
        for run in dict.fromkeys(run for curve in curves for run in curve.runs):
            groups[run].append(f"figure:{slug(figure.name)}")
    return groups


def _run(run: RunView, keys: list[str], numbers: list[str], groups: list[str]) -> str:
    words = [run.name, *(run.keys.get(key, "") for key in keys)]
    cells = [text(word) for word in words]
    cells.append(f'<span class="status {slug(run.status)}">{text(run.status)}</span>')
    cells += [number(getattr(run, name), NUMBERS[name]) for name in numbers]
    cells.append(text(run.note))
    return f'<tr data-groups="{text(" ".join(groups))}">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def method_section() -> str:
    """How a verdict comes about, with a picture to read the pictures by."""
    return f"""<section id="method"><h2>How verdicts are computed</h2>
<p>Each claim is put as one or more tests: a number, usually a difference between two mechanisms, and the region in which the
claim holds. Mechanisms are compared seed by seed, and the differences give a mean and its 95% interval (Student's t over the
seeds).</p>
<p class="key">{glyph(SAMPLE)} <span class="words">Shaded: the region. Dot and line: the mean and its interval. Ticks below: single seeds.
Dotted: zero. This interval crosses the border of its region, so the test is inconclusive.</span></p>
<p>A test <b>holds</b> if the whole interval lies inside the region, <b>does not hold</b> if it lies wholly outside, and is
<b>inconclusive</b> otherwise. A test about loss spikes is <b>not testable here</b> if no run has one, and a test is <b>not run</b>
if there is nothing to compare. A claim holds if all its tests hold, and does not hold if one of them does not. “Matches” is
tested as “not worse by more than the margin”; beside it stands whether the two are equivalent, which decides nothing.</p>
<p>Sensitivity to the learning rate is the final loss, averaged over learning rates from 0.001 to 0.1, minus the loss at the best
of them. With few seeds an interval is wide: an inconclusive test asks for more seeds, it does not deny the claim.</p></section>"""


def machine_section(report: Report) -> str:
    """What it ran on and how to run it again."""
    pairs = "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in report.environment.items())
    commands = "\n".join(text(command) for command in report.commands)
    made = f"The last run began on {text(report.made)}." if report.made else ""
    took = f" All runs took {number(report.minutes, 0)} minutes." if report.minutes is not None else ""
    return f"""<section id="again"><h2>Run it again</h2>
{f"<pre><code>{commands}</code></pre>" if commands else '<p class="absent">The commands were not recorded.</p>'}
<dl class="machine">{pairs}</dl>
<p class="soft">{made}{took} All numbers of this page are in <a href="summary.json">summary.json</a>.</p></section>"""
