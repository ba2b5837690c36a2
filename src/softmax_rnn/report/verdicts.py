"""The verdicts: how many there are of each, and a table with one row per claim of the paper."""

from __future__ import annotations

from typing import Any

from .glyph import glyph, measured, region_words
from .parts import SYMBOLS, badge, count, kind, number, slug, text


def counts(summary: dict[str, Any]) -> str:
    """The four numbers, in words and colours."""
    found = summary.get("counts") or {}
    items = [f'<li class="{kind(word)}"><b>{text(found.get(word, 0))}</b> <span>{word}</span></li>' for word in SYMBOLS]
    return f'<ul class="counts" aria-label="Verdicts">{"".join(items)}</ul>'


def verdict_table(summary: dict[str, Any]) -> str:
    """One row per claim, with the test that decided; the others unfold."""
    claims = summary.get("claims") or []
    if not claims:
        return '<p class="absent">No claims have been tested yet.</p>'
    numbers = {f.get("name"): f.get("number") for f in summary.get("figures") or []}
    rows = "\n".join(_row(claim, numbers) for claim in claims)
    return (
        '<table class="claims"><thead><tr><th scope="col">The paper says</th><th scope="col">Verdict</th>'
        f'<th scope="col">Measured</th></tr></thead>\n{rows}\n</table>'
    )


def deciding(claim: dict[str, Any]) -> dict[str, Any] | None:
    """The test to show first: the first that came out as the claim did, since that one decided it."""
    tests = claim.get("tests") or []
    same = [t for t in tests if t.get("verdict") == claim.get("verdict")]
    return (same or tests or [None])[0]


def _row(claim: dict[str, Any], numbers: dict[Any, Any]) -> str:
    return (
        f'<tbody id="claim-{slug(claim.get("name"))}"><tr><td><p>{text(claim.get("sentence"))}</p>{_links(claim, numbers)}</td>'
        f"<td>{badge(claim.get('verdict'))}</td><td>{_measured(deciding(claim))}</td></tr>{_details(claim)}</tbody>"
    )


def _links(claim: dict[str, Any], numbers: dict[Any, Any]) -> str:
    items = [f"Section {text(claim['section'])}"] if claim.get("section") else []
    name = claim.get("figure")
    if name in numbers:
        items.append(f'<a href="#figure-{slug(name)}">Figure {text(numbers[name] or name)}</a>')
    if claim.get("runs"):
        query = text(f"claim:{slug(claim.get('name'))}")
        items.append(f'<a href="#runs" data-filter="{query}">{count(len(claim["runs"]), "run")}</a>')
    return f'<p class="meta">{" · ".join(items)}</p>'


def _measured(test: dict[str, Any] | None) -> str:
    if test is None:
        return '<span class="soft">nothing yet</span>'
    return (
        f'{glyph(test)}<p class="numbers">{text(measured(test))}</p>'
        f'<p class="meta">holds {text(region_words(test))}</p>'
    )


def _details(claim: dict[str, Any]) -> str:
    tests, missing = claim.get("tests") or [], claim.get("missing") or []
    if not tests and not missing:
        return ""
    title = " and ".join(
        ([count(len(tests), "test")] if tests else []) + ([f"{count(len(missing), 'run')} missing"] if missing else [])
    )
    body = "".join(_test(t) for t in tests)
    if missing:
        body += f'<li class="absent">Missing: {text("; ".join(map(str, missing)))}</li>'
    unfolding = f'<details><summary>{title}</summary><ul class="tests">{body}</ul></details>'
    return f'<tr class="more"><td colspan="3">{unfolding}</td></tr>'


def _test(test: dict[str, Any]) -> str:
    pairs = zip(test.get("seeds") or [], test.get("values") or [], strict=False)
    seeds = ", ".join(f"seed {text(s)}: {number(v, 4)}" for s, v in pairs)
    note = f'<p class="meta">{text(test["note"])}</p>' if test.get("note") else ""
    return (
        f"<li><p>{text(test.get('text'))} {badge(test.get('verdict'))}</p>{_measured(test)}"
        f'<p class="meta">{seeds}</p>{note}</li>'
    )
