"""``kind: goodput``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specctl.policy.base import Proposal
from specctl.policy.learned import LearnedPolicy, best_of
from specctl.policy.marginal_gain import worth_verifying
from specctl.types import BucketForecast, CandidateForecast, Reason

__all__ = ["GoodputPolicy"]


class GoodputPolicy(LearnedPolicy):
    """Most emitted tokens per second at every decode batch, within latency bounds."""

    kind: Literal["goodput"]
    max_itl_ms: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Predicted milliseconds between two outputs (a step); null: none.",
    )
    marginal_gain: bool = Field(
        default=True,
        description="true: verify only drafted tokens that are likely enough to pay at the load, where the "
        "server knows their chances.",
    )

    @property
    def weighs_tokens(self) -> bool:
        return self.marginal_gain

    def min_token_prob(self, forecast: BucketForecast, num_speculative_tokens: int) -> float | None:
        return worth_verifying(forecast, num_speculative_tokens)

    def _among(self, known: list[CandidateForecast], forecast: BucketForecast) -> Proposal:
        is_bound = self.max_itl_ms is not None or self.max_tpot_ms is not None
        allowed = [one for one in known if self._meets_bounds(one)] if is_bound else known
        if not allowed:
            quickest = min(known, key=lambda candidate: candidate.tpot_s or 0.0)
            return Proposal(
                quickest.num_speculative_tokens,
                Reason.LATENCY_BOUND,
                "no setting meets the latency bounds; the quickest is taken",
            )
        return best_of(allowed, known, forecast.present_num_speculative_tokens)

    def _meets_bounds(self, candidate: CandidateForecast) -> bool:
        step_s, tpot_s = candidate.step_s, candidate.tpot_s
        if step_s is None or tpot_s is None:
            return False
        if self.max_itl_ms is not None and step_s * 1e3 > self.max_itl_ms:
            return False
        return self.max_tpot_ms is None or tpot_s * 1e3 <= self.max_tpot_ms
