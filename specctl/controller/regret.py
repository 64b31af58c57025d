"""What the settings in force gave, against off and the best single number of drafts. No I/O, no clock.

The tokens that the steps without prefill emitted, and the seconds that they took, are set against the seconds
that each number would have needed for the same tokens at the same decode batches, as it was predicted at that
look. All sums are discounted. Where a prediction is missing, the look is left out on both sides and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from specctl.types import BucketForecast, CellDelta, Decision, Observation, Reason

__all__ = ["Regret"]

HALF_LIFE_S = 600.0
# Step seconds, discounted, before there is anything to tell.
MEASURED_MIN_S = 10.0
# A number competes for the best one when it was predicted for this share of the tokens.
COVERED_MIN_RATIO = 0.95


@dataclass(frozen=True, slots=True)
class _Steps:
    """Of one bucket in one look, or discounted sums of them."""

    emitted_tokens: float = 0.0
    step_s: float = 0.0

    def plus(self, other: _Steps) -> _Steps:
        return _Steps(self.emitted_tokens + other.emitted_tokens, self.step_s + other.step_s)

    def scaled(self, factor: float) -> _Steps:
        return _Steps(self.emitted_tokens * factor, self.step_s * factor)


@dataclass(frozen=True, slots=True)
class Regret:
    """``compared``: what is set against predictions; ``static``: by number, the tokens that it was predicted
    for and the seconds that it would have taken. ``every``: all steps without prefill. ``probed``: those of
    probes; ``lost_tokens``: what their buckets would have emitted beyond that at the value before the probe.
    ``probes``: running since the last look, as (bucket's upper end, number).
    """

    compared: _Steps = _Steps()
    static: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    every: _Steps = _Steps()
    probed: _Steps = _Steps()
    lost_tokens: float = 0.0
    left_out_looks: int = 0
    probes: frozenset[tuple[int, int]] = frozenset()

    def updated(self, observation: Observation, decision: Decision) -> Self:
        """With one look taken in; ``decision`` is what followed from it."""
        probes = frozenset(
            (choice.decode_batch_to, choice.num_speculative_tokens)
            for choice in decision.choices
            if choice.reason is Reason.PROBE
        )
        if observation.cells is None or observation.interval_s is None:
            return replace(self, probes=probes)
        result = self._discounted(0.5 ** (observation.interval_s / HALF_LIFE_S))
        forecasts = {forecast.decode_batch_to: forecast for forecast in decision.forecasts}
        is_whole = True
        for bucket_to, cells in _by_bucket(observation.cells).items():
            forecast = forecasts.get(bucket_to)
            result = result._with_probes(forecast, cells)
            compared = result._with_bucket(forecast, _sum(cells))
            is_whole = is_whole and compared is not None
            result = compared or result
        return replace(result, probes=probes, left_out_looks=self.left_out_looks + (not is_whole))

    @property
    def off_ratio(self) -> float | None:
        """Share of off's tokens per second that was lost; negative: gained. None: not known."""
        return self._against(0)

    @property
    def best_static_ratio(self) -> float | None:
        """The same against the number that would have been best all the time."""
        best = self.best_static
        return None if best is None else self._against(best)

    @property
    def best_static(self) -> int | None:
        """The number with the fewest predicted seconds per token over the whole window."""
        least = COVERED_MIN_RATIO * self.compared.emitted_tokens
        seconds = {
            number: step_s / tokens
            for number, (tokens, step_s) in self.static.items()
            if tokens > 0 and tokens >= least
        }
        return min(seconds, key=lambda number: (seconds[number], number), default=None)

    @property
    def exploration_lost_ratio(self) -> float | None:
        """Share of the tokens that probes lost; negative: they gained."""
        tokens = self.every.emitted_tokens + self.lost_tokens
        return self.lost_tokens / tokens if self.every.step_s >= MEASURED_MIN_S and tokens > 0 else None

    @property
    def exploration_time_ratio(self) -> float | None:
        """Share of the step seconds that probes took."""
        return self.probed.step_s / self.every.step_s if self.every.step_s >= MEASURED_MIN_S else None

    def _against(self, number: int) -> float | None:
        tokens, step_s = self.static.get(number, (0.0, 0.0))
        achieved = self.compared
        if tokens <= 0 or achieved.step_s < MEASURED_MIN_S:
            return None
        return 1.0 - step_s / tokens * achieved.emitted_tokens / achieved.step_s

    def _discounted(self, factor: float) -> Self:
        return replace(
            self,
            compared=self.compared.scaled(factor),
            static={k: (tokens * factor, step_s * factor) for k, (tokens, step_s) in self.static.items()},
            every=self.every.scaled(factor),
            probed=self.probed.scaled(factor),
            lost_tokens=self.lost_tokens * factor,
        )

    def _with_bucket(self, forecast: BucketForecast | None, steps: _Steps) -> Self | None:
        """None where not even off was predicted."""
        rates = {} if forecast is None else _rates(forecast)
        if 0 not in rates:
            return None
        static, emitted = dict(self.static), steps.emitted_tokens
        for number, rate in rates.items():
            tokens, step_s = static.get(number, (0.0, 0.0))
            static[number] = tokens + emitted, step_s + emitted / rate
        return replace(self, compared=self.compared.plus(steps), static=static)

    def _with_probes(self, forecast: BucketForecast | None, cells: list[CellDelta]) -> Self:
        probing = [
            cell for cell in cells if (cell.decode_batch_to, cell.num_speculative_tokens) in self.probes
        ]
        steps = _sum(probing)
        usual = None if forecast is None else _rates(forecast).get(forecast.present_num_speculative_tokens)
        lost = 0.0 if usual is None else usual * steps.step_s - steps.emitted_tokens
        return replace(
            self,
            every=self.every.plus(_sum(cells)),
            probed=self.probed.plus(steps),
            lost_tokens=self.lost_tokens + lost,
        )


def _by_bucket(cells: tuple[CellDelta, ...]) -> dict[int, list[CellDelta]]:
    buckets: dict[int, list[CellDelta]] = {}
    for cell in cells:
        if not cell.has_prefill and cell.step_s > 0:
            buckets.setdefault(cell.decode_batch_to, []).append(cell)
    return buckets


def _sum(cells: list[CellDelta]) -> _Steps:
    return _Steps(sum(cell.emitted_tokens for cell in cells), sum(cell.step_s for cell in cells))


def _rates(forecast: BucketForecast) -> dict[int, float]:
    """Predicted tokens per second by number of drafts, where known."""
    return {c.num_speculative_tokens: c.tokens_per_s for c in forecast.candidates if c.tokens_per_s}
