"""Time against length for each form: where the forms cross, and whether ``form="auto"`` crosses there, too."""

from __future__ import annotations

from collections.abc import Iterator

from ..ops.cost import explain
from . import anchors
from .measure import Record, both, inputs, interleave, ours

CASES = (("taylor2", 16, 64), ("taylor2", 64, 64), ("linear_elu", 64, 64), ("taylor4", 8, 32))
FORMS = ("parallel", "chunked")


def label(name: str, D: int, E: int) -> str:
    """How a case is called in records and pictures."""
    return f"{name} d={D} e={E}"


def run(repetitions: int, lengths: tuple[int, ...]) -> Iterator[Record]:
    """Both forms and SDPA at every length, forward and backward; and is what ``auto`` takes within 1.3x of the best?"""
    for name, D, E in CASES:
        for T in lengths:
            args, softmax = inputs(1, 8, T, D, E), inputs(1, 8, T, 64, 64)
            work = {form: both(ours(name, form), args) for form in FORMS} | {"sdpa": both(anchors.sdpa, softmax)}
            t = interleave(work, repetitions)
            shape, case = f"(1, 8, {T}) forward+backward", label(name, D, E)
            for form in FORMS:
                ours_, sdpa = t[form].best, t["sdpa"].best
                yield Record(
                    f"{case} {form}", shape, "float32", "SDPA d=64", ours_, sdpa, "s", None, t[form].spread,
                    curve=f"{case}|{form}", length=T,
                )  # fmt: skip
            chosen = explain(name, 1, 8, T, D, E).choice
            best = min(t[form].best for form in FORMS)
            yield Record(f"{case}: auto takes {chosen}", shape, "float32", "best form", t[chosen].best, best, "s", 1.3)
