"""Verdicts: intervals, regions, and what missing, single and diverged runs do to them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softmax_rnn.paper.claims import (
    MARGIN,
    Claim,
    as_stable,
    conclude,
    gap_does_not_grow,
    less_stable,
    matches,
    more_spikes,
    no_more_spikes,
    run_test,
    worse,
)
from softmax_rnn.paper.intervals import INFINITE, MANY, interval, judge, why_open
from softmax_rnn.paper.results import Results
from softmax_rnn.paper.scales import GRID, LARGE, LONG, SCALES, Cell, Setting

from .synthetic import write_run

CPU = SCALES["cpu"]
LOSSES = st.floats(-10, 10, allow_nan=False)


def test_the_interval_is_students() -> None:
    mean, low, high = interval([1.0, 2.0, 3.0])  # s = 1, n = 3: 4.303 / sqrt(3)
    assert (mean, round(high - mean, 3), round(mean - low, 3)) == (2.0, 2.484, 2.484)
    assert interval([0.5]) == (0.5, -INFINITE, INFINITE)
    assert interval([math.inf])[1:] == (-INFINITE, INFINITE)  # one seed has no interval, diverged or not
    assert interval([math.inf, math.inf]) == (INFINITE, INFINITE, INFINITE)
    assert interval([1.0, 2.0, 3.0, math.inf]) == (INFINITE, low, INFINITE)


@given(st.lists(LOSSES, min_size=2, max_size=12), LOSSES)
def test_intervals_move_with_their_values(values: list[float], shift: float) -> None:
    mean, low, high = interval(values)
    assert low <= mean <= high
    moved = interval([value + shift for value in values])
    assert moved == pytest.approx((mean + shift, low + shift, high + shift), abs=1e-6)


@given(LOSSES, LOSSES, LOSSES, LOSSES)
def test_a_verdict_is_where_the_interval_lies(a: float, b: float, c: float, d: float) -> None:
    (low, high), region = sorted((a, b)), tuple(sorted((c, d)))
    verdict = judge(low, high, region)  # type: ignore[arg-type]
    inside = region[0] <= low and high <= region[1]
    apart = high < region[0] or low > region[1]
    assert verdict == ("holds" if inside else "does not hold" if apart else "inconclusive")


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ([0.01, -0.01, 0.0], "holds"),  # hardly any spread, around zero
        ([-0.20, -0.21, -0.19], "holds"),  # better is not a failure
        ([0.20, 0.21, 0.19], "does not hold"),
        ([0.03, 0.00, 0.10], "inconclusive"),
        ([0.0], "inconclusive"),  # one seed, and two missing
    ],
)
def test_norm_against_softmax(tmp_path: Path, losses: list[float], verdict: str) -> None:
    for seed, loss in enumerate(losses):
        write_run(tmp_path, CPU, Cell("softmax", CPU.main, seed=seed), 3.0 + seed)
        write_run(tmp_path, CPU, Cell("norm", CPU.main, seed=seed), 3.0 + seed + loss)
    outcome = run_test(matches("norm", "softmax"), Results(CPU, tmp_path, range(3)))
    assert outcome.verdict == verdict
    assert (outcome.note is not None) == (verdict == "inconclusive")  # which says why
    assert list(outcome.values.values()) == pytest.approx(losses)
    assert (outcome.note or "").startswith("one seed") == (len(losses) == 1)
    assert ("without seed 1, 2" in (outcome.note or "")) == (len(losses) == 1)


@pytest.mark.parametrize("border", [0.029, 0.03, 0.05])
def test_an_open_test_says_how_many_seeds_would_close_it(border: float) -> None:
    said = why_open([0.0, 0.02, 0.04], (-INFINITE, border))
    assert said.startswith(f"the interval crosses {border:g}; ")

    def decided(seeds: int) -> bool:
        apart = 0.02 * math.sqrt((seeds - 1) / 2)  # two of them, the others in the middle: the same mean and spread
        _, low, high = interval([0.02 - apart, 0.02 + apart, *[0.02] * (seeds - 2)])
        return judge(low, high, (-INFINITE, border)) != "inconclusive"

    needed = next(seeds for seeds in range(4, MANY) if decided(seeds))
    assert said.endswith(f" {needed} seeds decide")


def test_an_open_test_at_the_border_stays_open() -> None:
    assert why_open([0.0, 0.02, 0.04], (0.0201, INFINITE)).endswith(f"{MANY} seeds do not decide either")
    assert why_open([0.0, 0.0, INFINITE], (-INFINITE, 0.03)) == "the interval crosses 0.03"  # no spread


def test_a_test_may_name_its_corpus_and_its_learning_rate(tmp_path: Path) -> None:
    slower = Setting("large", lr=3e-3)
    for seed in range(2):
        for corpus, gap in (("sotu", 0.5), ("stdlib", 0.0)):
            write_run(tmp_path, CPU, Cell("softmax", corpus, slower, seed), 3.0)
            write_run(tmp_path, CPU, Cell("norm", corpus, slower, seed), 3.0 + gap)
    outcome = run_test(matches("norm", "softmax", slower, "stdlib"), Results(CPU, tmp_path, range(2)))
    assert (outcome.verdict, outcome.mean) == ("holds", 0.0)
    assert outcome.test.text == "norm − softmax, larger model, learning rate 0.003, stdlib, test loss"
    assert {cell.corpus for cell in outcome.test.cells(CPU, 0)} == {"stdlib"}


def test_a_diverged_run_counts_as_infinitely_bad(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, CPU, Cell("softmax", CPU.main, seed=seed), 3.0)
        write_run(tmp_path, CPU, Cell("length", CPU.main, seed=seed), 3.0, event="diverged", spikes=2)
    results = Results(CPU, tmp_path, range(3))
    assert run_test(worse("length", "softmax"), results).verdict == "holds"
    assert run_test(matches("length", "softmax"), results).verdict == "does not hold"
    assert "diverged" in str(run_test(matches("length", "softmax"), results).note)
    assert run_test(more_spikes("length", "softmax"), results).verdict == "holds"
    assert run_test(more_spikes("length", "softmax"), results).values == dict.fromkeys(
        range(3), 3.0
    )  # and the last one


def test_both_sides_diverged(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for seed in range(2):
            write_run(tmp_path, CPU, Cell(name, CPU.main, seed=seed), 3.0, event="diverged")
    outcome = run_test(matches("a", "b"), Results(CPU, tmp_path, range(2)))
    assert (outcome.verdict, outcome.note) == ("inconclusive", "both sides diverged with seed 0, 1")


def test_nothing_is_concluded_while_a_seed_is_missing(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, CPU, Cell("softmax", CPU.main, seed=seed), 3.0)
        write_run(tmp_path, CPU, Cell("norm", CPU.main, seed=seed), 3.5 + 0.01 * seed)
    assert run_test(worse("norm", "softmax"), Results(CPU, tmp_path, range(2))).verdict == "holds"
    assert run_test(worse("norm", "softmax"), Results(CPU, tmp_path, range(3))).verdict == "inconclusive"


def test_nothing_run_is_not_run(tmp_path: Path) -> None:
    outcome = run_test(worse("linear_elu", "softmax"), Results(CPU, tmp_path, range(3)))
    assert (outcome.verdict, outcome.mean) == ("not run", None)
    assert conclude([outcome]) == "not run"


def test_means_over_corpora_and_gaps_of_gaps(tmp_path: Path) -> None:
    for number, corpus in enumerate(CPU.corpora):
        for seed in range(2):
            write_run(tmp_path, CPU, Cell("softmax", corpus, seed=seed), 3.0)
            write_run(tmp_path, CPU, Cell("norm", corpus, seed=seed), 3.0 + 0.3 * number)
            if corpus == CPU.main:
                write_run(tmp_path, CPU, Cell("softmax", corpus, LARGE, seed), 2.0)
                write_run(tmp_path, CPU, Cell("norm", corpus, LARGE, seed), 2.5)
    results = Results(CPU, tmp_path, range(2))
    assert run_test(matches("norm", "softmax", where="all"), results).mean == pytest.approx(0.3)
    at_main = 0.3 * list(CPU.corpora).index(CPU.main)
    assert run_test(gap_does_not_grow("norm", "softmax", LARGE), results).mean == pytest.approx(0.5 - at_main)


def test_one_refuted_test_refutes_and_one_open_test_leaves_open(tmp_path: Path) -> None:
    for seed in range(2):
        for name, loss in (("a", 3.0), ("b", 3.0), ("c", 3.0 + 2 * MARGIN)):
            write_run(tmp_path, CPU, Cell(name, CPU.main, seed=seed), loss)
    results = Results(CPU, tmp_path, range(2))
    same, other, unknown = (run_test(matches(x, "a"), results) for x in ("b", "c", "d"))
    assert conclude([same]) == "holds"
    assert conclude([same, other]) == conclude([same, other, unknown]) == "does not hold"
    assert conclude([same, unknown]) == "inconclusive"


def test_a_claim_names_its_runs_once() -> None:
    claim = Claim("x", "4", "x", (worse("gate", "softmax"), worse("norm", "softmax"), matches("norm", "softmax", LONG)))
    cells = claim.cells(CPU, [0, 1])
    assert len(cells) == len(set(cells)) == 10


@pytest.mark.parametrize(
    ("losses", "equivalent"), [([0.01, -0.01, 0.0], "holds"), ([-0.20, -0.21, -0.19], "does not hold")]
)
def test_equivalence_is_computed_beside(tmp_path: Path, losses: list[float], equivalent: str) -> None:
    for seed, loss in enumerate(losses):
        write_run(tmp_path, CPU, Cell("softmax", CPU.main, seed=seed), 3.0)
        write_run(tmp_path, CPU, Cell("norm", CPU.main, seed=seed), 3.0 + loss)
    judgement = run_test(matches("norm", "softmax"), Results(CPU, tmp_path, range(3)))
    assert (judgement.verdict, judgement.equivalent) == ("holds", equivalent)


def test_without_a_single_spike_nothing_can_be_said(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, CPU, Cell("softmax", CPU.main, seed=seed), 3.0)
        write_run(tmp_path, CPU, Cell("norm", CPU.main, seed=seed), 3.0)
        write_run(tmp_path, CPU, Cell("gate", CPU.main, seed=seed), 3.0, spikes=1)
    results = Results(CPU, tmp_path, range(3))
    silent = [run_test(test, results) for test in (no_more_spikes("norm", "softmax"), more_spikes("norm", "softmax"))]
    assert [judgement.verdict for judgement in silent] == ["not testable here"] * 2
    seen = run_test(no_more_spikes("softmax", "gate"), results)
    assert seen.verdict == "holds"
    assert seen.note == "spikes: softmax in 3 runs 0, gate in 3 runs 3"
    assert conclude([seen, silent[0]]) == "not testable here"
    assert conclude([run_test(worse("norm", "softmax"), results), silent[0]]) == "does not hold"


def test_the_sensitivity_is_the_mean_excess_over_the_best(tmp_path: Path) -> None:
    losses = {
        "steady": [3.0, 3.0, 3.0, 3.0, 3.0],
        "shaky": [3.5, 3.0, 3.0, 6.0, 9.0],
    }  # 9 is worse than knowing nothing
    for seed in range(2):
        for name, values in losses.items():
            for setting, loss in zip(GRID, values, strict=True):
                write_run(tmp_path, CPU, Cell(name, CPU.main, setting, seed), loss)
    results, worst = Results(CPU, tmp_path, range(2)), math.log(1024)
    outcome = run_test(less_stable("shaky", "steady"), results)
    assert outcome.mean == pytest.approx((0.5 + 3.0 + worst - 3.0) / 5)
    assert outcome.verdict == "holds"
    assert run_test(as_stable("steady", "shaky"), results).verdict == "holds"
    assert run_test(as_stable("shaky", "steady"), results).verdict == "does not hold"
