from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from operator import mul
from typing import Self

import pytest
from fakes.observations import cell, observation

from specctl.controller.forecast import BATCH_HALF_LIFE_S, active_batches, batch_sums, forecast_buckets
from specctl.types import Observation, StepCostEstimate, SurvivalEstimate

POSITIONS = 5
# The sums are ordered otherwise than in the definition.
REL_TOLERANCE = 1e-9


class KnownCost:
    """Step seconds without any doubt, so that all of a forecast's sigma is the acceptance's."""

    def updated(self, observation: Observation) -> Self:
        return self

    def step_cost(
        self, bucket_to: int, decode_batch: float, num_speculative_tokens: int, verified_tokens: float
    ) -> StepCostEstimate:
        return StepCostEstimate(0.1)

    def step_costs(
        self, bucket_to: int, decode_batch: float, verified_tokens: Mapping[int, float]
    ) -> dict[int, StepCostEstimate]:
        return {k: self.step_cost(bucket_to, decode_batch, k, v) for k, v in verified_tokens.items()}

    def is_bucket_measured(self, bucket_to: int) -> bool:
        return True


def estimate(*conditional: float) -> SurvivalEstimate:
    return SurvivalEstimate(
        survival_at=tuple(accumulate(conditional, mul)),
        drafted_at=(1.0,) * len(conditional),
        conditional_at=conditional,
        trials_at=tuple(20.0 / (j + 1) for j in range(len(conditional))),
        measured_positions=len(conditional),
    )


def variance_by_definition(survival: SurvivalEstimate, one: int, other: int) -> float:
    """Delta method over the conditionals: the tails, as shares of a step's tokens, position by position."""
    total = 0.0
    for j, (q, trials) in enumerate(zip(survival.conditional_at, survival.trials_at, strict=True)):
        tails = [sum(survival.survival_at[j:k]) / (1.0 + survival.accepted_tokens(k)) for k in (one, other)]
        if q > 0:
            total += (tails[0] - tails[1]) ** 2 * (1.0 - q) / q / (trials + 1.0)
    return total


@pytest.mark.parametrize("present", range(POSITIONS + 1))
@pytest.mark.parametrize(
    "conditional",
    [
        (0.9, 0.8, 0.85, 0.7, 0.95),
        (1.0,) * POSITIONS,
        (0.02, 0.01, 0.5, 0.01, 0.3),
        (0.6, 0.0, 0.5, 0.5, 0.5),
    ],
    ids=["copying", "all accepted", "hopeless", "ends"],
)
def test_a_gain_is_as_unsure_as_its_definition_says(conditional: tuple[float, ...], present: int) -> None:
    survival = estimate(*conditional)
    candidates = tuple(range(POSITIONS + 1))
    (bucket,) = forecast_buckets([(1, 1)], {1: 1.0}, {1: present}, candidates, survival, KnownCost())
    for candidate in bucket.candidates:
        expected = variance_by_definition(survival, candidate.num_speculative_tokens, present)
        assert candidate.sigma_ratio == pytest.approx(math.sqrt(expected), rel=REL_TOLERANCE, abs=1e-12)


def test_a_present_value_that_is_no_candidate_is_compared_with() -> None:
    (bucket,) = forecast_buckets([(1, 1)], {}, {1: 4}, (0, 2), estimate(0.9, 0.9, 0.9, 0.9), KnownCost())
    assert [candidate.num_speculative_tokens for candidate in bucket.candidates] == [0, 2]
    assert all(candidate.sigma_ratio > 0 for candidate in bucket.candidates)


def test_a_bucket_is_forecast_for_its_usual_batch_not_for_the_last_look() -> None:
    usual = observation(cell(steps=20, decode_batch=5, bucket=(5, 8)))
    sums = batch_sums({}, usual)
    for _ in range(9):
        sums = batch_sums(sums, usual)
    last = observation(cell(steps=20, decode_batch=8, bucket=(5, 8)))
    sums = batch_sums(sums, last)
    assert 5.0 < active_batches(sums, last)[8] < 5.5
    later = batch_sums(sums, observation(interval_s=BATCH_HALF_LIFE_S))
    assert later[8] == pytest.approx(tuple(value / 2 for value in sums[8]))
    assert active_batches(later, observation()) == {}
