"""What the decision asks of every policy: bounds on the knobs, guard rails, sampling, rollout, timing."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specctl.contract.classes import CLASS_LIMITS_MAX, ClassLimit
from specctl.core.objective import Objective
from specctl.core.space import Bools, Space

__all__ = [
    "GuardRailSettings",
    "Knob",
    "Knobs",
    "PolicySettings",
    "RolloutSettings",
    "SamplingSettings",
    "Settings",
]

OnStop = Literal["start", "keep", "off"]


class Settings(BaseModel):
    """A part of a policy file: a key that is not known is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Knob(Settings):
    """Bounds on one knob; both inclusive. Equal bounds fix it."""

    min: int = Field(default=0, ge=0, le=1024, description="Smallest value.")
    max: int = Field(default=1024, ge=0, le=1024, description="Largest value.")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class Knobs(Settings):
    """What may be chosen, out of the settings that the server has prepared."""

    num_speculative_tokens: Knob = Field(
        default=Knob(max=16), description="Most drafted tokens in a row; min 0 allows off."
    )
    tree_topk: Knob = Field(
        default=Knob(min=1, max=64), description="Branches a depth, while drafting; 1 is a chain."
    )
    verify_width_tokens: Knob = Field(
        default=Knob(min=1), description="Positions the target scores for a request, while drafting."
    )
    min_token_prob: Literal["choose", "as_configured"] = Field(
        default="choose",
        description="choose: verify only drafted tokens that are likely enough to pay at the load, where the "
        "server knows their probabilities.",
    )

    def eligible(self, space: Space) -> tuple[Bools, str]:
        """[setting]: prepared and within all bounds; and in words which bound no prepared setting meets.

        Off is within the bounds of a tree. Where it would be left over only because the server lacks what
        else the bounds ask for, nothing is within them.
        """
        depth, topk, width = self.num_speculative_tokens, self.tree_topk, self.verify_width_tokens
        is_off = space.depth == 0
        checks = (
            ("num_speculative_tokens", depth, (space.depth >= depth.min) & (space.depth <= depth.max)),
            ("tree_topk", topk, is_off | (space.topk >= topk.min) & (space.topk <= topk.max)),
            (
                "verify_width_tokens",
                width,
                is_off | (space.width >= width.min) & (space.width <= width.max),
            ),
        )
        may = space.is_prepared.copy()
        words = ""
        for name, knob, within in checks:
            if not (within & ~is_off).any() and knob.max > 0 and not words:
                words = f"no prepared setting has {name} from {knob.min} to {knob.max}"
            may &= within
        could_draft = (checks[0][2] & ~is_off).any()
        if could_draft and not (may & ~is_off).any():
            may[:] = False
        return may, words or "no prepared setting is within the policy's bounds"


class GuardRailSettings(Settings):
    """Limits around any policy."""

    min_gain_ratio: float = Field(
        default=0.02, ge=0, le=1, description="Change a setting only for a predicted gain above this share."
    )
    dwell_s: float = Field(
        default=2.0,
        ge=0,
        le=3600,
        description="Seconds that a setting stays before the next change. One change may come earlier where "
        "the text changes meanwhile.",
    )


class SamplingSettings(Settings):
    """Steps of another setting that the engine runs now and then, to measure it."""

    share_max_ratio: float = Field(
        default=0.005,
        ge=0,
        le=0.5,
        description="Share of the tokens that samples may be expected to cost; 0 turns them off. While a "
        "better setting is likely they may cost four times as much.",
    )


class RolloutSettings(Settings):
    """How the servers of a group change one after another. Nothing for a server that is alone."""

    canary_s: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="Seconds that more speculation is tried on one server before the others; 0: all at once.",
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


class PolicySettings(Settings):
    """What every policy has."""

    name: str = Field(
        default="", max_length=64, pattern=r"^[A-Za-z0-9_.-]*$", description="For logs and the table's owner."
    )
    frozen: bool = Field(
        default=False, description="true: change nothing, renew leases so that the tables in force hold."
    )
    poll_interval_s: float = Field(default=1.0, ge=0.1, le=60, description="Seconds between two polls.")
    lease_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Seconds that a table holds without renewal; then the engine falls back.",
    )
    fallback_num_speculative_tokens: int | None = Field(
        default=None,
        ge=0,
        le=1024,
        description="What holds once the lease has run out; null: the table that the server started with.",
    )
    on_stop: OnStop = Field(
        default="start",
        description="What a clean stop of the daemon leaves in force: the server's start table, the last "
        "table, or off.",
    )
    advise_restart_after_s: float = Field(
        default=1800.0,
        ge=0,
        le=604_800,
        description="Seconds of off under traffic before a restart without speculation is advised; 0: never.",
    )
    soundness: Literal["warn", "off"] = Field(
        default="warn",
        description="What follows from acceptance that sound drafts do not have (near 0, at 1, fallen with a "
        "restart): an event, or drafting off as well.",
    )
    knobs: Knobs = Field(default=Knobs(), description="Bounds on what may be chosen.")
    guard_rails: GuardRailSettings = Field(
        default=GuardRailSettings(), description="Limits around the policy."
    )
    sampling: SamplingSettings = Field(
        default=SamplingSettings(), description="Steps of other settings, run to measure them."
    )
    rollout: RolloutSettings = Field(
        default=RolloutSettings(), description="One server of a group before the others."
    )
    classes: tuple[ClassLimit, ...] | None = Field(
        default=None,
        max_length=CLASS_LIMITS_MAX,
        description="Rules for traffic classes, under whatever the table says; the first that matches holds. "
        "null: rules that somebody else put stay; []: there are none.",
    )

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if self.lease_s < 3 * self.poll_interval_s:
            raise ValueError(
                f"lease_s {self.lease_s:g} is under 3 x poll_interval_s = {3 * self.poll_interval_s:g}: "
                "one late poll would lose the lease"
            )
        most, fallback = self.knobs.num_speculative_tokens.max, self.fallback_num_speculative_tokens
        if fallback is not None and fallback > most:
            raise ValueError(
                f"fallback_num_speculative_tokens {fallback} is above knobs.num_speculative_tokens.max {most}"
            )
        named = [rule.classes for rule in self.classes or ()]
        if len(set(named)) < len(named):
            raise ValueError("classes: two rules are for the same classes")
        return self

    @property
    def objective(self) -> Objective | None:
        """What a policy that chooses wants most; None: it sets by hand."""
        return None

    @property
    def supervises(self) -> bool:
        """Whether the number is left to an engine that adapts by itself."""
        return False

    @property
    def weighs_tokens(self) -> bool:
        """Whether rows name from which probability on a drafted token is verified."""
        return self.objective is not None and self.knobs.min_token_prob == "choose"

    def eligible(self, space: Space) -> tuple[Bools, str]:
        """[setting]: within the policy's bounds on every knob; and in words what the server lacks."""
        return self.knobs.eligible(space)

    def wanted(self, decode_batch: int, space: Space) -> tuple[int, str]:
        """Of a policy by hand: a setting's number, and in words why it is not the one that was named."""
        raise NotImplementedError
