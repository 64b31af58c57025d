"""From which chance on a drafted token is verified, by decode-batch bucket: the policy's wish in steps that
the estimates do not shake. Pure.
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

__all__ = ["InForce", "changed_chances", "in_force", "row_settings", "with_least_chances"]

# num_speculative_tokens and min_token_prob of a row.
Setting = tuple[int, float | None]
# By bucket's upper end; and the rules for classes.
InForce = tuple[dict[int, Setting], tuple[ClassLimit, ...]]
STEPS = (0.0, 0.05, 0.1, 0.2, 0.4)
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


def with_least_chances(
    choices: Iterable[BucketChoice],
    forecasts: Iterable[BucketForecast],
    present: Mapping[int, Setting],
    configured: float | None,
    policy: Policy,
) -> tuple[BucketChoice, ...]:
    """The choices with their ``min_token_prob``. Without traffic a bucket keeps the one that it has.

    configured: what a row without one stands for; None: the engine does not choose drafts by their chances.
    """
    if configured is None:
        return tuple(choices)
    by_bucket = {forecast.decode_batch_to: forecast for forecast in forecasts if forecast.is_active}
    result = []
    for choice in choices:
        _, now = present[choice.decode_batch_to]
        forecast = by_bucket.get(choice.decode_batch_to)
        wish = None
        if policy.weighs_tokens:
            wish = now
            if forecast is not None:
                wanted = policy.min_token_prob(forecast, choice.num_speculative_tokens)
                wish = now if wanted is None else _stepped(wanted, now, configured)
        result.append(choice if wish is None else choice._replace(min_token_prob=wish))
    return tuple(result)


def _stepped(wanted: float, now: float | None, configured: float) -> float | None:
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
