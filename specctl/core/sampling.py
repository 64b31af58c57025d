"""Which other setting a row's steps sample, and how often. Pure.

The setting with the highest upper confidence bound is sampled (Auer, Cesa-Bianchi and Fischer, "Finite-time
analysis of the multiarmed bandit problem", 2002): it may be better, or it is the one known worst. A sample
costs the tokens that it is expected to lose, and the policy bounds that share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from specctl.contract.setting import RowSample, Setting
from specctl.core.forecast import Forecast
from specctl.core.settings import SamplingSettings

__all__ = ["choose_sample"]

UPPER_SIGMAS = 1.0
SEARCH_FACTOR = 4.0
"""While a better setting is likely enough, samples may cost so many times the policy's share."""
SEARCH_EVERY_STEPS = 3
SEARCH_MIN_GAIN_RATIO = 0.02
"""A setting that may gain so much over the row's own is searched for."""
WATCH_S = 0.5
"""Once none may, a sample in so many seconds keeps what is known."""
STICKY = 1.5
"""A sample stays as it is while the wanted interval is within this factor."""
FIRST_S = 0.15
"""Until the first steps at off are measured, one in so many seconds is at off ..."""
FIRST_EVERY_STEPS = 2
"""... and one in so many steps while the seconds of no step are known."""
UNKNOWN_LOSS = 0.1
EVERY_MAX_STEPS = 100_000


def choose_sample(
    forecast: Forecast,
    bucket: int,
    chosen: int,
    may: Sequence[int],
    settings: SamplingSettings,
    every_min_steps: int,
    now: RowSample | None,
) -> RowSample | None:
    """The sample of a bucket's row; None: there is nothing to learn, or nothing may be spent.

    Args:
        chosen: the row's own setting, by number.
        may: numbers of the settings that may be sampled, rising.
        now: the row's sample in force, kept where it is as good.
    """
    others = [number for number in may if number != chosen]
    if settings.share_max_ratio <= 0 or not others:
        return None
    step_s = forecast.cost.step_rows[bucket][chosen]
    is_step_known = math.isfinite(step_s) and step_s > 0
    if (
        others[0] == 0
        and not forecast.cost.is_measured[bucket, 0]
        and forecast.cost.mixed_share[bucket] < 0.5
    ):
        # What everything is judged by comes first, within a second: a few steps tell it.
        every = FIRST_S / step_s if is_step_known else FIRST_EVERY_STEPS
        return _every(forecast.space.settings[0], max(every, 2), every_min_steps, now)
    wanted, loss, upper = _most_promising(forecast, bucket, chosen, others)
    is_search = upper > SEARCH_MIN_GAIN_RATIO
    every = loss / (settings.share_max_ratio * (SEARCH_FACTOR if is_search else 1.0))
    if is_search:
        every = max(every, SEARCH_EVERY_STEPS)
    else:
        every = max(every, WATCH_S / step_s if is_step_known else 100.0)
    return _every(forecast.space.settings[wanted], every, every_min_steps, now)


def _every(wanted: Setting, every: float, least: int, now: RowSample | None) -> RowSample:
    """The sample in force where it does as well."""
    every_steps = min(max(math.ceil(min(every, EVERY_MAX_STEPS)), least), EVERY_MAX_STEPS)
    if now is not None and now.setting == wanted:
        is_near = every_steps / STICKY <= now.every_steps <= every_steps * STICKY
        if is_near:
            return now
    return RowSample(setting=wanted, every_steps=every_steps)


def _most_promising(
    forecast: Forecast, bucket: int, chosen: int, others: Sequence[int]
) -> tuple[int, float, float]:
    """The setting with the highest upper bound of the gain over the chosen one; what a step at it is expected
    to lose, in steps of the chosen one; that bound."""
    gains, sigmas = forecast.gain_rows[bucket], forecast.sigma_rows[bucket]
    own = gains[chosen] if math.isfinite(gains[chosen]) else 0.0
    best = (others[0], UNKNOWN_LOSS, -math.inf)
    for number in others:
        gain, sigma = (gains[number] - own) / (1.0 + own), sigmas[number]
        if not math.isfinite(gain):
            found = (number, UNKNOWN_LOSS, UPPER_SIGMAS * UNKNOWN_LOSS)
        else:
            # The setting that looks best is often one that luck made look so: its price is the cautious one.
            found = (number, max(sigma - gain, 0.0), gain + UPPER_SIGMAS * sigma)
        if found[2] > best[2]:
            best = found
    return best
