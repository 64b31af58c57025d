"""What the decision core asks of the estimators. Immutable: ``updated`` returns a new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self

from specctl.types import Observation, StepCostEstimate, SurvivalEstimate

__all__ = ["StepCostModel", "SurvivalModel"]


class SurvivalModel(Protocol):
    def updated(self, observation: Observation) -> Self:
        """With the observation's counts taken in; unchanged when it has none."""

    def estimate(self, positions: int) -> SurvivalEstimate | None:
        """Survival for the first ``positions`` drafted tokens; None before the first count."""


class StepCostModel(Protocol):
    def updated(self, observation: Observation) -> Self:
        """With the observation's decode-only steps taken in; unchanged when it has none."""

    def step_cost(
        self, bucket_to: int, decode_batch: float, num_speculative_tokens: int, verified_tokens: float
    ) -> StepCostEstimate:
        """Seconds of a decode-only step.

        Args:
            bucket_to: upper end of the decode-batch bucket.
            decode_batch: decoding requests of the step.
            num_speculative_tokens: the table's value.
            verified_tokens: positions the target scores in the step, all requests together.
        """

    def step_costs(
        self, bucket_to: int, decode_batch: float, verified_tokens: Mapping[int, float]
    ) -> Mapping[int, StepCostEstimate]:
        """``step_cost`` of several settings of one bucket. ``verified_tokens``: by num_speculative_tokens."""

    def is_bucket_measured(self, bucket_to: int) -> bool:
        """Whether the bucket has had enough steps of its own."""
