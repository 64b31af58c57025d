"""Policies that learn nothing: thresholds, fixed, off."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from specctl.policy.base import Proposal
from specctl.policy.settings import STRICT, PolicySettings, largest_not_above
from specctl.types import BucketForecast, Reason

__all__ = ["FixedPolicy", "OffPolicy", "Threshold", "ThresholdsPolicy"]


class Threshold(BaseModel):
    """One step of a thresholds policy."""

    model_config = STRICT

    decode_batch_to: int | None = Field(
        ge=1,
        le=1_000_000,
        description="Last decode batch that it holds for; null, for the last one: all above.",
    )
    num_speculative_tokens: int = Field(ge=0, le=1024, description="Most drafted tokens; 0 is off.")


class ThresholdsPolicy(PolicySettings):
    """Values by decode batch, set by hand. Learns nothing."""

    kind: Literal["thresholds"]
    thresholds: tuple[Threshold, ...] = Field(
        min_length=1, max_length=64, description="By rising decode_batch_to; the last one's is null."
    )

    @property
    def is_learned(self) -> bool:
        return False

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
        *bounded, last = [threshold.decode_batch_to for threshold in self.thresholds]
        if last is not None or None in bounded:
            raise ValueError("thresholds: exactly the last decode_batch_to must be null")
        if any(a is not None and b is not None and a >= b for a, b in pairwise(bounded)):
            raise ValueError("thresholds: decode_batch_to must rise")
        most = self.guard_rails.num_speculative_tokens_max
        for threshold in self.thresholds:
            if threshold.num_speculative_tokens > most:
                raise ValueError(
                    f"thresholds: num_speculative_tokens {threshold.num_speculative_tokens} is above "
                    f"guard_rails.num_speculative_tokens_max {most}"
                )
        return self

    def propose(self, forecast: BucketForecast) -> Proposal:
        batch = forecast.decode_batch_from
        wanted = next(
            threshold.num_speculative_tokens
            for threshold in self.thresholds
            if threshold.decode_batch_to is None or batch <= threshold.decode_batch_to
        )
        return _set_by_policy(wanted, forecast)


class FixedPolicy(PolicySettings):
    """One value, whatever happens. Learns nothing."""

    kind: Literal["fixed"]
    num_speculative_tokens: int = Field(
        ge=0, le=1024, description="Most drafted tokens at every decode batch."
    )

    @property
    def is_learned(self) -> bool:
        return False

    @model_validator(mode="after")
    def _check_value(self) -> Self:
        rails = self.guard_rails
        if (
            not rails.num_speculative_tokens_min
            <= self.num_speculative_tokens
            <= rails.num_speculative_tokens_max
        ):
            raise ValueError(
                f"num_speculative_tokens {self.num_speculative_tokens} is outside guard_rails "
                f"{rails.num_speculative_tokens_min} to {rails.num_speculative_tokens_max}"
            )
        return self

    def propose(self, forecast: BucketForecast) -> Proposal:
        return _set_by_policy(self.num_speculative_tokens, forecast)


class OffPolicy(PolicySettings):
    """No drafting; still observes."""

    kind: Literal["off"]

    @property
    def is_learned(self) -> bool:
        return False

    @model_validator(mode="after")
    def _check_off(self) -> Self:
        if self.guard_rails.num_speculative_tokens_min > 0:
            raise ValueError("guard_rails.num_speculative_tokens_min above 0 contradicts kind off")
        return self

    def propose(self, forecast: BucketForecast) -> Proposal:
        return _set_by_policy(0, forecast)


def _set_by_policy(wanted: int, forecast: BucketForecast) -> Proposal:
    legal = tuple(candidate.num_speculative_tokens for candidate in forecast.candidates)
    value = largest_not_above(wanted, legal)
    detail = "" if value == wanted else f"{wanted} is not possible here, {value} is the nearest below"
    return Proposal(value, Reason.SET_BY_POLICY, detail, is_learned=False)
