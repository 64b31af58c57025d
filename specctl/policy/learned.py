"""What the policies have in common that choose by predicted speed."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from specctl.policy.base import Proposal
from specctl.policy.settings import PolicySettings
from specctl.types import BucketForecast, CandidateForecast, Reason

__all__ = ["LearnedPolicy", "best_of"]


class LearnedPolicy(PolicySettings):
    """Chooses among the settings whose step seconds are known; ``_among`` is the choice."""

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
        return self._among(known, forecast) if len(known) > 1 else self._without_cost(forecast)

    @abstractmethod
    def _among(self, known: list[CandidateForecast], forecast: BucketForecast) -> Proposal:
        """The wanted one of ``known``: at least two, with step seconds, by rising number."""

    def _without_cost(self, forecast: BucketForecast) -> Proposal:
        """Even drafting for free would not pay: off needs no cost. Else nothing is proposed."""
        most = max(candidate.tokens_per_request_step for candidate in forecast.candidates)
        rails = self.guard_rails
        if most - 1.0 < rails.off_below_gain_ratio and rails.num_speculative_tokens_min == 0:
            return Proposal(0, Reason.OFF_NO_GAIN, "next to no drafted token is accepted")
        return Proposal(
            forecast.present_num_speculative_tokens, Reason.COST_UNKNOWN, forecast.why_unknown or ""
        )


def best_of(
    allowed: list[CandidateForecast], known: list[CandidateForecast], present: int, detail: str = ""
) -> Proposal:
    """The fastest of ``allowed``, at least one of ``known``; at once when the present one is none of them."""
    rates = [candidate.tokens_per_s or 0.0 for candidate in allowed]
    best = allowed[rates.index(max(rates))]
    is_allowed = allowed is known or present in [candidate.num_speculative_tokens for candidate in allowed]
    if not is_allowed and present in [candidate.num_speculative_tokens for candidate in known]:
        words = "the present one breaks a bound"
        detail = f"{words}; {detail}" if detail else words
        return Proposal(best.num_speculative_tokens, Reason.LATENCY_BOUND, detail)
    return Proposal(best.num_speculative_tokens, Reason.GAIN, detail)
