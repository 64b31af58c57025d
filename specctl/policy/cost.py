"""``kind: cost``."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from specctl.policy.base import Proposal
from specctl.policy.learned import LearnedPolicy, best_of
from specctl.types import BucketChoice, BucketForecast, CandidateForecast, Reason

__all__ = ["CostPolicy"]

HOUR_S = 3600.0
KWH_J = 3.6e6


class CostPolicy(LearnedPolicy):
    """Least money per output token: the server's hours, and the energy of a step."""

    kind: Literal["cost"]
    server_price_per_hour: float = Field(ge=0, le=1e6, description="Any currency; the whole server.")
    energy_price_per_kwh: float | None = Field(
        default=None, gt=0, le=1e3, description="The same currency; null: energy is in the server's price."
    )
    idle_power_w: float = Field(
        default=0.0, ge=0, le=1e6, description="Watts of the server whatever it computes, paid at every step."
    )
    joules_per_verified_token: float = Field(
        default=0.0, ge=0, le=1e6, description="Energy, beyond the idle power, of a token that is verified."
    )

    @model_validator(mode="after")
    def _check_prices(self) -> Self:
        has_energy = self.idle_power_w > 0 or self.joules_per_verified_token > 0
        if has_energy and self.energy_price_per_kwh is None:
            raise ValueError("idle_power_w and joules_per_verified_token need energy_price_per_kwh")
        if self.energy_price_per_kwh is not None and not has_energy:
            raise ValueError("energy_price_per_kwh needs idle_power_w or joules_per_verified_token")
        if self.server_price_per_hour == 0 and not has_energy:
            raise ValueError("server_price_per_hour 0 without a price of energy: everything would be free")
        return self

    def cost_per_token(self, forecast: BucketForecast, candidate: CandidateForecast) -> float | None:
        """None without the seconds or the energy of a step."""
        step_s, verified = candidate.step_s, candidate.verified_tokens
        if step_s is None or (verified is None and self.joules_per_verified_token > 0):
            return None
        energy_j = self.idle_power_w * step_s + self.joules_per_verified_token * (verified or 0.0)
        energy = energy_j / KWH_J * (self.energy_price_per_kwh or 0.0)
        tokens = forecast.decode_batch * candidate.tokens_per_request_step
        return (self.server_price_per_hour / HOUR_S * step_s + energy) / tokens

    def decide(self, forecast: BucketForecast, *, since_change_s: float, changes_left: int) -> BucketChoice:
        """The guard rails weigh tokens per unit of money here; the choice tells tokens per second."""
        choice = super().decide(
            self._priced(forecast), since_change_s=since_change_s, changes_left=changes_left
        )

        return choice._replace(
            predicted_tokens_per_s=forecast.tokens_per_s(choice.num_speculative_tokens),
            present_tokens_per_s=forecast.tokens_per_s(choice.from_num_speculative_tokens),
            off_tokens_per_s=forecast.tokens_per_s(0),
            detail=choice.detail or self._money_words(forecast, choice),
        )

    def _money_words(self, forecast: BucketForecast, choice: BucketChoice) -> str:
        costs = []
        for value in (choice.num_speculative_tokens, choice.from_num_speculative_tokens):
            candidate = forecast.candidate(value)
            cost = None if candidate is None else self.cost_per_token(forecast, candidate)
            if cost is None:
                return ""
            costs.append(cost * 1e6)
        if choice.is_change:
            return f"{costs[0]:.4g} instead of {costs[1]:.4g} per million tokens"
        return f"{costs[0]:.4g} per million tokens"

    def _priced(self, forecast: BucketForecast) -> BucketForecast:
        """With tokens per unit of money in the place of tokens per second; no price, no step seconds."""

        def priced(candidate: CandidateForecast) -> CandidateForecast:
            cost = self.cost_per_token(forecast, candidate)
            worth = 1.0 / cost if cost else None
            return candidate._replace(step_s=candidate.step_s if cost else None, tokens_per_s=worth)

        return forecast._replace(candidates=tuple(priced(candidate) for candidate in forecast.candidates))

    def _among(self, known: list[CandidateForecast], forecast: BucketForecast) -> Proposal:
        """Takes a priced forecast."""
        bound_s = float("inf") if self.max_tpot_ms is None else self.max_tpot_ms / 1e3
        allowed = [candidate for candidate in known if (candidate.tpot_s or 0.0) <= bound_s]
        if not allowed:
            quickest = min(known, key=lambda candidate: candidate.tpot_s or 0.0)
            words = "no setting meets max_tpot_ms; the quickest is taken"
            return Proposal(quickest.num_speculative_tokens, Reason.LATENCY_BOUND, words)
        return best_of(allowed, known, forecast.present_num_speculative_tokens)
