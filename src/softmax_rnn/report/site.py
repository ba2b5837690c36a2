"""``write_site``: the interactive report as a folder that opens from disk, on any machine, without a network.

The text, the verdicts and all tables are written here, so that they are there without JavaScript; the scripts in
``static`` add what moves: charts, the order slider, the filter of runs.
"""

from __future__ import annotations

import json
import math
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import UserError
from .figures import figure_section, headline
from .parts import slug, text
from .rebuild import rebuild_section
from .runs import machine_section, method_section, runs_section
from .style import page
from .verdicts import counts, verdict_table

SCRIPTS = ["plotly.min.js", "theme.js", "curves.js", "orders.js", "app.js"]  # in the order they need one another
STATIC = ["site.css", *SCRIPTS[1:]]
READING = """<p>The loss is the mean of −log p of the next token, in nats: lower is better. A line is the mean over seeds, the band
around it goes from the lowest to the highest. <span class="js-only">Click a name to hide its curve everywhere in the figure,
double-click to see it alone; drag over a panel to look closer, double-click there to come back.</span></p>"""


def write_site(summary: dict[str, Any], figures: Path, out: Path) -> Path:
    """Write the report of ``summary`` to the folder ``out``, with the static drawings of ``figures``; gives its index.html."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, and the report is a folder: give --out another name.")
    summary = _finite(summary)
    (out / "figures").mkdir(parents=True, exist_ok=True)
    drawn = _copy_figures(figures, out / "figures")
    shutil.copyfile(_plotly(), out / "plotly.min.js")
    for name in STATIC:
        source = resources.files(__package__) / "static" / name
        (out / name).write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    (out / "summary.json").write_text(
        json.dumps(summary, indent=1, allow_nan=False, ensure_ascii=False), encoding="utf-8"
    )
    index = out / "index.html"
    index.write_text(_document(summary, drawn), encoding="utf-8")
    return index


def embedded(summary: dict[str, Any]) -> str:
    """The data as a script element: JSON in which no tag can begin or end.

    >>> embedded({"label": "</script>"})
    '<script type="application/json" id="summary">{"label": "\\\\u003c/script\\\\u003e"}</script>'
    """
    data = json.dumps(summary, allow_nan=False)
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="summary">{data}</script>'


def _document(summary: dict[str, Any], drawn: set[str]) -> str:
    # The class says, before anything is painted, that charts will come; app.js takes it back if they cannot.
    head = '<link rel="stylesheet" href="site.css"><link rel="icon" href="data:,">'
    head += '<script>document.documentElement.classList.add("js")</script>'
    claims = summary.get("claims") or []
    sections = [figure_section(f, claims, drawn) for f in summary.get("figures") or []]
    body = [
        _header(summary),
        "<main>",
        f'<section id="verdicts" class="first"><div class="table">{verdict_table(summary)}</div>',
        f'<div class="beside">{headline(summary, drawn)}</div></section>',
        rebuild_section(summary),
        f'<section id="figures"><h2>The figures</h2>{READING}',
        *(sections or ['<p class="absent">No figures have been run yet.</p>']),
        "</section>",
        method_section(),
        runs_section(summary),
        machine_section(summary),
        "</main>",
        embedded(summary),
        *(f'<script src="{name}"></script>' for name in SCRIPTS),
    ]
    return page(str(summary.get("title") or "Report"), body, head)


def _header(summary: dict[str, Any]) -> str:
    links = [("#verdicts", "Verdicts"), ("#rebuild", "Softmax rebuilt")]
    for figure in summary.get("figures") or []:
        links.append((f"#figure-{slug(figure.get('name'))}", f"Figure {figure.get('number') or figure.get('name')}"))
    links += [("#method", "Method"), ("#runs", "Runs"), ("#again", "Run it again")]
    items = "".join(f'<a href="{target}">{text(words)}</a>' for target, words in links)
    return f"""<header><nav aria-label="Sections">{items}</nav>
<h1>{text(summary.get("title") or "Report")}</h1>
<div class="opening"><div><p class="lead">{text(summary.get("question"))}</p>
<p class="soft">{text(summary.get("setting"))}</p></div>{counts(summary)}</div></header>"""


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


def _finite(value: Any) -> Any:
    """The same data, with None in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
