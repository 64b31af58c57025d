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

CONFIDENCE = 0.95
ROUNDS_MIN = 3
"""Fewer rounds give no interval that tells anything: the verdict is then "not enough rounds"."""
LEAST_RATIO = 0.01
"""A smaller difference is called none, however narrow the interval: no user would feel it."""
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip


class Outcome(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference"
    TOO_FEW = "not enough rounds"


@dataclass(frozen=True)
class Ratio:
    """Speed of an arm over another's: geometric mean of the rounds, bounds of the 95 % interval.

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
    """The 97.5 % point of Student's t. From a table up to 20 degrees of freedom, then by Cornish and Fisher's
    expansion (Abramowitz and Stegun 26.7.5), which is right to 4 digits there."""
    if freedom < 1:
        raise ValueError(f"degrees of freedom: expected at least 1, got {freedom}")
    if freedom <= len(_T_975):
        return _T_975[freedom - 1]
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
