"""The end of the report: every run, how verdicts are computed, the machine, and the commands that make it all again."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ..errors import is_number
from .glyph import glyph
from .parts import number, slug, text

COLUMNS = ["run", "mechanism", "corpus", "setting", "seed", "status", "steps", "tokens", "test loss", "train loss",
           "spikes", "seconds", "note"]  # fmt: skip
NUMBERS = {"steps": 0, "tokens": 0, "test loss": 3, "train loss": 3, "seconds": 0}  # decimals
SAMPLE = {"verdict": "inconclusive", "mean": 0.012, "low": -0.003, "high": 0.027, "region": [-0.02, 0.02],
          "values": [0.006, 0.011, 0.019], "unit": "nats"}  # fmt: skip


def runs_section(summary: dict[str, Any]) -> str:
    """The table of runs, which links from claims and figures filter."""
    runs = summary.get("runs") or []
    if not runs:
        return '<section id="runs"><h2>Runs</h2><p class="absent">There are no runs yet.</p></section>'
    groups = _groups(summary)
    head = "".join(f'<th scope="col">{c}</th>' for c in COLUMNS)
    rows = "\n".join(_row(run, groups[run.get("name")]) for run in runs)
    return f"""<section id="runs"><h2>Runs</h2>
<p class="filter js-only"><label for="filter">Show runs with</label>
<input id="filter" type="search" placeholder="norm diverged" autocomplete="off" spellcheck="false">
<span id="filter-count" class="soft" aria-live="polite"></span></p>
<div class="scroll runs" role="region" aria-label="Table of runs" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>
{rows}
</tbody></table></div></section>"""


def method_section() -> str:
    """How a verdict comes about, with a picture to read the pictures by."""
    return f"""<section id="method"><h2>How verdicts are computed</h2>
<p>Each claim of the paper is put as one or more tests: a number, usually a difference between two mechanisms, and the
region in which the claim holds. Mechanisms are compared seed by seed, and the differences give a mean and its 95% interval
(Student's t over the seeds).</p>
<p class="key">{glyph(SAMPLE)} <span class="words">Shaded: the region. Dot and line: the mean and its interval. Ticks below: single seeds.
Dotted: zero. This one reaches out of its region, so it is inconclusive.</span></p>
<p>A test <b>holds</b> if the whole interval lies inside the region, <b>does not hold</b> if it lies wholly outside, and is
<b>inconclusive</b> otherwise; it is <b>not run</b> if there is nothing to compare. A claim holds if all its tests hold, and
does not hold if one of them does not. With few seeds an interval is wide: an
inconclusive test asks for more seeds, it does not deny the claim.</p></section>"""


def machine_section(summary: dict[str, Any]) -> str:
    """What it ran on and how to run it again."""
    pairs = "".join(
        f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in (summary.get("environment") or {}).items()
    )
    commands = "\n".join(text(c) for c in summary.get("commands") or [])
    made = f"Made on {text(summary['made'])}." if summary.get("made") else ""
    took = f" The runs took {number(summary['minutes'], 0)} minutes." if is_number(summary.get("minutes")) else ""
    return f"""<section id="again"><h2>Run it again</h2>
{f"<pre><code>{commands}</code></pre>" if commands else '<p class="absent">The commands were not recorded.</p>'}
<dl class="machine">{pairs}</dl>
<p class="soft">{made}{took} All numbers of this page are in <a href="summary.json">summary.json</a>.</p></section>"""


def _groups(summary: dict[str, Any]) -> dict[Any, list[str]]:
    """For each run the claims and figures it is part of, as words of the filter."""
    groups: dict[Any, list[str]] = defaultdict(list)
    for claim in summary.get("claims") or []:
        for run in claim.get("runs") or []:
            groups[run].append(f"claim:{slug(claim.get('name'))}")
    for figure in summary.get("figures") or []:
        curves = [c for p in figure.get("panels") or [] for c in p.get("curves") or []]
        for run in {r for c in curves for r in c.get("runs") or []}:
            groups[run].append(f"figure:{slug(figure.get('name'))}")
    return groups


def _row(run: dict[str, Any], groups: list[str]) -> str:
    cells = []
    for column in COLUMNS:
        value = run.get("name" if column == "run" else column.replace(" ", "_"))
        if column in NUMBERS:
            cells.append(f"<td>{number(value, NUMBERS[column])}</td>")
        elif column == "status":
            cells.append(f'<td><span class="status {slug(value)}">{text(value)}</span></td>')
        else:
            cells.append(f"<td>{text(value)}</td>")
    return f'<tr data-groups="{text(" ".join(groups))}">{"".join(cells)}</tr>'
