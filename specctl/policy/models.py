"""The kinds of policy: goodput, thresholds, fixed, off. A discriminated union on ``kind``."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, TypeAdapter, model_validator

from specctl.policy.base import Proposal
from specctl.policy.settings import STRICT, PolicySettings, largest_not_above
from specctl.types import BucketForecast, CandidateForecast, Reason

__all__ = [
    "POLICY_ADAPTER",
    "AnyPolicy",
    "FixedPolicy",
    "GoodputPolicy",
    "OffPolicy",
    "Threshold",
    "ThresholdsPolicy",
]


class GoodputPolicy(PolicySettings):
    """Most emitted tokens per second at every decode batch, within latency bounds."""

    kind: Literal["goodput"]
    num_speculative_tokens_candidates: tuple[Annotated[int, Field(ge=0, le=1024)], ...] | None = Field(
        default=None, max_length=64, description="Choose among these only; null: whatever the server accepts."
    )
    lossless: Literal[True] = Field(
        default=True,
        description="true: output keeps the target's distribution. No lossy acceptance exists yet, "
        "so false is refused.",
    )
    max_tpot_ms: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Predicted milliseconds per output token of a request; null: none.",
    )
    max_itl_ms: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Predicted milliseconds between two outputs (a step); null: none.",
    )

    @property
    def is_learned(self) -> bool:
        return True

    @model_validator(mode="after")
    def _check_candidates(self) -> Self:
        rails = self.guard_rails
        for value in self.num_speculative_tokens_candidates or ():
            if value and not rails.num_speculative_tokens_min <= value <= rails.num_speculative_tokens_max:
                raise ValueError(
                    f"num_speculative_tokens_candidates: {value} is outside guard_rails "
                    f"{rails.num_speculative_tokens_min} to {rails.num_speculative_tokens_max}"
                )
        return self

    def candidates(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        inside = super().candidates(legal)
        wanted = self.num_speculative_tokens_candidates
        if wanted is None:
            return inside
        return tuple(sorted({0, *(value for value in inside if value in wanted)}))

    def propose(self, forecast: BucketForecast) -> Proposal:
        lowest = self.guard_rails.num_speculative_tokens_min
        known = [
            candidate
            for candidate in forecast.candidates
            if candidate.step_s is not None and candidate.num_speculative_tokens >= lowest
        ]
        present = forecast.present_num_speculative_tokens
        if len(known) < 2:
            return self._without_cost(forecast)
        is_bounded = self.max_itl_ms is not None or self.max_tpot_ms is not None
        allowed = [candidate for candidate in known if self._meets_bounds(candidate)] if is_bounded else known
        if not allowed:
            quickest = min(known, key=lambda candidate: candidate.tpot_s or 0.0)
            return Proposal(
                quickest.num_speculative_tokens,
                Reason.LATENCY_BOUND,
                "no setting meets the latency bounds; the quickest is taken",
            )
        best = max(allowed, key=lambda candidate: candidate.tokens_per_s or 0.0)
        is_refused = len(allowed) < len(known) and not any(
            candidate.num_speculative_tokens == present for candidate in allowed
        )
        if is_refused and any(candidate.num_speculative_tokens == present for candidate in known):
            return Proposal(
                best.num_speculative_tokens, Reason.LATENCY_BOUND, "the present one breaks a bound"
            )
        return Proposal(best.num_speculative_tokens, Reason.GAIN)

    def _without_cost(self, forecast: BucketForecast) -> Proposal:
        """Even drafting for free would not pay: off needs no cost. Else nothing is proposed."""
        most = max(candidate.tokens_per_request_step for candidate in forecast.candidates)
        rails = self.guard_rails
        if most - 1.0 < rails.off_below_gain_ratio and rails.num_speculative_tokens_min == 0:
            return Proposal(0, Reason.OFF_NO_GAIN, "next to no drafted token is accepted")
        return Proposal(
            forecast.present_num_speculative_tokens, Reason.COST_UNKNOWN, forecast.why_unknown or ""
        )

    def _meets_bounds(self, candidate: CandidateForecast) -> bool:
        step_s, tpot_s = candidate.step_s, candidate.tpot_s
        if step_s is None or tpot_s is None:
            return False
        if self.max_itl_ms is not None and step_s * 1e3 > self.max_itl_ms:
            return False
        return self.max_tpot_ms is None or tpot_s * 1e3 <= self.max_tpot_ms


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


AnyPolicy = GoodputPolicy | ThresholdsPolicy | FixedPolicy | OffPolicy
POLICY_ADAPTER: TypeAdapter[AnyPolicy] = TypeAdapter(Annotated[AnyPolicy, Field(discriminator="kind")])


def _set_by_policy(wanted: int, forecast: BucketForecast) -> Proposal:
    legal = tuple(candidate.num_speculative_tokens for candidate in forecast.candidates)
    value = largest_not_above(wanted, legal)
    detail = "" if value == wanted else f"{wanted} is not possible here, {value} is the nearest below"
    return Proposal(value, Reason.SET_BY_POLICY, detail, is_learned=False)
