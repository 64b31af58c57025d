"""The kinds of policy: a discriminated union on ``kind``."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, model_validator

from specctl.contract.setting import Setting
from specctl.core.messages import setting_words
from specctl.core.objective import LatencyBounds, Objective, Prices
from specctl.core.settings import PolicySettings
from specctl.core.space import Bools, Space

__all__ = [
    "KINDS",
    "POLICY_ADAPTER",
    "AnyPolicy",
    "CostPolicy",
    "FixedPolicy",
    "GoodputPolicy",
    "OffPolicy",
    "SloPolicy",
    "Threshold",
    "ThresholdsPolicy",
]

_Milliseconds = Annotated[float, Field(gt=0, le=1e7)]
Quantile = Literal["mean", "p50", "p95", "p99"]
_QUANTILES: dict[str, float | None] = {"mean": None, "p50": 0.5, "p95": 0.95, "p99": 0.99}


class LearnedPolicy(PolicySettings):
    """Chooses among the prepared settings by what it has measured."""

    lossless: Literal[True] = Field(
        default=True,
        description="true: output keeps the target's distribution. No lossy acceptance is controlled, so "
        "false is refused.",
    )
    mode: Literal["choose", "supervise"] = Field(
        default="choose",
        description="supervise: where the engine adapts by itself within the table, leave the number to it: "
        "set the most that it may decide on, and turn drafting off where it does not pay.",
    )
    max_itl_ms: _Milliseconds | None = Field(
        default=None, description="Predicted milliseconds between two outputs (a step); null: none."
    )

    @property
    def supervises(self) -> bool:
        return self.mode == "supervise"


class GoodputPolicy(LearnedPolicy):
    """Most emitted tokens per second at every decode batch."""

    kind: Literal["goodput"]

    @property
    def objective(self) -> Objective:
        return Objective(bounds=LatencyBounds(max_itl_s=_seconds(self.max_itl_ms)))


class SloPolicy(LearnedPolicy):
    """Most emitted tokens per second within bounds on latency; at least one is given."""

    kind: Literal["slo"]
    max_tpot_ms: _Milliseconds | None = Field(
        default=None, description="Milliseconds per output token of a request; null: none."
    )
    tpot_at: Quantile = Field(
        default="p95", description="What max_tpot_ms bounds: a percentile, or the mean."
    )
    max_ttft_ms: _Milliseconds | None = Field(
        default=None, description="Milliseconds from arrival to the first token; null: none."
    )
    ttft_at: Quantile = Field(default="p95", description="What max_ttft_ms bounds.")

    @model_validator(mode="after")
    def _check_bounds_given(self) -> Self:
        if self.max_tpot_ms is None and self.max_ttft_ms is None and self.max_itl_ms is None:
            raise ValueError("kind slo needs max_tpot_ms, max_ttft_ms or max_itl_ms")
        return self

    @property
    def objective(self) -> Objective:
        return Objective(
            bounds=LatencyBounds(
                max_tpot_s=_seconds(self.max_tpot_ms),
                tpot_quantile=_QUANTILES[self.tpot_at],
                max_ttft_s=_seconds(self.max_ttft_ms),
                ttft_quantile=_QUANTILES[self.ttft_at],
                max_itl_s=_seconds(self.max_itl_ms),
            )
        )


class CostPolicy(LearnedPolicy):
    """Least money per output token: GPU-hours, and the energy of a step."""

    kind: Literal["cost"]
    price_per_gpu_hour: float = Field(ge=0, le=1e6, description="Any currency; of one GPU.")
    gpus: int = Field(default=1, ge=1, le=4096, description="GPUs of the server.")
    energy_price_per_kwh: float | None = Field(
        default=None, gt=0, le=1e3, description="The same currency; null: energy is in the GPU's price."
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
        if self.price_per_gpu_hour == 0 and not has_energy:
            raise ValueError("price_per_gpu_hour 0 without a price of energy: everything would be free")
        return self

    @property
    def objective(self) -> Objective:
        prices = Prices(
            self.price_per_gpu_hour * self.gpus,
            self.energy_price_per_kwh or 0.0,
            self.idle_power_w,
            self.joules_per_verified_token,
        )
        return Objective(prices, LatencyBounds(max_itl_s=_seconds(self.max_itl_ms)))


class Threshold(Setting):
    """One step of a thresholds policy: a setting, and up to which decode batch it holds."""

    decode_batch_to: int | None = Field(
        ge=1,
        le=1_000_000,
        description="Last decode batch that it holds for; null, for the last one: all above.",
    )


class ThresholdsPolicy(PolicySettings):
    """Settings by decode batch, set by hand. Learns nothing."""

    kind: Literal["thresholds"]
    thresholds: tuple[Threshold, ...] = Field(
        min_length=1, max_length=64, description="By rising decode_batch_to; the last one's is null."
    )

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
        *bounded, last = [threshold.decode_batch_to for threshold in self.thresholds]
        if last is not None or None in bounded:
            raise ValueError("thresholds: exactly the last decode_batch_to must be null")
        if any(a is not None and b is not None and a >= b for a, b in pairwise(bounded)):
            raise ValueError("thresholds: decode_batch_to must rise")
        for threshold in self.thresholds:
            _check_within(threshold, self)
        if any(threshold.min_token_prob is not None for threshold in self.thresholds):
            raise ValueError("thresholds: min_token_prob is not set by hand, rows keep the one in force")
        return self

    def wanted(self, decode_batch: int, space: Space) -> tuple[int, str]:
        setting = next(
            threshold
            for threshold in self.thresholds
            if threshold.decode_batch_to is None or decode_batch <= threshold.decode_batch_to
        )
        return _nearest(setting, space, self.eligible(space)[0])


class FixedPolicy(PolicySettings):
    """One setting, whatever happens. Learns nothing."""

    kind: Literal["fixed"]
    num_speculative_tokens: int = Field(ge=0, le=1024, description="Most drafted tokens in a row; 0 is off.")
    tree_topk: int = Field(default=1, ge=1, le=64, description="Branches a depth; 1 is a chain.")
    verify_width_tokens: int | None = Field(
        default=None, ge=1, le=1024, description="Positions the target scores; null: the widest prepared."
    )

    @model_validator(mode="after")
    def _check_value(self) -> Self:
        _check_within(self._setting, self)
        return self

    @property
    def _setting(self) -> Setting:
        return Setting(
            num_speculative_tokens=self.num_speculative_tokens,
            tree_topk=self.tree_topk,
            verify_width_tokens=self.verify_width_tokens,
        )

    def wanted(self, decode_batch: int, space: Space) -> tuple[int, str]:
        return _nearest(self._setting, space, self.eligible(space)[0])


class OffPolicy(PolicySettings):
    """No drafting; still observes."""

    kind: Literal["off"]

    @model_validator(mode="after")
    def _check_off(self) -> Self:
        if self.knobs.num_speculative_tokens.min > 0:
            raise ValueError("knobs.num_speculative_tokens.min above 0 contradicts kind off")
        return self

    def eligible(self, space: Space) -> tuple[Bools, str]:
        may = np.zeros(len(space.settings), np.bool_)
        may[0] = space.is_off_prepared
        return may, "off is not prepared on this server"

    def wanted(self, decode_batch: int, space: Space) -> tuple[int, str]:
        return 0, ""


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _check_within(setting: Setting, policy: PolicySettings) -> None:
    names = ["num_speculative_tokens"]
    if setting.num_speculative_tokens:
        names += ["tree_topk", "verify_width_tokens"]
    for name in names:
        knob, value = getattr(policy.knobs, name), getattr(setting, name)
        if value is not None and not knob.min <= value <= knob.max:
            raise ValueError(f"{name} {value} is outside knobs.{name} {knob.min} to {knob.max}")


def _nearest(setting: Setting, space: Space, eligible: Bools) -> tuple[int, str]:
    """The prepared setting that was named, or the largest eligible one that drafts and verifies no more."""
    exact = space.number_of(setting)
    if exact is not None and eligible[exact]:
        return exact, ""
    depth, width = setting.num_speculative_tokens, setting.width_tokens
    below = eligible & (space.depth <= depth) & (space.width <= width) & (space.topk <= setting.tree_topk)
    found = int(below.nonzero()[0][-1]) if below.any() else 0
    named, nearest = setting_words(setting), setting_words(space.settings[found])
    return found, f"{named} is not prepared on this server, {nearest} is the nearest below"


AnyPolicy = GoodputPolicy | SloPolicy | CostPolicy | ThresholdsPolicy | FixedPolicy | OffPolicy
POLICY_ADAPTER: TypeAdapter[AnyPolicy] = TypeAdapter(Annotated[AnyPolicy, Field(discriminator="kind")])
KINDS: dict[str, type[BaseModel]] = {
    "goodput": GoodputPolicy,
    "slo": SloPolicy,
    "cost": CostPolicy,
    "thresholds": ThresholdsPolicy,
    "fixed": FixedPolicy,
    "off": OffPolicy,
}
