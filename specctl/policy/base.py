"""What the decision core asks of a policy."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from specctl.types import BucketChoice, BucketForecast, Reason

__all__ = ["Exploration", "GuardRails", "Policy", "Proposal"]


class Proposal(NamedTuple):
    """What a policy wants for one bucket, before the guard rails. ``is_learned``: it rests on estimates."""

    num_speculative_tokens: int
    reason: Reason
    detail: str = ""
    is_learned: bool = True


class GuardRails(Protocol):
    """Bounds that hold for any policy. Read-only; see ``specctl policy schema`` for the meaning."""

    @property
    def num_speculative_tokens_min(self) -> int: ...
    @property
    def num_speculative_tokens_max(self) -> int: ...
    @property
    def min_gain_ratio(self) -> float: ...
    @property
    def min_gain_sigma(self) -> float: ...
    @property
    def off_below_gain_ratio(self) -> float: ...
    @property
    def dwell_s(self) -> float: ...
    @property
    def patience_s(self) -> float: ...
    @property
    def min_samples_tokens(self) -> int: ...
    @property
    def changes_max_per_minute(self) -> int: ...


class Exploration(Protocol):
    """How much may be spent on measuring what the present setting does not show."""

    @property
    def share_max_ratio(self) -> float: ...
    @property
    def probe_s(self) -> float: ...
    @property
    def interval_max_s(self) -> float: ...


class Policy(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def guard_rails(self) -> GuardRails: ...
    @property
    def exploration(self) -> Exploration: ...
    @property
    def is_learned(self) -> bool:
        """Whether the policy's proposals rest on estimates, so that exploring helps it."""

    @property
    def weighs_tokens(self) -> bool:
        """Whether the policy says from which chance on a drafted token is verified."""

    def min_token_prob(self, forecast: BucketForecast, num_speculative_tokens: int) -> float | None:
        """That chance under this setting, from 0 to 1; None: not known."""

    def candidates(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        """The legal values that this policy may choose from: sorted, with 0 first, at least one."""

    def decide(self, forecast: BucketForecast, *, since_change_s: float, changes_left: int) -> BucketChoice:
        """The value for one bucket, guard rails applied. Pure.

        Args:
            since_change_s: seconds since this bucket last changed.
            changes_left: table changes that the minute still allows.
        """
