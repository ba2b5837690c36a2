"""An invented summary with everything a real one may contain: missing seeds, a diverged run, losses that are not numbers,
claims that were not run, and a label that would like to be HTML."""

import math
from dataclasses import replace
from typing import Any

from softmax_rnn.report.data import (
    Band,
    ClaimView,
    CurveView,
    Example,
    FigureView,
    JudgedTest,
    PanelView,
    Report,
    RunView,
    Spread,
    Verdict,
)

NASTY = "</script><img src=x onerror=alert(1)><b>%{x}</b>"
CORPORA = ["code", "speeches", "tunes"]
MECHANISMS = {
    "softmax": ("#222222", "solid", "Σ exp(x) v / Σ exp(x)", 0.0),
    "norm": ("#2f6fde", "solid", "Σ exp(x) v / ‖Σ exp(x) v‖", 0.004),
    "gate": ("#d9662b", "dash", "g Σ exp(x) v / t", 0.09),
    "linear_elu": ("#3a8f57", "dot", "Σ φ(q)·φ(k) v / Σ φ(q)·φ(k)", 0.31),
}
TEXT = "def mean ( values : list ) : ⏎ total = sum ( values ) ⏎ return total / len ( values ) if values else 0 . 0 ⏎ def spread ( values"


def loss(tokens: float, offset: float, corpus: int, seed: int) -> float:
    """A curve that falls like a training run: fast, then slowly, with a ripple that depends on the seed."""
    fall = 5.2 / (1 + (tokens / 6e4) ** 0.62)
    ripple = 0.012 * math.sin(7 * seed + tokens / 9e4) + 0.01 * seed
    return 2.1 + 0.35 * corpus + fall + offset * min(1, tokens / 3e5) + ripple


def split(offset: float, corpus: int, seeds: list[int], points: int) -> Band:
    x = [1_200_000 * (i + 1) / points for i in range(points)]
    values = [[loss(t, offset, corpus, s) for s in seeds] for t in x]
    return Band(x, [sum(v) / len(v) for v in values], [min(v) for v in values], [max(v) for v in values])


def curve(mechanism: str, corpus: int, seeds: list[int], missing: list[int], label: str | None = None) -> CurveView:
    color, dash, formula, offset = MECHANISMS[mechanism]
    test = split(offset, corpus, seeds, 12)
    last = [values[-1] or 0.0 for values in (test.mean, test.low, test.high)]
    return CurveView(
        label=label or mechanism,
        color=color,
        dash=dash,
        formula=formula,
        mechanism=mechanism,
        train=split(offset, corpus, seeds, 80),
        test=test,
        seeds=seeds,
        missing=missing,
        runs=[run_name(mechanism, corpus, s) for s in seeds],
        spikes=1.5 if mechanism == "gate" else 0,
        final_test=Spread(*last),
    )


def run_name(mechanism: str, corpus: int, seed: int) -> str:
    return f"{mechanism}-{CORPORA[corpus]}-{seed}a1b2c3d4e"


def empty_curve(mechanism: str, missing: list[int]) -> CurveView:
    color, dash, formula, _ = MECHANISMS[mechanism]
    return CurveView(mechanism, color, dash, formula, mechanism, missing=missing)


def figures() -> list[FigureView]:
    second = []
    for i, corpus in enumerate(CORPORA):
        curves = [curve(m, i, [0, 1, 2], []) for m in ("softmax", "norm")]
        curves.append(curve("gate", i, [0, 1], [2]) if i == 2 else curve("gate", i, [0, 1, 2], []))
        second.append(PanelView(corpus, curves))
    broken = second[1].curves[2].test
    broken.mean[6] = broken.low[6] = broken.high[6] = None  # a loss that was not finite
    fourth = [curve(m, 0, [0, 1, 2], []) for m in ("softmax", "norm", "linear_elu")]
    fourth.append(curve("gate", 0, [0], [1, 2], label=NASTY))
    fifth = [empty_curve("softmax", [0, 1, 2]), empty_curve("linear_elu", [0, 1, 2])]
    caption = "Test and train loss on three corpora. The norm follows softmax; the gate is worse."
    return [
        figure("2", "Softmax, norm and gate", "4.1", caption, second),
        figure("4", "Linear attention", "4.3", "Linear attention stays above softmax.", alone(fourth)),
        figure("5", "More terms", "4.4", "Orders 0 to n of the series.", alone(fifth)),
    ]


def alone(curves: list[CurveView]) -> list[PanelView]:
    return [PanelView("code", curves)]


def figure(number: str, title: str, section: str, caption: str, panels: list[PanelView]) -> FigureView:
    command = f"softmax-rnn reproduce fig{number} --scale cpu"
    return FigureView(f"fig{number}", title, number, section, caption, command, panels=panels)


def measured(
    text: str, verdict: Verdict, values: list[float | None], region: list[float | None], **more: Any
) -> JudgedTest:
    there = [v for v in values if v is not None]
    mean = sum(there) / len(there) if there else None
    half = 4.3 * (max(there) - min(there)) / 2.6 if len(there) > 1 else None
    found = JudgedTest(
        text, verdict, (region[0], region[1]), mean, seeds=list(range(len(values))), values=values, **more
    )
    return found if mean is None or half is None else replace(found, low=mean - half, high=mean + half)


def claim(name: str, section: str, sentence: str, figure: str, tests: list[JudgedTest], **more: Any) -> ClaimView:
    return ClaimView(name, section, sentence, figure, tests[0].verdict if tests else "not run", tests, **more)


def claims() -> list[ClaimView]:
    pair = [run_name(m, 0, s) for m in ("softmax", "norm") for s in range(3)]
    return [
        claim("norm_matches_softmax", "4.1", "Replacing the denominator by a vector norm matches softmax.", "fig2", [
            measured("norm − softmax, test loss, mean of 3 corpora", "holds", [0.003, 0.006, 0.004], [None, 0.02],
                     equivalence=(-0.02, 0.02), equivalent="holds"),
            measured("norm − softmax, train loss, code", "inconclusive", [0.001, 0.012, 0.004], [-0.02, 0.02], note="Few seeds."),
        ], runs=pair),
        claim("gate_is_worse", "4.1", "A gate in place of the denominator performs slightly worse than softmax.", "fig2", [
            measured("gate − softmax, test loss", "holds", [0.081, 0.093, 0.088], [0.0, None])]),
        claim("gate_is_unstable", "4.1", "Training with the gate shows recoverable loss spikes.", "fig2", [
            measured("spikes per run, gate", "inconclusive", [0.0, 1.0, 3.0], [1.0, None], unit="spikes")]),
        claim("norm_is_stable", "4.1", "Training with the norm has no loss spikes.", "fig2", [
            measured("spikes per run, norm", "not testable here", [0.0, 0.0, 0.0], [None, 0.0], unit="spikes")], ours=True),
        claim("linear_is_worse", "4.3", "Softmax outperforms linear attention by a significant gap.", "fig4", [
            measured("linear_elu − softmax, test loss", "holds", [0.29, 0.33, 0.31], [0.1, None])]),
        claim("detaching_hurts", "4.5", "Detaching the denominator significantly hurts performance.", "fig4", [
            measured("detached − softmax, test loss", "does not hold", [-0.002, 0.004, 0.003], [0.05, None])]),
        claim("ten_terms_suffice", "4.4", "Ten orders of the series mirror softmax with negligible differences.", "fig5", [],
              missing=["taylor10 on code, seeds 0, 1 and 2"]),
        claim("nasty", "4.6", f"A sentence with {NASTY} in it.", "fig4", [
            measured("one seed only", "inconclusive", [0.01, None], [None, 0.02])]),
    ]  # fmt: skip


def runs() -> list[RunView]:
    def run(mechanism: str, corpus: int, seed: int, status: str = "done", **more: Any) -> RunView:
        final = loss(1.2e6, MECHANISMS[mechanism][3], corpus, seed)
        keys = {"mechanism": mechanism, "corpus": CORPORA[corpus], "setting": "base", "seed": str(seed)}
        found = RunView(
            run_name(mechanism, corpus, seed), status, keys, 300, 1_200_000, final, final - 0.05, None, 0, 61.2 + seed
        )
        return replace(found, **more)

    whole = [
        run(m, c, s)
        for m in ("softmax", "norm", "gate")
        for c in range(3)
        for s in range(3)
        if (m, c, s) != ("gate", 2, 2)
    ]
    nothing = {"test_loss": None, "train_loss": None}
    return [
        *whole,
        run("gate", 2, 2, "damaged", **nothing, note="metrics.jsonl ends in the middle of a line"),
        run("linear_elu", 1, 0, "diverged", **nothing, spikes=7, note=NASTY),
    ]


def scores_of_one() -> Example:
    tokens = [("" if i == 0 else " ") + w.replace("⏎", "\n") for i, w in enumerate(TEXT.split())]
    scores = [1.1 * math.sin(1.7 * i) + 0.8 * math.cos(0.6 * i * i) - 0.4 for i in range(len(tokens))]
    scores[0], scores[2], scores[-1] = 2.9, 4.1, 3.3
    note = "Scores are scaled by 1/√16."
    return Example("softmax on code, seed 0", "layer 2, head 3", tokens, len(tokens) - 1, scores, 16, note)


def example() -> Report:
    return Report(
        title="Is softmax attention a sum of recurrent networks, with a norm for a denominator?",
        scale="cpu",
        question="The paper says that softmax attention is a sum of recurrent networks, that its denominator does no more than "
        "a vector norm, and that linear attention lags behind because it keeps only one of the terms. Do these claims hold when "
        "everything is run again, on other text, at a small scale?",
        setting="A Llama of 1.1 million parameters, 1.2 million tokens, three corpora that need no download, three seeds each.",
        headline="fig2",
        claims=claims(),
        figures=figures(),
        example=scores_of_one(),
        runs=runs(),
        environment={"python": "3.11", "torch": "2.13.0", "processor": "x86-64", "cores": 2},
        commands=["softmax-rnn reproduce all --scale cpu", "softmax-rnn report --out out/report"],
        made="2026-11-15",
        minutes=97.0,
    )
