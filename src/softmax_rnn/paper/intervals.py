"""From one number per seed to a verdict: a mean, its interval, and where that lies.

    mean ± t(0.975, n − 1) · s / √n        the 95% Student-t interval over n seeds
    inside its region: holds               outside: does not hold        across a border: inconclusive

The **sensitivity** (Wortsman et al. 2023) of a mechanism is its final loss, averaged over learning rates from 1e-3 to 1e-1, minus
its loss at the best of them. No loss counts as more than that of a model that knows nothing, ln(vocabulary): a run that diverged
has that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ..report.data import Verdict

Region = tuple[float, float]

INFINITE = math.inf
# Two-sided 95% points of Student's t by degrees of freedom; more than nine take the last, which is on the safe side.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MANY = 100  # more seeds than anybody runs


def sensitivity(losses: Sequence[float], worst: float) -> float:
    """The mean loss over the learning rates minus the lowest, where no loss counts as more than ``worst``.

    >>> sensitivity([2.0, 3.0, INFINITE], worst=7.0)
    2.0
    """
    counted = [min(loss, worst) for loss in losses]
    return statistics.fmean(counted) - min(counted)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95% interval; without bounds for a single value. Some infinite values leave it open above.

    >>> interval([0.0, 0.1, 0.2])[1] < 0 < interval([0.0, 0.1, 0.2])[2]
    True
    """
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, -INFINITE, INFINITE
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < len(values):
        direction = next(value for value in values if math.isinf(value))
        _, low, high = interval(finite) if finite else (0.0, direction, direction)
        return direction, min(low, direction), max(high, direction)
    half = _half(statistics.stdev(values), len(values))
    return mean, mean - half, mean + half


def _half(spread: float, seeds: int) -> float:
    """Half the width of the interval over so many seeds."""
    return STUDENT[min(seeds - 2, len(STUDENT) - 1)] * spread / math.sqrt(seeds)


def why_open(values: Sequence[float], region: Region) -> str:
    """Why an interval decides nothing: the border that it crosses, and how many seeds would decide if mean and spread stayed.

    >>> why_open([0.01, 0.02, 0.03], (-INFINITE, 0.03))
    'the interval crosses 0.03; if mean and spread stay, 7 seeds decide'
    """
    mean, low, high = interval(values)
    border = min((b for b in region if low <= b <= high), key=lambda b: abs(mean - b))
    crossed = f"the interval crosses {border if abs(border) > 1e-3 else 0:g}"
    if not math.isfinite(high - low):
        return crossed
    spread, enough = statistics.stdev(values), range(len(values) + 1, MANY + 1)
    needed = next((n for n in enough if _half(spread, n) < abs(mean - border)), None)
    decide = f"{needed} seeds decide" if needed else f"{MANY} seeds do not decide either"
    return f"{crossed}; if mean and spread stay, {decide}"


def judge(low: float, high: float, region: Region) -> Verdict:
    """Where an interval lies with respect to a region.

    >>> judge(0.05, 0.2, (0.03, INFINITE)), judge(-0.1, 0.0, (0.03, INFINITE)), judge(0.0, 0.1, (0.03, INFINITE))
    ('holds', 'does not hold', 'inconclusive')
    """
    if region[0] <= low and high <= region[1]:
        return "holds"
    if high < region[0] or low > region[1]:
        return "does not hold"
    return "inconclusive"
