"""One look for all pages: plain HTML and CSS in a single file, readable on a phone, in the dark, and without a network.

A document with its tables and figures; text and numbers as HTML (all text goes through ``text``: names come from users); a verdict as a
badge, a test as words and as a picture, and claims as a table of these.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import is_number
from .data import VERDICTS, Bound, ClaimView, JudgedTest, Report, Verdict

WIDTH, HEIGHT = 150, 22  # of the picture of a test

CSS = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #666; --line: #ddd; --paper: #fff; --mark: #fff3d6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e6e3; --soft: #9a9a9a; --line: #3a3a3a; --paper: #16181a; --mark: #3d3210; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.2rem;
  font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { margin-top: 2.2rem; font-size: 1.2rem; }
p.lead { font-size: 1.1rem; } .soft { color: var(--soft); }
figure { margin: 1rem 0; overflow-x: auto; } figure svg { max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
figcaption { color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } tr.marked td { background: var(--mark); }
code { font-size: .9em; overflow-wrap: anywhere; }
"""


def page(title: str, body: Sequence[str], head: str = "") -> str:
    """A whole document; ``body`` is HTML, and so is ``head``, for what a page needs beyond the common style."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{CSS}</style>{head}</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def table(head: Sequence[str], lines: Sequence[Sequence[object]], marked: Sequence[int] = ()) -> str:
    """A table; lines whose index is in ``marked`` stand out."""
    cells = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    parts = [f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>']
    for i, line in enumerate(lines):
        kind = ' class="marked"' if i in marked else ""
        parts.append(f"<tr{kind}>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in line) + "</tr>")
    return "\n".join([*parts, "</tbody></table></div>"])


def figure(svg: str, caption: str) -> str:
    """An SVG drawing, inline, with its caption."""
    drawing = svg[svg.index("<svg") :]  # without the XML prologue, which HTML does not take
    return f"<figure>{drawing}<figcaption>{html.escape(caption)}</figcaption></figure>"


def text(value: object) -> str:
    """Anything as HTML text, also safe inside a quoted attribute; nothing for None.

    >>> text("<b>")
    '&lt;b&gt;'
    """
    return "" if value is None else html.escape(str(value))


def embedded(data: Any, name: str) -> str:
    """Plain data as a script element: JSON in which no tag can begin or end.

    >>> "</script>" in embedded("</script>", "data").removesuffix("</script>")
    False
    """
    written = json.dumps(data, allow_nan=False)
    for character in "<>&":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{name}">{written}</script>'


def slug(name: object) -> str:
    """A name as an anchor and as a file name.

    >>> slug("fig2/<b>")
    'fig2--b-'
    """
    return re.sub(r"[^A-Za-z0-9_.-]", "-", str(name))


def number(value: Any, decimals: int = 3, sign: bool = False) -> str:
    """A number with a true minus, or a dash where there is none.

    >>> number(-0.0123), number(0.5, 1, sign=True), number(None)
    ('−0.012', '+0.5', '—')
    """
    if not is_number(value):
        return "—"
    shown = f"{value:{'+' if sign else ''},.{decimals}f}"
    if not any(c in "123456789" for c in shown):  # neither −0.000 nor +0.000
        shown = shown.lstrip("+-")
    return shown.replace("-", "−")


def decimals_for(width: float) -> int:
    """How many decimals show an interval of this width to two digits.

    >>> decimals_for(0.034), decimals_for(12)
    (3, 0)
    """
    return min(max(1 - math.floor(math.log10(width)), 0), 6) if width > 0 else 3


def count(n: int, thing: str) -> str:
    """A number and its noun.

    >>> count(1, "seed"), count(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{n} {thing}{'' if n == 1 else 's'}"


def listed(items: Sequence[object]) -> str:
    """Items in a sentence, as HTML.

    >>> listed([0, 1, 2])
    '0, 1 and 2'
    """
    words = [text(i) for i in items]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def badge(verdict: Verdict) -> str:
    """A verdict as a coloured word with a sign of its own, so that it does not rest on colour."""
    sign = f'<span aria-hidden="true">{VERDICTS[verdict]}</span>'
    return f'<span class="badge {slug(verdict)}">{sign} {text(verdict)}</span>'


def measured(test: JudgedTest) -> str:
    """Mean and interval in words, with the decimals that the interval's width deserves.

    >>> measured(JudgedTest("norm − softmax", "holds", (None, 0.03), 0.005, -0.012, 0.0214))
    '+0.005 [−0.012, 0.021] nats'
    """
    unit = f" {test.unit}" if test.unit else ""
    if test.mean is None:
        return "no number"
    if test.low is None or test.high is None:
        return f"{number(test.mean, sign=True)}{unit}, no interval"
    digits = decimals_for(test.high - test.low)
    return f"{number(test.mean, digits, sign=True)} [{number(test.low, digits)}, {number(test.high, digits)}]{unit}"


def region_words(region: tuple[Bound, Bound]) -> str:
    """Where a claim holds, in words.

    >>> region_words((-0.02, 0.02)), region_words((None, 0.5))
    ('within ±0.02', 'up to 0.5')
    """
    low, high = region
    if low is not None and high is not None:
        return f"within ±{high:g}" if low == -high else f"between {_short(low)} and {_short(high)}"
    if low is not None:
        return f"above {_short(low)}"
    return f"up to {_short(high)}" if high is not None else "anywhere"


def _short(value: float) -> str:
    return (f"{value:g}" if abs(value) > 1e-5 else "0").replace("-", "−")


def glyph(test: JudgedTest) -> str:
    """Inline SVG: the region shaded, the interval a line with the mean as a dot, seeds as ticks, zero dotted."""
    (low, high), values = test.region, [value for value in test.values if value is not None]
    shown = [v for v in (low, high, test.low, test.high, test.mean, *values) if v is not None]
    if not shown:
        return ""
    at = _scale(shown)
    left, right = (0.0 if low is None else at(low)), (WIDTH if high is None else at(high))
    marks = [f'<rect class="region" x="{left:.1f}" y="1" width="{max(right - left, 1):.1f}" height="{HEIGHT - 2}"/>']
    marks += [_line("bound", at(bound), 1, HEIGHT - 1) for bound in (low, high) if bound is not None]
    if 0 < at(0) < WIDTH:
        marks.append(_line("zero", at(0), 1, HEIGHT - 1))
    marks += [_line("seed", at(value), HEIGHT - 8, HEIGHT - 3) for value in values]
    if test.low is not None and test.high is not None:
        marks.append(f'<path class="interval" d="M{at(test.low):.1f} 9H{at(test.high):.1f}"/>')
    if test.mean is not None:
        marks.append(f'<circle class="mean" cx="{at(test.mean):.1f}" cy="9" r="3.6"/>')
    label = text(f"{measured(test)}; the claim holds {region_words(test.region)}")
    return (
        f'<svg class="glyph {slug(test.verdict)}" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        f' role="img" aria-label="{label}">{"".join(marks)}</svg>'
    )


def _scale(shown: list[float]) -> Callable[[float], float]:
    """A map from values to x, with a margin on both sides so that an unbounded region visibly goes on."""
    low, high = min(shown), max(shown)
    margin = 0.14 * (high - low) or max(abs(high), 1e-3)
    return lambda v: WIDTH * (v - low + margin) / (high - low + 2 * margin)


def _line(name: str, x: float, top: float, bottom: float) -> str:
    return f'<path class="{name}" d="M{x:.1f} {top}V{bottom}"/>'


def counts(report: Report) -> str:
    """How many claims have each verdict, in words and colours."""
    items = [f'<li class="{slug(word)}"><b>{many}</b> <span>{word}</span></li>' for word, many in report.counts.items()]
    return f'<ul class="counts" aria-label="Verdicts">{"".join(items)}</ul>'


def verdict_table(report: Report) -> str:
    """One line per claim, with the test that decided; the others unfold."""
    if not report.claims:
        return '<p class="absent">No claims have been tested yet.</p>'
    lines = "\n".join(_claim(claim, report) for claim in report.claims)
    who = "The claim" if all(claim.ours for claim in report.claims) else "The paper says"
    return (
        f'<table class="claims"><thead><tr><th scope="col">{who}</th><th scope="col">Verdict</th>'
        f'<th scope="col">Measured</th></tr></thead>\n{lines}\n</table>'
    )


def _claim(claim: ClaimView, report: Report) -> str:
    return (
        f'<tbody id="claim-{slug(claim.name)}"><tr><td><p>{text(claim.sentence)}</p>{_links(claim, report)}</td>'
        f"<td>{badge(claim.verdict)}</td><td>{_measured(claim.deciding)}</td></tr>{_details(claim)}</tbody>"
    )


def _links(claim: ClaimView, report: Report) -> str:
    items = ["Our own question"] if claim.ours else []
    items += [f"Section {text(claim.section)}"] if claim.section else []
    figure = report.figure(claim.figure)
    if figure is not None:
        items.append(f'<a href="#figure-{slug(figure.name)}">Figure {text(figure.number or figure.name)}</a>')
    if claim.runs:
        query = text(f"claim:{slug(claim.name)}")
        items.append(f'<a href="#runs" data-filter="{query}">{count(len(claim.runs), "run")}</a>')
    return f'<p class="meta">{" · ".join(items)}</p>'


def _measured(test: JudgedTest | None) -> str:
    if test is None:
        return '<span class="soft">nothing yet</span>'
    if test.verdict == "not testable here":
        return f'<p class="meta">{text(test.note)}</p>'
    return (
        f'{glyph(test)}<p class="numbers">{text(measured(test))}</p>'
        f'<p class="meta">holds {text(region_words(test.region))}{text(_beside(test))}</p>'
        + (f'<p class="meta">{text(test.note)}</p>' if test.note else "")
    )


def _beside(test: JudgedTest) -> str:
    """For "matches": whether the two are also equivalent."""
    if test.equivalence is None or test.equivalent is None:
        return ""
    words = {"holds": "equivalent", "does not hold": "not equivalent"}.get(test.equivalent, "equivalence open")
    return f"; {words} ({region_words(test.equivalence)})"


def _details(claim: ClaimView) -> str:
    tests, missing = claim.tests, claim.missing
    if not tests and not missing:
        return ""
    title = " and ".join(
        ([count(len(tests), "test")] if tests else []) + ([f"{count(len(missing), 'run')} missing"] if missing else [])
    )
    body = "".join(_test(test) for test in tests)
    if missing:
        body += f'<li class="absent">Missing: {text("; ".join(missing))}</li>'
    unfolding = f'<details><summary>{title}</summary><ul class="tests">{body}</ul></details>'
    return f'<tr class="more"><td colspan="3">{unfolding}</td></tr>'


def _test(test: JudgedTest) -> str:
    silent = test.verdict == "not testable here"
    pairs = [] if silent else zip(test.seeds, test.values, strict=False)
    seeds = ", ".join(f"seed {s}: {number(v, 4)}" for s, v in pairs)
    return f'<li><p>{text(test.text)} {badge(test.verdict)}</p>{_measured(test)}<p class="meta">{text(seeds)}</p></li>'
