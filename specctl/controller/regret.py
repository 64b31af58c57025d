"""What the settings in force gave, against off and the best single number of drafts. No I/O, no clock.

The seconds that the steps without prefill took are set against those that each number would have taken for
the same tokens at the same decode batches: the measured seconds x predicted rate in force / predicted rate of
the number, look by look. Only ratios of predictions of one look count, so what misleads them all alike
(contexts that grow, a neighbour on the machine) is no regret. Where a prediction is missing, the steps are
left out on both sides, and the look is counted. All sums are discounted.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

from specctl.types import BucketForecast, CellDelta, Decision, Observation, Reason

__all__ = ["Regret"]

HALF_LIFE_S = 600.0
# Step seconds, discounted, before there is anything to tell.
MEASURED_MIN_S = 10.0
# A number competes for the best one when it was predicted for this share of the seconds.
COVERED_MIN_RATIO = 0.95

Rates = Mapping[int, float]


class Regret(NamedTuple):
    """Seconds of steps without prefill, and tokens that they emitted.

    ``compared_s``: set against predictions; ``static_s``: by number, the part of them that it was predicted
    for and what it would have taken instead. ``step_s``, ``emitted_tokens``: of all; ``probed_s``: of probes;
    ``lost_tokens``: what probes would have emitted beyond theirs at the value that they came from.
    ``probes``: running since the last look, as (bucket's upper end, number).
    """

    compared_s: float = 0.0
    static_s: Mapping[int, tuple[float, float]] = MappingProxyType({})
    step_s: float = 0.0
    emitted_tokens: float = 0.0
    probed_s: float = 0.0
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
            return self._replace(probes=probes)
        result = self._discounted(0.5 ** (observation.interval_s / HALF_LIFE_S))
        forecasts = {forecast.decode_batch_to: forecast for forecast in decision.forecasts}
        left_out = 0
        for cell in observation.cells:
            if cell.has_prefill or cell.step_s <= 0:
                continue
            forecast = forecasts.get(cell.decode_batch_to)
            rates = {} if forecast is None else _rates(forecast)
            usual = None if forecast is None else rates.get(forecast.present_num_speculative_tokens)
            result = result._followed(cell, rates.get(cell.num_speculative_tokens), usual)
            compared = result._compared(cell, rates)
            left_out = left_out if compared is not None else 1
            result = compared or result
        return result._replace(probes=probes, left_out_looks=self.left_out_looks + left_out)

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
        """The number with the fewest predicted seconds for the whole window."""
        least_s = COVERED_MIN_RATIO * self.compared_s
        ratios = {
            number: taken_s / covered_s
            for number, (covered_s, taken_s) in self.static_s.items()
            if covered_s > 0 and covered_s >= least_s
        }
        return min(ratios, key=lambda number: (ratios[number], number), default=None)

    @property
    def exploration_lost_ratio(self) -> float | None:
        """Share of the tokens that probes lost; negative: they gained."""
        tokens = self.emitted_tokens + self.lost_tokens
        return self.lost_tokens / tokens if self.step_s >= MEASURED_MIN_S and tokens > 0 else None

    @property
    def exploration_time_ratio(self) -> float | None:
        """Share of the step seconds that probes took."""
        return self.probed_s / self.step_s if self.step_s >= MEASURED_MIN_S else None

    def _against(self, number: int) -> float | None:
        covered_s, taken_s = self.static_s.get(number, (0.0, 0.0))
        if covered_s <= 0 or self.compared_s < MEASURED_MIN_S:
            return None
        return 1.0 - taken_s / covered_s

    def _discounted(self, factor: float) -> Self:
        return self._replace(
            compared_s=self.compared_s * factor,
            static_s={k: (covered * factor, taken * factor) for k, (covered, taken) in self.static_s.items()},
            step_s=self.step_s * factor,
            emitted_tokens=self.emitted_tokens * factor,
            probed_s=self.probed_s * factor,
            lost_tokens=self.lost_tokens * factor,
        )

    def _compared(self, cell: CellDelta, rates: Rates) -> Self | None:
        """None where off or the number in force was not predicted."""
        in_force = rates.get(cell.num_speculative_tokens)
        if 0 not in rates or in_force is None:
            return None
        static_s = dict(self.static_s)
        for number, rate in rates.items():
            covered_s, taken_s = static_s.get(number, (0.0, 0.0))
            static_s[number] = covered_s + cell.step_s, taken_s + cell.step_s * in_force / rate
        return self._replace(compared_s=self.compared_s + cell.step_s, static_s=static_s)

    def _followed(self, cell: CellDelta, in_force: float | None, usual: float | None) -> Self:
        """Predicted tokens per second as the cell ran, and at the setting apart from probes."""
        is_probe = (cell.decode_batch_to, cell.num_speculative_tokens) in self.probes
        lost = 0.0
        if is_probe and usual is not None and in_force is not None:
            lost = cell.emitted_tokens * (usual / in_force - 1.0)
        return self._replace(
            step_s=self.step_s + cell.step_s,
            emitted_tokens=self.emitted_tokens + cell.emitted_tokens,
            probed_s=self.probed_s + (cell.step_s if is_probe else 0.0),
            lost_tokens=self.lost_tokens + lost,
        )


def _rates(forecast: BucketForecast) -> dict[int, float]:
    """Predicted tokens per second by number of drafts, where known."""
    return {c.num_speculative_tokens: c.tokens_per_s for c in forecast.candidates if c.tokens_per_s}
