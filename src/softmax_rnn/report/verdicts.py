"""Verdicts: how many there are of each, a table with one row per claim, and the picture of a test beside its numbers."""

from __future__ import annotations

from collections.abc import Callable

from .data import VERDICTS, Bound, ClaimView, JudgedTest, Report, Verdict
from .style import count, decimals_for, number, slug, text

WIDTH, HEIGHT = 150, 22


def badge(verdict: Verdict) -> str:
    """A verdict as a coloured word with a sign of its own, so that it does not rest on colour."""
    sign = f'<span aria-hidden="true">{VERDICTS[verdict]}</span>'
    return f'<span class="badge {slug(verdict)}">{sign} {text(verdict)}</span>'


def counts(report: Report) -> str:
    """How many claims have each verdict, in words and colours."""
    items = [f'<li class="{slug(word)}"><b>{many}</b> <span>{word}</span></li>' for word, many in report.counts.items()]
    return f'<ul class="counts" aria-label="Verdicts">{"".join(items)}</ul>'


def verdict_table(report: Report) -> str:
    """One row per claim, with the test that decided; the others unfold."""
    if not report.claims:
        return '<p class="absent">No claims have been tested yet.</p>'
    rows = "\n".join(_claim(claim, report) for claim in report.claims)
    return (
        '<table class="claims"><thead><tr><th scope="col">The paper says</th><th scope="col">Verdict</th>'
        f'<th scope="col">Measured</th></tr></thead>\n{rows}\n</table>'
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
    note = f'<p class="meta">{text(test.note)}</p>' if test.note and not silent else ""
    return f'<li><p>{text(test.text)} {badge(test.verdict)}</p>{_measured(test)}<p class="meta">{text(seeds)}</p>{note}</li>'


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
    return f"{value:g}".replace("-", "−")


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
