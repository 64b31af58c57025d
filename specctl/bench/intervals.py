"""Paired comparison of two arms: the ratio, its confidence interval, and a verdict. No input or output.

In each round both arms run the same load. The logarithms of the rounds' ratios get a Student t interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist, fmean, stdev

__all__ = ["CONFIDENCE", "ROUNDS_MIN", "Outcome", "Ratio", "paired_ratio", "t_quantile"]

CONFIDENCE = 0.97
"""Of an interval. Rounds are added while intervals are wide, which favours those that are narrow by chance:
all in all one of 20 does not hold the true ratio."""
WIDE_RATIO = 0.05
"""Half of an interval, as a share of the ratio, beyond which rounds are added. Within it 10 % are found."""
ROUNDS_MIN = 3
"""Fewer rounds give no interval that tells anything: the verdict is then "not enough rounds"."""
LEAST_RATIO = 0.01
"""A smaller difference is called none, however narrow the interval: no user would feel it."""
_T = (
    21.205, 5.643, 3.896, 3.298, 3.003, 2.829, 2.715, 2.634, 2.574, 2.527,
    2.491, 2.461, 2.436, 2.415, 2.397, 2.382, 2.368, 2.356, 2.346, 2.336,
)  # fmt: skip


class Outcome(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    TOO_FEW = "not enough rounds"


@dataclass(frozen=True)
class Ratio:
    """Speed of an arm over another's: geometric mean of the rounds, bounds of the interval.

    ``low`` and ``high`` are None with fewer than ROUNDS_MIN rounds.
    """

    ratio: float
    low: float | None
    high: float | None
    rounds: int

    @property
    def outcome(self) -> Outcome:
        if self.low is None or self.high is None:
            return Outcome.TOO_FEW
        if abs(self.ratio - 1.0) < LEAST_RATIO or self.low <= 1.0 <= self.high:
            return Outcome.NO_DIFFERENCE
        return Outcome.FASTER if self.ratio > 1.0 else Outcome.SLOWER

    @property
    def words(self) -> str:
        """``faster by 12.0 % (8.1 to 16.0)``."""
        if self.low is None or self.high is None:
            return f"{Outcome.TOO_FEW} (x {self.ratio:.3f} in {self.rounds})"
        low, middle, high = (100.0 * (value - 1.0) for value in (self.low, self.ratio, self.high))
        if self.outcome is Outcome.NO_DIFFERENCE:
            return f"no difference ({low:+.1f} to {high:+.1f} %)"
        if self.outcome is Outcome.SLOWER:
            return f"slower by {-middle:.1f} % ({-high:.1f} to {-low:.1f})"
        return f"faster by {middle:.1f} % ({low:.1f} to {high:.1f})"


def paired_ratio(speeds: Sequence[float], others: Sequence[float]) -> Ratio:
    """``speeds[i]`` and ``others[i]`` are of one round. ValueError for none, unequal many, or one that is not
    over 0."""
    if not speeds or len(speeds) != len(others):
        raise ValueError(f"expected as many speeds of both arms, got {len(speeds)} and {len(others)}")
    if min(*speeds, *others) <= 0:
        raise ValueError("expected speeds over 0")
    logs = [math.log(a / b) for a, b in zip(speeds, others, strict=True)]
    count, middle = len(logs), fmean(logs)
    if count < ROUNDS_MIN:
        return Ratio(math.exp(middle), None, None, count)
    half = t_quantile(count - 1) * stdev(logs) / math.sqrt(count)
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), count)


def t_quantile(freedom: int) -> float:
    """The 98.5 % point of Student's t. From a table up to 20 degrees of freedom, then by Cornish and Fisher's
    expansion (Abramowitz and Stegun 26.7.5), which is right to 4 digits there."""
    if freedom < 1:
        raise ValueError(f"degrees of freedom: expected at least 1, got {freedom}")
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
