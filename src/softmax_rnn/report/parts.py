"""Small pieces of HTML that every section of the report uses. All text goes through ``text``: names come from users."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from typing import Any

from ..errors import is_number

SYMBOLS = {"holds": "✓", "does not hold": "✗", "inconclusive": "?", "not testable here": "∅", "not run": "–"}


def text(value: object) -> str:
    """Anything as HTML text, also safe inside a quoted attribute; nothing for None.

    >>> text("<b>")
    '&lt;b&gt;'
    """
    return "" if value is None else html.escape(str(value))


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


def kind(verdict: object) -> str:
    """The CSS class of a verdict; a word we do not know looks like "not run"."""
    return slug(verdict) if verdict in SYMBOLS else "not-run"


def badge(verdict: object) -> str:
    """A verdict as a coloured word with a sign of its own, so that it does not rest on colour."""
    sign = SYMBOLS.get(str(verdict), "–")
    return f'<span class="badge {kind(verdict)}"><span aria-hidden="true">{sign}</span> {text(verdict or "not run")}</span>'
