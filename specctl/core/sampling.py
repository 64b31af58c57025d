"""Which other setting a row's steps sample, and how often. Pure.

The setting with the highest upper confidence bound is sampled (Auer, Cesa-Bianchi and Fischer, "Finite-time
analysis of the multiarmed bandit problem", 2002): it may be better, or it is the one known worst. A sample
costs the tokens that it is expected to lose, and the policy bounds that share.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from specctl.contract.setting import RowSample
from specctl.core.forecast import Forecast
from specctl.core.space import Bools, Floats

__all__ = ["SamplingSettings", "choose_sample"]

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


class SamplingSettings(Protocol):
    @property
    def share_max_ratio(self) -> float: ...


def choose_sample(
    forecast: Forecast,
    bucket: int,
    chosen: int,
    may: Bools,
    settings: SamplingSettings,
    every_min_steps: int,
    now: RowSample | None,
) -> RowSample | None:
    """The sample of a bucket's row; None: there is nothing to learn, or nothing may be spent.

    Args:
        chosen: the row's own setting, by number.
        may: [setting], what may be sampled.
        now: the row's sample in force, kept where it is as good.
    """
    others = may.copy()
    others[chosen] = False
    if settings.share_max_ratio <= 0 or not others.any():
        return None
    step_s = float(forecast.cost.step_s[bucket, chosen])
    if others[0] and not forecast.cost.is_measured[bucket, 0] and forecast.cost.mixed_share[bucket] < 0.5:
        # What everything is judged by comes first, within a second: a few steps tell it.
        every = FIRST_S / step_s if math.isfinite(step_s) and step_s > 0 else FIRST_EVERY_STEPS
        every_steps = int(min(max(math.ceil(every), 2, every_min_steps), EVERY_MAX_STEPS))
        return _kept(RowSample(setting=forecast.space.settings[0], every_steps=every_steps), now)
    loss, upper = _against(forecast, bucket, chosen)
    upper = np.where(others, upper, -np.inf)
    wanted = int(np.argmax(upper))
    is_search = bool(upper[wanted] > SEARCH_MIN_GAIN_RATIO)
    share = settings.share_max_ratio * (SEARCH_FACTOR if is_search else 1.0)
    every = loss[wanted] / share
    if is_search:
        every = max(every, SEARCH_EVERY_STEPS)
    else:
        every = max(every, WATCH_S / step_s if math.isfinite(step_s) and step_s > 0 else 100.0)
    every_steps = int(min(max(math.ceil(every), every_min_steps), EVERY_MAX_STEPS))
    return _kept(RowSample(setting=forecast.space.settings[wanted], every_steps=every_steps), now)


def _kept(wanted: RowSample, now: RowSample | None) -> RowSample:
    """The sample in force where it does as well."""
    if now is not None and now.setting == wanted.setting:
        near = wanted.every_steps / STICKY <= now.every_steps <= wanted.every_steps * STICKY
        return now if near else wanted
    return wanted


def _against(forecast: Forecast, bucket: int, chosen: int) -> tuple[Floats, Floats]:
    """Expected loss of a step at each setting, in steps of the chosen one; upper bound of the gain."""
    gain = forecast.gain[bucket]
    own = gain[chosen] if np.isfinite(gain[chosen]) else 0.0
    gain = (gain - own) / (1.0 + own)
    sigma = forecast.sigma[bucket]
    is_unknown = ~np.isfinite(gain)
    # The setting that looks best is often one that luck made look so: its price is the cautious one.
    loss = np.where(is_unknown, UNKNOWN_LOSS, np.maximum(sigma - gain, 0.0))
    upper = np.where(is_unknown, UPPER_SIGMAS * UNKNOWN_LOSS, gain + UPPER_SIGMAS * sigma)
    return loss, upper
