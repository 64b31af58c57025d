"""``kind: slo``."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from specctl.policy.base import Proposal
from specctl.policy.learned import LearnedPolicy, best_of
from specctl.types import BucketForecast, CandidateForecast, Reason, TtftEstimate

__all__ = ["SloPolicy"]

NONE_MEETS = "no setting meets the latency bounds; the one that breaks them least is taken"
TTFT_UNKNOWN = "the time to the first token is not measured, so its bound does not count"


class SloPolicy(LearnedPolicy):
    """Most emitted tokens per second within bounds on TPOT and on the mean TTFT; at least one is given."""

    kind: Literal["slo"]
    max_ttft_ms: float | None = Field(
        default=None,
        gt=0,
        le=1e7,
        description="Predicted mean milliseconds from arrival to the first token; null: none.",
    )

    @model_validator(mode="after")
    def _check_bounds_given(self) -> Self:
        if self.max_tpot_ms is None and self.max_ttft_ms is None:
            raise ValueError("kind slo needs max_tpot_ms or max_ttft_ms")
        return self

    def _among(self, known: list[CandidateForecast], forecast: BucketForecast) -> Proposal:
        is_blind = self.max_ttft_ms is not None and forecast.ttft is None
        detail = TTFT_UNKNOWN if is_blind and forecast.is_active else ""
        used = {c.num_speculative_tokens: self._used_ratio(c, forecast.ttft) for c in known}
        present = forecast.present_num_speculative_tokens
        allowed = [candidate for candidate in known if used[candidate.num_speculative_tokens] <= 1.0]
        if not allowed:
            return self._least_breaking(known, used, present, detail)
        return best_of(allowed, known, present, detail)

    def _used_ratio(self, candidate: CandidateForecast, ttft: TtftEstimate | None) -> float:
        """Predicted / allowed, of the bound that is nearest or broken worst; over 1: broken."""
        tpot_s = candidate.tpot_s
        ttft_s = None if ttft is None else ttft.at_s(candidate)
        pairs = ((tpot_s, self.max_tpot_ms), (ttft_s, self.max_ttft_ms))
        used = [s * 1e3 / bound for s, bound in pairs if s is not None and bound is not None]
        return max(used, default=0.0)

    def _least_breaking(
        self, known: list[CandidateForecast], used: dict[int, float], present: int, detail: str
    ) -> Proposal:
        """The one whose worst bound is broken least; the present one while another is hardly better."""
        least = min(known, key=lambda c: (used[c.num_speculative_tokens], -(c.tokens_per_s or 0.0)))
        wanted = least.num_speculative_tokens
        if used.get(present, float("inf")) <= used[wanted] * (1.0 + self.guard_rails.min_gain_ratio):
            wanted = present
        words = f"{NONE_MEETS}; {detail}" if detail else NONE_MEETS
        return Proposal(wanted, Reason.LATENCY_BOUND, words)
