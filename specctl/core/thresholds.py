"""From which probability on a drafted token is verified, by bucket: a mean, in steps.

A step gives N tokens in T seconds. One more verified token gives p more in dt more, and (N + p) / (T + dt) is
over N / T where p is over dt x N / T: tokens per second are the goodput of Liu et al. (arXiv 2406.14066). It
is a mean over some seconds, because a second that verification takes is lost to the tokens that a second
usually brings.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from specctl.core.forecast import Forecast
from specctl.core.messages import Choice, Reason

__all__ = ["BreakEven", "Thresholds", "break_even_prob"]

STEPS = (0.0, 0.05, 0.1, 0.2, 0.4)
HALF_LIFE_S = 10.0
NEAR_RATIO = 2.0
"""What is in force stays while the mean is within this ratio of it."""
NOTHING = 0.05
"""Under it a probability is as good as none."""


class BreakEven(NamedTuple):
    """The least probability that pays, from -1 to 1, and its standard error."""

    prob: float
    error: float


def break_even_prob(forecast: Forecast, bucket: int, chosen: int) -> BreakEven | None:
    """None: not known, as less than two chains ran.

    Seconds of one more token: from the smallest drafting chain that ran to the chosen one, or to the one
    above it, so that what drafting takes in any case is in both. Noise can make them negative: cut at 0,
    their mean would be too high.
    """
    space, cost = forecast.space, forecast.cost
    chains = [number for number in space.chains if cost.is_measured[bucket, number]]
    rate = forecast.rate_rows[bucket][chosen]
    if len(chains) < 2 or not math.isfinite(rate):
        return None
    first, width = chains[0], space.settings[chosen].width_tokens
    last = next((i for i in chains[1:] if space.settings[i].width_tokens >= width), chains[-1])
    tokens = float(cost.verified[bucket, last] - cost.verified[bucket, first])
    if tokens <= 0:
        return None
    step_s, error_s = cost.step_s[bucket], cost.step_s[bucket] * cost.sigma[bucket]
    prob = float(step_s[last] - step_s[first]) / tokens * rate
    return BreakEven(min(max(prob, -1.0), 1.0), math.hypot(error_s[first], error_s[last]) / tokens * rate)


class Thresholds:
    """The mean of what was wanted, by bucket."""

    def __init__(self, buckets: int) -> None:
        self._means: list[BreakEven | None] = [None] * buckets
        self._passed_s = 0.0

    def pass_time(self, interval_s: float) -> None:
        self._passed_s += interval_s

    def applied(
        self,
        choices: Sequence[Choice],
        wanted: Sequence[BreakEven | None],
        configured: float,
        ceilings: Collection[int],
    ) -> tuple[Choice, ...]:
        """The choices with their ``min_token_prob``; where none is known, or nothing is drafted, a
        bucket keeps the one it has.

        Args:
            wanted: of every bucket, for this poll. What is in force stays while the mean may be it, within
                the standard error.
            configured: what a row without one stands for.
            ceilings: buckets, by their last batch, that may not verify more tokens now.
        """
        kept = 0.5 ** (self._passed_s / HALF_LIFE_S)
        self._passed_s = 0.0
        found = []
        for bucket, choice in enumerate(choices):
            now, mean = choice.before.min_token_prob, self._means[bucket]
            one = wanted[bucket] if choice.is_active else None
            if one is not None:
                mean = self._means[bucket] = one if mean is None else _mean(mean, one, kept)
            drafts = choice.after.num_speculative_tokens > 0
            prob = _stepped(mean, now, configured) if drafts and mean is not None else now
            if choice.last in ceilings and _value(prob, configured) < _value(now, configured):
                prob = now
            found.append(choice if prob == choice.after.min_token_prob else _moved(choice, prob, mean))
        return tuple(found)


def _mean(before: BreakEven, newest: BreakEven, kept: float) -> BreakEven:
    """What was read with a larger error weighs less."""
    if newest.error < before.error:
        kept *= (newest.error / before.error) ** 2
    return BreakEven(newest.prob + kept * (before.prob - newest.prob), newest.error)


def _moved(choice: Choice, prob: float | None, mean: BreakEven | None) -> Choice:
    after = choice.after.model_copy(update={"min_token_prob": prob})
    if choice.is_change or mean is None:
        return choice._replace(after=after)
    words = f"probability {max(mean.prob, 0.0):.2f}"
    return choice._replace(after=after, reason=Reason.BREAK_EVEN, detail=words)


def _value(prob: float | None, configured: float) -> float:
    return configured if prob is None else prob


def _stepped(mean: BreakEven, now: float | None, configured: float) -> float | None:
    wanted = mean.prob
    if abs(wanted - _value(now, configured)) <= mean.error:
        return now
    for known in (now, None):
        if _is_near(wanted, _value(known, configured)):
            return known
    return min(STEPS, key=lambda step: abs(_height(step) - _height(wanted)))


def _is_near(wanted: float, value: float) -> bool:
    if value < NOTHING:
        return wanted < NOTHING
    return value / NEAR_RATIO <= wanted <= value * NEAR_RATIO


def _height(prob: float) -> float:
    """Steps are even in the logarithm; the lowest stands for all below it."""
    return math.log(max(prob, NOTHING / NEAR_RATIO))
