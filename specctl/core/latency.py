"""Time to the first token and per token as the engine measured them, and the steps they were measured among.

Engines export them now and then, and a table may change meanwhile. So the steps of the same intervals are
kept beside them: another setting is compared with the steps as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from specctl.core.objective import LatencyBounds, LatencyReading
from specctl.core.prompt_steps import with_prompts
from specctl.core.space import Floats
from specctl.types import Histogram, Observation

__all__ = ["MeanLatency"]

HALF_LIFE_S = 15.0
REQUESTS_MIN = 3.0
"""Fewer observations than this, discounted, are no mean and no quantile."""


@dataclass
class _Histogram:
    upper: tuple[float, ...] = ()
    counts: Floats = field(default_factory=lambda: np.zeros(0))

    def add(self, delta: Histogram, kept: float) -> None:
        if delta.upper != self.upper:
            self.upper, self.counts = delta.upper, np.zeros(len(delta.counts))
        self.counts = kept * self.counts + np.array(delta.counts, np.float64)

    def value_s(self, quantile: float | None) -> float | None:
        """A quantile, or the mean by the middles of the histogram's bins; None: too few."""
        if self.counts.sum() < REQUESTS_MIN:
            return None
        delta = Histogram(self.upper, tuple(self.counts.tolist()))
        return delta.mean() if quantile is None else delta.quantile(quantile)


class MeanLatency:
    def __init__(self) -> None:
        self._ttft, self._tpot = _Histogram(), _Histogram()
        self._open = np.zeros(6)
        self._known = np.zeros(6)
        self._open_s = 0.0

    def update(self, observation: Observation) -> None:
        """``_open``, ``_known``: steps, seconds, request-steps, tokens, intervals with a queue, intervals;
        the first since the last reading of the engine's own metrics."""
        cells = with_prompts(observation.cells or ())
        gains = (
            sum(cell.steps for cell in cells),
            sum(cell.step_s for cell in cells),
            sum(cell.request_steps for cell in cells),
            sum(cell.emitted_tokens for cell in cells),
            1.0 if observation.waiting else 0.0,
            1.0,
        )
        self._open += np.array(gains, np.float64)
        self._open_s += observation.interval_s or 0.0
        stock = observation.stock
        if stock is None or (stock.ttft is None and stock.tpot is None):
            return
        kept = 0.5 ** (self._open_s / HALF_LIFE_S)
        if stock.ttft is not None:
            self._ttft.add(stock.ttft, kept)
        if stock.tpot is not None:
            self._tpot.add(stock.tpot, kept)
        self._known = kept * self._known + self._open
        self._open, self._open_s = np.zeros(6), 0.0

    def reading(self, bounds: LatencyBounds) -> LatencyReading | None:
        steps, seconds, requests, tokens, queued, intervals = self._known.tolist()
        if steps <= 0 or requests <= 0:
            return None
        return LatencyReading(
            tpot_s=self._tpot.value_s(bounds.tpot_quantile),
            ttft_s=self._ttft.value_s(bounds.ttft_quantile),
            step_s=seconds / steps,
            tokens_per_step=tokens / requests,
            is_queued=queued > intervals / 2,
        )
