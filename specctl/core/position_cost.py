"""Seconds of one more verified position.

A proposer that looks drafts up finds them for some requests and not for others, so the steps of one setting
verify more positions or fewer. Their seconds tell what a position costs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from specctl.contract.telemetry import TelemetryCell
from specctl.core.space import Floats

__all__ = ["PositionCost", "Spread"]

HALF_LIFE_STEPS = 200.0
MEAN_STEPS = 10.0
"""Steps after which a bucket's mean has followed by half."""
STEPS_MIN = 3
FULL_RATIO = 0.95
"""Where drafts are about as long as asked for, the batch alone changes how many positions there are."""
PRIOR_WEIGHT = 0.2
"""In squared means of positions: steps that hardly differ tell little."""


class Spread(NamedTuple):
    """Sums over the steps of a cell, about its means: of seconds squared, of positions squared, of both."""

    seconds: float
    positions: float
    product: float

    @classmethod
    def of(cls, cell: TelemetryCell) -> Spread:
        mean_s, positions = cell.step_s / cell.steps, cell.verified_tokens / cell.steps
        return cls(
            cell.step_s_squared - mean_s * cell.step_s,
            cell.verified_tokens_squared - positions * cell.verified_tokens,
            cell.step_s_by_verified_tokens - positions * cell.step_s,
        )

    def unexplained(self, position_s: float) -> float:
        """Of the seconds squared, what is left if a position takes so long."""
        explained = position_s * (2.0 * self.product - position_s * self.positions)
        return max(self.seconds - (explained if math.isfinite(explained) else 0.0), 0.0)


class PositionCost:
    """By bucket, a least-squares slope within the cells of an interval, so that neither batches nor settings
    are compared. A position takes one request several times what it takes eight. What buckets share is by how
    many percent a step is longer with 1 % more positions: where few steps of a bucket tell, that is taken.
    """

    def __init__(self, buckets: int) -> None:
        self._square = np.zeros(buckets)
        self._product = np.zeros(buckets)
        self._relative = np.zeros(buckets)
        """The same with seconds in means of theirs."""
        self._mean_s = np.zeros(buckets)
        """Of a step for each of its positions."""

    def meet(self, bucket: int, cell: TelemetryCell) -> None:
        """Steps of any number."""
        if cell.verified_tokens:
            gain = cell.steps / (cell.steps + MEAN_STEPS) if self._mean_s[bucket] else 1.0
            self._mean_s[bucket] += gain * (cell.step_s / cell.verified_tokens - self._mean_s[bucket])

    def add(self, bucket: int, cell: TelemetryCell, spread: Spread) -> None:
        asked = cell.num_speculative_tokens * cell.request_steps
        if cell.steps < STEPS_MIN or cell.tree_topk > 1 or sum(cell.drafted_at) > FULL_RATIO * asked:
            return
        positions = cell.verified_tokens / cell.steps
        if positions < 1.0 or not _is_possible(cell, spread):
            return
        kept = 0.5 ** (cell.steps / HALF_LIFE_STEPS)
        # In means of positions, so that buckets can be added.
        self._square[bucket] = kept * self._square[bucket] + spread.positions / positions**2
        self._product[bucket] = kept * self._product[bucket] + spread.product / positions**2
        relative = spread.product * cell.steps / (positions * cell.step_s)
        self._relative[bucket] = kept * self._relative[bucket] + relative

    def seconds(self) -> Floats:
        """[bucket], of one position; 0: not known, or none."""
        elasticity = float(self._relative.sum()) / (float(self._square.sum()) + PRIOR_WEIGHT)
        expected = min(max(elasticity, 0.0), 1.0) * self._mean_s
        slope = (self._product + PRIOR_WEIGHT * expected) / (self._square + PRIOR_WEIGHT)
        found: Floats = np.maximum(slope, 0.0)
        return found


def _is_possible(cell: TelemetryCell, spread: Spread) -> bool:
    """Whether steps can have such sums."""
    width = cell.verify_width_tokens or 1 + cell.num_speculative_tokens
    most = cell.steps * (cell.decode_batch_to * width) ** 2
    seconds = min(spread.seconds, cell.step_s**2)
    if not 0.0 < spread.positions <= most or seconds <= 0.0:
        return False
    return abs(spread.product) <= 1.01 * math.sqrt(spread.positions * seconds)
