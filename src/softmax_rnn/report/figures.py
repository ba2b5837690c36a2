"""The figures: for each a place for its interactive chart, the static drawing, the numbers, and the claims that rest on it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..errors import is_number
from .parts import badge, count, listed, number, slug, text
from .style import table


def headline(summary: dict[str, Any], drawn: Collection[str]) -> str:
    """The figure of the first screen."""
    chosen = summary.get("headline") or {}
    figure = next((f for f in summary.get("figures") or [] if f.get("name") == chosen.get("figure")), None)
    if figure is None or not has_curves(figure):
        return '<p class="absent">The headline figure has no runs yet.</p>'
    return (
        f'<figure class="headline">{_chart(figure, drawn, "headline")}<figcaption>{text(chosen.get("caption"))} '
        f'<a href="#figure-{slug(figure.get("name"))}">Larger, with its numbers</a></figcaption></figure>'
    )


def figure_section(figure: dict[str, Any], claims: list[dict[str, Any]], drawn: Collection[str]) -> str:
    """One figure of the paper, as far as it has been run; ``drawn`` are the names of the static drawings there are."""
    name = figure.get("name")
    section = f' <span class="soft">section {text(figure["section"])}</span>' if figure.get("section") else ""
    body = _chart(figure, drawn, "full") if has_curves(figure) else '<p class="absent">No runs yet.</p>'
    return "\n".join(
        [
            f'<article class="figure" id="figure-{slug(name)}">',
            f"<h3>Figure {text(figure.get('number') or name)}. {text(figure.get('title'))}{section}</h3>",
            f"<figure>{body}<figcaption>{text(figure.get('caption'))}</figcaption></figure>",
            _missing(figure),
            _numbers(figure),
            _sources(figure, drawn),
            _claims([c for c in claims if c.get("figure") == name]),
            "</article>",
        ]
    )


def has_curves(figure: dict[str, Any]) -> bool:
    """Whether there is anything to draw: a curve with at least one finite loss."""
    return any(
        is_number(v) for p in _panels(figure) for c in _curves(p) for s in ("train", "test") for v in _means(c, s)
    )


def _panels(figure: dict[str, Any]) -> list[dict[str, Any]]:
    return figure.get("panels") or []


def _curves(panel: dict[str, Any]) -> list[dict[str, Any]]:
    return panel.get("curves") or []


def _means(curve: dict[str, Any], split: str) -> list[Any]:
    return (curve.get(split) or {}).get("mean") or []


def _chart(figure: dict[str, Any], drawn: Collection[str], size: str) -> str:
    name = slug(figure.get("name"))
    chart = f'<div class="chart" data-figure="{text(figure.get("name"))}" data-size="{size}"></div>'
    if name not in drawn:
        return chart + '<p class="static absent">There is no static drawing of this figure; its numbers are below.</p>'
    alt = text(f"Figure {figure.get('number') or figure.get('name')}: {figure.get('title') or ''}")
    return chart + f'<img class="static" src="figures/{name}.svg" alt="{alt}" loading="lazy">'


def _missing(figure: dict[str, Any]) -> str:
    items = []
    for panel in _panels(figure):
        for curve in _curves(panel):
            what = f"{text(curve.get('label'))} on {text(panel.get('title'))}"
            if curve.get("missing"):
                noun = "seed" if len(curve["missing"]) == 1 else "seeds"
                items.append(f"{what}, {noun} {listed(curve['missing'])}")
            elif not any(is_number(v) for s in ("train", "test") for v in _means(curve, s)):
                items.append(f"{what}, no finite loss")
    return f'<p class="absent">Missing: {"; ".join(items)}.</p>' if items else ""


def _numbers(figure: dict[str, Any]) -> str:
    """Final test losses as a table: a row per mechanism, a column per panel."""
    panels = [p for p in _panels(figure) if _curves(p)]
    rows: dict[str, list[str]] = {}
    for i, panel in enumerate(panels):
        for curve in _curves(panel):
            row = rows.setdefault(str(curve.get("label")), [str(curve.get("formula") or ""), *[""] * len(panels)])
            row[1 + i] = _final(curve)
    if not rows:
        return ""
    head = ["final test loss", "formula", *(str(p.get("title") or "") for p in panels)]
    key = '<p class="meta">The mean over seeds, in brackets the lowest and the highest; spikes are the mean number per run.</p>'
    return f"<details><summary>Numbers</summary>{table(head, [[k, *v] for k, v in rows.items()])}{key}</details>"


def _final(curve: dict[str, Any]) -> str:
    final, seeds, missing = curve.get("final_test") or {}, curve.get("seeds") or [], curve.get("missing") or []
    spread = f" [{number(final.get('low'))}, {number(final.get('high'))}]" if len(seeds) > 1 and final else ""
    there = f", {len(seeds)} of {count(len(seeds) + len(missing), 'seed')}" if missing else ""
    spikes = f", {number(curve['spikes'], 1)} spikes" if curve.get("spikes") else ""
    return f"{number(final.get('mean'))}{spread}{there}{spikes}"


def _sources(figure: dict[str, Any], drawn: Collection[str]) -> str:
    name = slug(figure.get("name"))
    items = [f"<code>{text(figure['command'])}</code>"] if figure.get("command") else []
    items += [f'<a href="figures/{name}.svg">static drawing</a>'] if name in drawn else []
    if any(c.get("runs") for p in _panels(figure) for c in _curves(p)):
        items.append(f'<a href="#runs" data-filter="figure:{name}">its runs</a>')
    return f'<p class="meta">{" · ".join(items)}</p>'


def _claims(claims: list[dict[str, Any]]) -> str:
    if not claims:
        return ""
    items = "".join(
        f'<li>{badge(c.get("verdict"))} <a href="#claim-{slug(c.get("name"))}">{text(c.get("sentence"))}</a></li>'
        for c in claims
    )
    return f'<p class="meta">Claims that rest on it:</p><ul class="resting">{items}</ul>'
