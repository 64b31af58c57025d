"""Fields that every kind of policy has: bounds, guard rails, exploration, timing."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specctl.contract.classes import CLASS_LIMITS_MAX, ClassLimit
from specctl.policy.base import Proposal
from specctl.policy.guard_rails import guarded
from specctl.types import BucketChoice, BucketForecast, CandidateForecast

__all__ = [
    "ExplorationSettings",
    "GuardRailSettings",
    "PolicySettings",
    "RolloutSettings",
    "largest_not_above",
]

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class GuardRailSettings(BaseModel):
    """Limits around any policy."""

    model_config = STRICT

    num_speculative_tokens_min: int = Field(
        default=0, ge=0, le=1024, description="Never draft fewer tokens than this; 0 allows off."
    )
    num_speculative_tokens_max: int = Field(
        default=16, ge=0, le=1024, description="Never draft more tokens than this for a request and step."
    )
    min_gain_ratio: float = Field(
        default=0.02, ge=0, le=1, description="Change a setting only for a predicted gain above this share."
    )
    min_gain_sigma: float = Field(
        default=2.0, ge=0, le=10, description="... and above this many standard errors of the prediction."
    )
    off_below_gain_ratio: float = Field(
        default=0.01, ge=0, le=1, description="Turn drafting off when it gains less than this share over off."
    )
    dwell_s: float = Field(
        default=2.0,
        ge=0,
        le=3600,
        description="Seconds that a setting stays before the next change, unless the acceptance drifts.",
    )
    patience_s: float = Field(
        default=30.0,
        ge=0,
        le=3600,
        description="Seconds after a change until a gain of min_gain_ratio is enough for the next one; "
        "a gain of n times that is enough after 1/n of them.",
    )
    min_samples_tokens: int = Field(
        default=6,
        ge=1,
        le=1_000_000,
        description="Token outcomes seen before estimates may change a setting.",
    )
    changes_max_per_minute: int = Field(
        default=20, ge=1, le=600, description="Most table changes a minute, probes not counted."
    )

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.num_speculative_tokens_min > self.num_speculative_tokens_max:
            raise ValueError(
                f"num_speculative_tokens_min {self.num_speculative_tokens_min} is above "
                f"num_speculative_tokens_max {self.num_speculative_tokens_max}"
            )
        return self


class ExplorationSettings(BaseModel):
    """Short excursions to a setting whose acceptance or cost is not known."""

    model_config = STRICT

    share_max_ratio: float = Field(
        default=0.05,
        ge=0,
        le=0.5,
        description="Share of the bucket's tokens that probes may be expected to lose; 0 turns them off. The "
        "dearer a probe, the longer the wait.",
    )
    probe_s: float = Field(default=1.0, gt=0, le=60, description="Seconds of one probe.")
    interval_max_s: float = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description="Longest wait that doubling leads to; the wait doubles while probes change nothing.",
    )

    @model_validator(mode="after")
    def _check_interval(self) -> Self:
        if self.share_max_ratio > 0 and self.probe_s / self.share_max_ratio > self.interval_max_s:
            raise ValueError(
                f"interval_max_s {self.interval_max_s:g} is under probe_s / share_max_ratio = "
                f"{self.probe_s / self.share_max_ratio:g}"
            )
        return self


class RolloutSettings(BaseModel):
    """How the servers of a group change one after another. Nothing for a server that is alone."""

    model_config = STRICT

    canary_s: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="Seconds that more drafts are tried on one server before the others; 0: all at once.",
    )
    canary_loss_max_ratio: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Largest loss of tokens per second of a request on that server, measured noise on top.",
    )
    pause_s: float = Field(
        default=60.0, ge=0, le=86_400, description="Seconds before a change that failed there is tried again."
    )


class PolicySettings(BaseModel):
    """What every policy has."""

    model_config = STRICT

    name: str = Field(
        default="", max_length=64, pattern=r"^[A-Za-z0-9_.-]*$", description="For logs and the table's owner."
    )
    frozen: bool = Field(
        default=False, description="true: change nothing, renew leases so that the tables in force hold."
    )
    poll_interval_s: float = Field(default=1.0, ge=0.1, le=60, description="Seconds between two looks.")
    lease_s: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="Seconds that a table holds without renewal; then the engine falls back.",
    )
    fallback_num_speculative_tokens: int = Field(
        default=0, ge=0, le=1024, description="What holds once the lease has run out; 0 is off."
    )
    advise_restart_after_s: float = Field(
        default=1800.0,
        ge=0,
        le=604_800,
        description="Seconds of off under traffic before a restart without speculation is advised; 0: never.",
    )
    guard_rails: GuardRailSettings = Field(
        default=GuardRailSettings(), description="Limits around the policy."
    )
    exploration: ExplorationSettings = Field(
        default=ExplorationSettings(), description="Bounded probes of settings not known."
    )
    rollout: RolloutSettings = Field(
        default=RolloutSettings(), description="One server of a group before the others."
    )
    classes: tuple[ClassLimit, ...] = Field(
        default=(),
        max_length=CLASS_LIMITS_MAX,
        description="Rules for traffic classes, under whatever the table says; the first that matches holds.",
    )

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if self.lease_s < 3 * self.poll_interval_s:
            raise ValueError(
                f"lease_s {self.lease_s:g} is under 3 x poll_interval_s = {3 * self.poll_interval_s:g}: "
                "one late look would lose the lease"
            )
        named = [rule.classes for rule in self.classes]
        if len(set(named)) < len(named):
            raise ValueError("classes: two rules are for the same classes")
        if self.fallback_num_speculative_tokens > self.guard_rails.num_speculative_tokens_max:
            raise ValueError(
                f"fallback_num_speculative_tokens {self.fallback_num_speculative_tokens} is above "
                f"guard_rails.num_speculative_tokens_max {self.guard_rails.num_speculative_tokens_max}"
            )
        return self

    def propose(self, forecast: BucketForecast) -> Proposal:
        """The wanted value for one bucket, before the guard rails."""
        raise NotImplementedError

    @property
    def weighs_tokens(self) -> bool:
        return False

    def min_token_prob(self, forecast: BucketForecast, num_speculative_tokens: int) -> float | None:
        return None

    def cost_per_token(self, forecast: BucketForecast, candidate: CandidateForecast) -> float | None:
        """Predicted money per output token; None: not known, or the policy knows no prices."""
        return None

    def decide(self, forecast: BucketForecast, *, since_change_s: float, changes_left: int) -> BucketChoice:
        return guarded(self.propose(forecast), forecast, self.guard_rails, since_change_s, changes_left)

    def candidates(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        rails = self.guard_rails
        inside = [
            value
            for value in legal
            if rails.num_speculative_tokens_min <= value <= rails.num_speculative_tokens_max
        ]
        return tuple(sorted({0, *inside}))


def largest_not_above(wanted: int, legal: tuple[int, ...]) -> int:
    """The largest legal value up to ``wanted``; 0 when there is none."""
    return max((value for value in legal if value <= wanted), default=0)
