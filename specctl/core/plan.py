"""From forecasts to a plan: constraints first, then one choice for every bucket, then the rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import numpy as np

from specctl.contract.table import TableRow
from specctl.core.explain import table_changes
from specctl.core.forecast import Forecast
from specctl.core.messages import Choice, Reason, setting_words
from specctl.core.rails import Constraint
from specctl.core.settings import GuardRailSettings
from specctl.core.space import Bools, Floats
from specctl.core.table_rows import DecidedSetting, row_at, rows_with

__all__ = ["Decider", "choices_of", "planned_rows"]

OFF_MIN_GAIN_RATIO = 0.0
"""What off has to gain over a setting in force: nothing may be worse than off for long."""


@dataclass(frozen=True)
class Decider:
    """What a choice goes by.

    ``eligible``: [setting], within the policy's bounds on every knob. ``used``: [bucket, setting], the share
    of the nearest latency bound, over 1: broken.
    """

    forecast: Forecast
    rails: GuardRailSettings
    eligible: Bools
    used: Floats
    constraints: Sequence[Constraint]

    @cached_property
    def _eligible(self) -> list[int]:
        """Numbers of the eligible settings, rising."""
        return _numbers(self.eligible)

    @cached_property
    def _used(self) -> list[list[float]]:
        found: list[list[float]] = self.used.tolist()
        return found

    def choose(self, bucket: int) -> tuple[int, Reason, str]:
        """A setting's number, why it is that, and in words what held another one back."""
        wanted, reason, words = self._wanted(bucket, self._eligible)
        for constraint in self.constraints:
            if not constraint.allowed[bucket, wanted]:
                allowed = np.logical_and.reduce([c.allowed[bucket] for c in self.constraints])
                return self._within(bucket, _numbers(allowed)), constraint.reason, constraint.words
        return wanted, reason, words

    def _within(self, bucket: int, allowed: Sequence[int]) -> int:
        """The best of what the constraints leave; the setting in force where they leave nothing better."""
        present, gain = int(self.forecast.present[bucket]), self.forecast.gain_rows[bucket]
        if not allowed:
            return present
        if present not in allowed:
            known = [number for number in allowed if isfinite(gain[number])]
            return max(known, key=gain.__getitem__) if known else allowed[-1]
        may = [number for number in allowed if number in self._eligible]
        return self._wanted(bucket, may)[0] if may else present

    def _wanted(self, bucket: int, may: Sequence[int]) -> tuple[int, Reason, str]:
        forecast, rails = self.forecast, self.rails
        present, gain, used = int(forecast.present[bucket]), forecast.gain_rows[bucket], self._used[bucket]
        known = [number for number in may if isfinite(gain[number])]
        if present not in may:
            words = f"{setting_words(forecast.space.settings[present])} is outside the policy's bounds"
            best = max(known, key=gain.__getitem__) if known else may[0]
            return best, Reason.SET_BY_POLICY, words
        if not isfinite(gain[present]):
            return present, Reason.COST_UNKNOWN, "no step of this bucket or a similar one was measured"
        if forecast.acceptance.trials <= 0:
            return present, Reason.FEW_SAMPLES, "no drafted token was judged yet"
        within = [number for number in known if used[number] <= 1.0]
        if not within:
            least = min(known, key=used.__getitem__)
            near = used[present] <= used[least] * (1.0 + rails.min_gain_ratio)
            words = "no setting meets the latency bounds; the one that breaks them least is taken"
            return (present if near else least), Reason.LATENCY_BOUND, words
        if present not in within:
            best = max(within, key=gain.__getitem__)
            return best, Reason.LATENCY_BOUND, "the setting in force breaks a latency bound"
        return self._by_gain(bucket, within)

    def _by_gain(self, bucket: int, may: Sequence[int]) -> tuple[int, Reason, str]:
        """The setting that gains most over the one in force, if it gains enough; off where that is better."""
        present, gain = int(self.forecast.present[bucket]), self.forecast.gain_rows[bucket]
        best = max(may, key=gain.__getitem__)
        if gain[best] > self.rails.min_gain_ratio:
            return best, Reason.GAIN if best else Reason.OFF_NO_GAIN, ""
        if may[0] == 0 and gain[0] > OFF_MIN_GAIN_RATIO:
            return 0, Reason.OFF_NO_GAIN, ""
        words = ""
        if gain[best] > 0.0:
            named, sigma = self.forecast.space.settings[best], self.forecast.sigma_rows[bucket][best]
            words = f"{setting_words(named)} would gain {gain[best]:+.1%}, +- {sigma:.1%}"
        return present, Reason.NO_BETTER, words


def _numbers(may: Bools) -> list[int]:
    found: list[int] = may.nonzero()[0].tolist()
    return found


def choices_of(
    forecast: Forecast, picked: Sequence[tuple[int, Reason, str]], in_force: Sequence[TableRow]
) -> tuple[Choice, ...]:
    """A choice for every bucket, without samples and thresholds."""
    space, choices = forecast.space, []
    gains, sigmas, rates = forecast.gain_rows, forecast.sigma_rows, forecast.rate_rows
    for bucket, (first, last) in enumerate(space.buckets):
        after, reason, words = picked[bucket]
        present = int(forecast.present[bucket])
        row = row_at(in_force, first)
        before = space.settings[present] if row is None else row.setting
        is_known = space.number_of(before) is not None
        is_kept = after == present and (is_known or not space.is_prepared[after])
        setting = before if is_kept else space.settings[after]
        if not is_kept and after == present:
            reason, words = Reason.NOT_POSSIBLE, f"{setting_words(before)} is not prepared on this server"
        if setting.min_token_prob != before.min_token_prob:
            setting = setting.model_copy(update={"min_token_prob": before.min_token_prob})
        choices.append(
            Choice(
                first,
                last,
                before,
                setting,
                reason,
                words,
                bool(forecast.is_active[bucket]),
                _finite(gains[bucket][after]),
                sigmas[bucket][after],
                _finite(rates[bucket][after]),
                _finite(rates[bucket][present]),
                _finite(rates[bucket][0]),
                None if row is None else row.sample,
            )
        )
    return tuple(choices)


def planned_rows(
    choices: Sequence[Choice], in_force: Sequence[TableRow]
) -> tuple[tuple[TableRow, ...], tuple[str, ...]]:
    """The rows, and in words what they change in the table in force, samples apart."""
    starts = sorted((row for row in in_force if not row.context_from_tokens), key=_batch_from)
    decided = [part for one in choices for part in _decided(one, starts)]
    rows = rows_with(in_force, decided)
    return rows, table_changes(in_force, rows)


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _batch_from(row: TableRow) -> int:
    return row.decode_batch_from


def _decided(choice: Choice, in_force: Sequence[TableRow]) -> list[DecidedSetting]:
    """Rows that begin inside of a bucket stay where the bucket does not change."""
    decided = [DecidedSetting(choice.first, choice.after, choice.sample)]
    if not choice.is_change:
        decided += [
            DecidedSetting(row.decode_batch_from, row.setting, choice.sample)
            for row in in_force
            if choice.first < row.decode_batch_from <= choice.last
        ]
    return decided
