"""From which chance on a drafted token is verified, by decode-batch bucket: the policy's wish, averaged, in
steps that the estimates do not shake. Pure.

Averaged, because a second that verification takes is lost to the tokens that a second usually brings, not to
those of this moment: where requests copy and do something else in turn, the price is that of the mixture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit
from specctl.contract.table import TableRow
from specctl.controller.forecast import Bounds, bucket_bounds
from specctl.policy.base import Policy
from specctl.types import BucketChoice, BucketForecast

__all__ = [
    "InForce",
    "Wishes",
    "changed_chances",
    "in_force",
    "mean_wishes",
    "row_settings",
    "with_least_chances",
]

# num_speculative_tokens and min_token_prob of a row.
Setting = tuple[int, float | None]
# By bucket's upper end; and the rules for classes.
InForce = tuple[dict[int, Setting], tuple[ClassLimit, ...]]
# The policy's mean wish, by bucket's upper end.
Wishes = Mapping[int, float]
STEPS = (0.0, 0.05, 0.1, 0.2, 0.4)
HALF_LIFE_S = 10.0
NEAR_RATIO = 2.0
"""What is in force stays while the wish is within this ratio of it."""
NOTHING = 0.05
"""Under it a chance is as good as none."""


class Table(Protocol):
    """Wanted or in force."""

    @property
    def rows(self) -> tuple[TableRow, ...]: ...
    @property
    def class_limits(self) -> tuple[ClassLimit, ...]: ...


def row_settings(rows: Iterable[TableRow], bounds: Iterable[Bounds]) -> dict[int, Setting]:
    """By bucket's upper end, at the bucket's first batch and no context; (0, None) where no row is."""
    known = [
        (
            row.decode_batch_from,
            row.decode_batch_to or math.inf,
            row.num_speculative_tokens,
            row.min_token_prob,
        )
        for row in rows
        if row.context_from_tokens == 0
    ]
    return {
        high: next(((value, prob) for first, last, value, prob in known if first <= low <= last), (0, None))
        for low, high in bounds
    }


def in_force(table: Table, capabilities: Capabilities) -> InForce:
    """What of a table an engine must show that has applied it."""
    return row_settings(table.rows, bucket_bounds(capabilities)), table.class_limits


def changed_chances(before: Iterable[TableRow], after: Iterable[TableRow], capabilities: Capabilities) -> str:
    """In words; empty where none is changed."""
    bounds = bucket_bounds(capabilities)
    old, new = row_settings(before, bounds), row_settings(after, bounds)
    words = [
        f"up to {bucket} decoding {_words(old[bucket][1])} -> {_words(prob)}"
        for bucket, (_, prob) in new.items()
        if prob != old[bucket][1]
    ]
    return f"least chance of a token to be verified: {'; '.join(words)}" if words else ""


def mean_wishes(
    known: Wishes,
    choices: Iterable[BucketChoice],
    forecasts: Iterable[BucketForecast],
    policy: Policy,
    interval_s: float | None,
) -> Wishes:
    """After another look. A bucket without traffic, or of which nothing is known, keeps its own."""
    if not policy.weighs_tokens:
        return known
    numbers = {choice.decode_batch_to: choice.num_speculative_tokens for choice in choices}
    kept = 0.5 ** ((interval_s or 0.0) / HALF_LIFE_S)
    found = dict(known)
    for forecast in forecasts:
        upper = forecast.decode_batch_to
        wanted = policy.min_token_prob(forecast, numbers[upper]) if forecast.is_active else None
        if wanted is not None:
            found[upper] = wanted + kept * (known.get(upper, wanted) - wanted)
    return found


def with_least_chances(
    choices: Iterable[BucketChoice],
    wishes: Wishes,
    present: Mapping[int, Setting],
    configured: float | None,
    policy: Policy,
) -> tuple[BucketChoice, ...]:
    """The choices with their ``min_token_prob``. Where nothing is wished for, a bucket keeps the one it has.

    configured: what a row without one stands for; None: the engine does not choose drafts by their chances.
    """
    if configured is None or not policy.weighs_tokens:
        return tuple(choices)
    return tuple(
        choice._replace(
            min_token_prob=_stepped(
                wishes.get(choice.decode_batch_to), present[choice.decode_batch_to][1], configured
            )
        )
        for choice in choices
    )


def _stepped(wanted: float | None, now: float | None, configured: float) -> float | None:
    if wanted is None:
        return now
    for known in (now, None):
        value = configured if known is None else known
        if _is_near(wanted, value):
            return known
    return min(STEPS, key=lambda step: abs(_height(step) - _height(wanted)))


def _is_near(wanted: float, value: float) -> bool:
    if value < NOTHING:
        return wanted < NOTHING
    return value / NEAR_RATIO <= wanted <= value * NEAR_RATIO


def _height(prob: float) -> float:
    """Steps are even in the logarithm; the lowest stands for all below it."""
    return math.log(max(prob, NOTHING / NEAR_RATIO))


def _words(prob: float | None) -> str:
    return "as configured" if prob is None else f"{prob:g}"
