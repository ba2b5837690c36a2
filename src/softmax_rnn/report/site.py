"""``write_site``: the interactive report as a folder that opens from disk, on any machine, without a network.

The text, the verdicts and all tables are written here, so that they are there without JavaScript; the scripts in
``static`` add what moves: charts, the order slider, the filter of runs.
"""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path

from ..errors import UserError
from .data import Report
from .sections import figure_section, headline, machine_section, method_section, rebuild_section, runs_section
from .style import page, slug, text
from .verdicts import counts, verdict_table

SCRIPTS = ["plotly.min.js", "theme.js", "curves.js", "orders.js", "app.js"]  # in the order they need one another
STATIC = ["site.css", *SCRIPTS[1:]]
READING = """<p>The loss is the mean of −log p of the next token, in nats: lower is better. A line is the mean over seeds, the band
around it goes from the lowest to the highest. <span class="js-only">Click a name to hide its curve everywhere in the figure,
double-click to see it alone; drag over a panel to look closer, double-click there to come back.</span></p>"""


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


def embedded(report: Report) -> str:
    """The data as a script element: JSON in which no tag can begin or end.

    >>> "</script>" in embedded(Report(title="</script>")).removesuffix("</script>")
    False
    """
    data = json.dumps(report.plain(), allow_nan=False)
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="summary">{data}</script>'


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
        embedded(report),
        *(f'<script src="{name}"></script>' for name in SCRIPTS),
    ]
    return page(report.title, body, head)


def _judged(report: Report, drawn: set[str]) -> list[str]:
    """What only a reproduction of the paper has: verdicts, the headline, and the slider."""
    return [
        f'<section id="verdicts" class="first"><div class="table">{verdict_table(report)}</div>',
        f'<div class="beside">{headline(report, drawn)}</div></section>',
        rebuild_section(report),
    ]


def _header(report: Report) -> str:
    judged = report.scale is not None
    links = [("#verdicts", "Verdicts"), ("#rebuild", "Softmax rebuilt")] if judged else []
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
