"""Seconds of a decode-only step, by decode batch and verified tokens.

Draft lengths vary within a telemetry cell, and settings vary between cells; both give the slope over verified
tokens. A line per bucket (slope shrunk towards the pooled one), plus what a cell measured beyond that line.
An impossible or underdetermined fit is unknown, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Self

from specctl.estimate.moments import Moments
from specctl.estimate.pooled_fit import PooledFit, fit_pooled, usable_var_v
from specctl.types import CellDelta, Observation, StepCostEstimate

__all__ = ["DiscountedStepCost"]

HALF_LIFE_S = 45.0
STEPS_MIN = 5.0
# Weight of the pooled slope against a bucket's own, in steps x tokens^2.
SLOPE_PRIOR = 20.0
# Verified tokens of full drafts, as a share of decoding requests x (drafts + 1): all but the last steps of
# requests.
FULL_RATIO = 0.999
# A cell's own mean counts half against the bucket's line at this many steps.
OFFSET_PRIOR_STEPS = 10.0
# An interval whose mean step is this many times the cell's, or whose steps scatter by more than their mean,
# is taken for a stall (another process, a compile) unless it repeats.
OUTLIER_RATIO = 3.0
OUTLIER_REPEATS = 3
EXTRAPOLATION_MAX_RATIO = 4.0
# The pooled fit is the dear part of a tick; it is done again once this share of its steps is new.
REFIT_RATIO = 0.04
# A step cannot shrink to less than this share of what was measured by verifying fewer tokens.
INTERCEPT_MIN_RATIO = 0.1

NOTHING = Moments()

_Key = tuple[int, int]


class _Line(NamedTuple):
    """A bucket's line through its mean step: what the costs of all its settings share."""

    mean_s: float
    mean_v: float
    steps: float
    slope_s: float
    slope_sigma_s: float
    residual_var: float

    def costs(
        self, cells: Mapping[int, Moments], verified_tokens: Mapping[int, float]
    ) -> dict[int, StepCostEstimate]:
        """``cells``: what settings measured themselves, by num_speculative_tokens; it moves them off the
        line."""
        mean_s, mean_v, slope_s = self.mean_s, self.mean_v, self.slope_s
        least_s = INTERCEPT_MIN_RATIO * mean_s
        costs = {}
        for k, verified in verified_tokens.items():
            step_s = mean_s + slope_s * (verified - mean_v)
            anchor_steps, anchor_v = self.steps, mean_v
            steps = 0.0
            if k in cells:
                cell = cells[k]
                steps, cell_v = cell.steps, cell.mean_v
                offset_s = cell.mean_s - (mean_s + slope_s * (cell_v - mean_v))
                step_s += offset_s * steps / (steps + OFFSET_PRIOR_STEPS)
                if steps >= STEPS_MIN:
                    anchor_steps, anchor_v = steps, cell_v
            if step_s < least_s:
                costs[k] = StepCostEstimate(None, why_unknown="impossible fit: a step would take no time")
                continue
            # Standard error of the predicted seconds: the anchor's mean, and the slope over the distance.
            slope_error_s = self.slope_sigma_s * (verified - anchor_v)
            sigma_s = math.sqrt(self.residual_var / anchor_steps + slope_error_s * slope_error_s)
            costs[k] = StepCostEstimate(step_s, sigma_s / step_s, steps >= STEPS_MIN)
        return costs


# Without slots, here and below: what follows from the fields is worked out when it is first asked for. Beside
# a fitted curve that holds, nobody asks, and a look has to be cheap.
@dataclass(frozen=True)
class _Pool:
    """``cells`` as they were when a fit was due."""

    cells: Mapping[_Key, Moments]

    @cached_property
    def fit(self) -> PooledFit:
        if not self.cells:
            return PooledFit()
        return fit_pooled(_of_drafts(key, moments) for key, moments in self.cells.items())


@dataclass(frozen=True)
class DiscountedStepCost:
    """``cells``: by (bucket's upper end, num_speculative_tokens); ``suspects``: stalls in a row, by cell.

    ``unfitted_steps``: taken in since a pooled fit was last due.
    """

    cells: Mapping[_Key, Moments] = field(default_factory=dict)
    suspects: Mapping[_Key, int] = field(default_factory=dict)
    pool: _Pool = field(default_factory=lambda: _Pool({}))
    unfitted_steps: float = 0.0
    half_life_s: float = HALF_LIFE_S

    @property
    def pooled(self) -> PooledFit:
        return self.pool.fit

    @cached_property
    def buckets(self) -> Mapping[int, Moments]:
        """Sums by bucket."""
        return _by_bucket(self.cells)

    @cached_property
    def slopes_s(self) -> Mapping[int, float]:
        """Seconds for one more verified token, of the buckets where it is known."""
        spreads = _by_bucket({key: _of_drafts(key, moments) for key, moments in self.cells.items()})
        slopes_s = {upper: _slope_s(bucket, self.pooled) for upper, bucket in spreads.items()}
        return {upper: slope_s for upper, slope_s in slopes_s.items() if slope_s is not None}

    def updated(self, observation: Observation) -> Self:
        if observation.cells is None or observation.interval_s is None:
            return self
        fresh = [
            cell for cell in observation.cells if not cell.has_prefill and cell.steps and cell.step_s > 0
        ]
        if not fresh:
            return self
        factor = 0.5 ** (observation.interval_s / self.half_life_s)
        cells = {
            key: kept for key, moments in self.cells.items() if (kept := moments.scaled(factor)).steps >= 1
        }
        suspects = dict(self.suspects)
        for cell in fresh:
            _take(cell, cells, suspects)
        unfitted_steps = self.unfitted_steps + sum(cell.steps for cell in fresh)
        is_refit_due = cells.keys() != self.cells.keys() or unfitted_steps >= REFIT_RATIO * sum(
            moments.steps for moments in cells.values()
        )
        return type(self)(
            cells=cells,
            suspects=suspects,
            pool=_Pool(cells) if is_refit_due else self.pool,
            unfitted_steps=0.0 if is_refit_due else unfitted_steps,
            half_life_s=self.half_life_s,
        )

    def is_bucket_measured(self, bucket_to: int) -> bool:
        return self.buckets.get(bucket_to, NOTHING).steps >= STEPS_MIN

    def step_cost(
        self, bucket_to: int, decode_batch: float, num_speculative_tokens: int, verified_tokens: float
    ) -> StepCostEstimate:
        return self.step_costs(bucket_to, decode_batch, {num_speculative_tokens: verified_tokens})[
            num_speculative_tokens
        ]

    def step_costs(
        self, bucket_to: int, decode_batch: float, verified_tokens: Mapping[int, float]
    ) -> dict[int, StepCostEstimate]:
        bucket = self.buckets.get(bucket_to, NOTHING)
        if bucket.steps < STEPS_MIN:
            return {k: self._from_pooled(decode_batch, v) for k, v in verified_tokens.items()}
        cells = {k: self.cells[bucket_to, k] for k in verified_tokens if (bucket_to, k) in self.cells}
        slope_s = self.slopes_s.get(bucket_to)
        if slope_s is None:
            return {k: self._from_cell(cells.get(k, NOTHING), v) for k, v in verified_tokens.items()}
        line = _Line(
            mean_s=bucket.mean_s,
            mean_v=bucket.mean_v,
            steps=bucket.steps,
            slope_s=slope_s,
            slope_sigma_s=self.pooled.slope_sigma_s or 0.0,
            residual_var=self.pooled.residual_var(bucket),
        )
        return line.costs(cells, verified_tokens)

    def _from_cell(self, cell: Moments, verified_tokens: float) -> StepCostEstimate:
        why = self.pooled.why_unknown or "verified tokens never varied"
        if cell.steps < STEPS_MIN or abs(verified_tokens - cell.mean_v) > 0.1 * cell.mean_v:
            return StepCostEstimate(None, why_unknown=why)
        sigma_s = math.sqrt(cell.var_s / cell.steps)
        return StepCostEstimate(cell.mean_s, sigma_ratio=sigma_s / cell.mean_s, is_measured=True)

    def _from_pooled(self, decode_batch: float, verified_tokens: float) -> StepCostEstimate:
        pooled = self.pooled
        if pooled.slope_s is None:
            return StepCostEstimate(None, why_unknown=pooled.why_unknown or "no decode-only step seen yet")
        if verified_tokens > EXTRAPOLATION_MAX_RATIO * pooled.verified_tokens_max:
            return StepCostEstimate(
                None,
                why_unknown=f"{verified_tokens:.0f} verified tokens a step are beyond "
                f"{EXTRAPOLATION_MAX_RATIO:g} x the {pooled.verified_tokens_max:.0f} seen",
            )
        step_s = pooled.predict_s(decode_batch, verified_tokens)
        if step_s <= 0:
            return StepCostEstimate(None, why_unknown="impossible fit: a step would take no time")
        return StepCostEstimate(step_s, sigma_ratio=pooled.sigma_ratio)


def _by_bucket(cells: Mapping[_Key, Moments]) -> dict[int, Moments]:
    buckets: dict[int, Moments] = {}
    for (upper, _), moments in cells.items():
        known = buckets.get(upper)
        buckets[upper] = moments if known is None else known.plus(moments)
    return buckets


def _of_drafts(key: _Key, moments: Moments) -> Moments:
    """What a cell tells of the cost of drafts. Where all drafts are full, verified tokens vary with the
    decode batch alone, which is padded to a graph's size: nearly free, and nothing that drafts are."""
    is_full = moments.v >= FULL_RATIO * moments.request_steps * (1 + key[1])
    return moments.at_mean() if is_full and key[1] > 0 else moments


def _slope_s(bucket: Moments, pooled: PooledFit) -> float | None:
    """Seconds for one more verified token in a bucket, shrunk to the pooled one; None: not identified."""
    if pooled.slope_s is None:
        return None
    var_v = usable_var_v(bucket) * bucket.steps
    cov = bucket.cov_sv * bucket.steps if var_v > 0 else 0.0
    return max((cov + SLOPE_PRIOR * pooled.slope_s) / (var_v + SLOPE_PRIOR), 0.0)


def _take(cell: CellDelta, cells: dict[_Key, Moments], suspects: dict[_Key, int]) -> None:
    key = (cell.decode_batch_to, cell.num_speculative_tokens)
    fresh = Moments.of(cell)
    known = cells.get(key)
    is_stall = fresh.var_s > fresh.mean_s**2
    if known is not None and known.steps >= STEPS_MIN:
        is_stall = is_stall or fresh.mean_s > OUTLIER_RATIO * known.mean_s
    if is_stall and suspects.get(key, 0) + 1 < OUTLIER_REPEATS:
        suspects[key] = suspects.get(key, 0) + 1
        return
    # Repeated "stalls" are the new normal: the old level must not drag on.
    cells[key] = fresh if is_stall or known is None else known.plus(fresh)
    suspects.pop(key, None)
