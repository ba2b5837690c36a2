"""Softmax rebuilt from its terms: the words around the order slider, which ``orders.js`` brings to life."""

from __future__ import annotations

from typing import Any

from .parts import text

HIGHEST = 20


def rebuild_section(summary: dict[str, Any]) -> str:
    """The section with the slider, or a sentence if there is no row of attention to show."""
    row = summary.get("row")
    heading = '<section id="rebuild"><h2>Softmax, rebuilt from its terms</h2>'
    story = """<p>Attention gives every earlier token s a weight, the exponential of its score x<sub>s</sub>, divided by the sum
of them all. The exponential is a series, 1 + x + x²/2 + x³/6 + …, and each of its terms can be computed by a recurrent network
that reads the text once: order 0 counts tokens, order 1 is linear attention, order n remembers products of n channels. Cut the
series at an order, divide by its own sum, and see how much of softmax is already there.</p>"""
    if not row or not row.get("scores"):
        absent = '<p class="absent">There is no row of a trained model to show yet.</p></section>'
        return f"{heading}{story}{absent}"
    where = ", ".join(str(row[k]) for k in ("model", "where") if row.get(k))
    note = f" {text(row['note'])}" if row.get("note") else ""
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
<p class="soft">A real row: {text(where)}; the query is token {text(row.get("query"))}.{note}</p></section>"""
