"""Counts by position of the draft."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from operator import add, mul

from specctl.estimate.drift import Trials

__all__ = ["MEASURED_TRIALS", "PositionCounts", "at", "total"]

MEASURED_TRIALS = 1.0


@dataclass(frozen=True, slots=True)
class PositionCounts:
    """Index j: the draft's token j + 1. ``watched``: request-steps that could have drafted it."""

    reached: tuple[float, ...] = ()
    accepted: tuple[float, ...] = ()
    drafted: tuple[float, ...] = ()
    watched: tuple[float, ...] = ()

    def plus(self, other: PositionCounts) -> PositionCounts:
        return PositionCounts(
            _sum(self.reached, other.reached),
            _sum(self.accepted, other.accepted),
            _sum(self.drafted, other.drafted),
            _sum(self.watched, other.watched),
        )

    def scaled(self, factor: float) -> PositionCounts:
        return self.scaled_at((factor,) * len(self.reached))

    def scaled_at(self, factors: tuple[float, ...]) -> PositionCounts:
        """One factor for each position."""
        return PositionCounts(
            tuple(map(mul, self.reached, factors)),
            tuple(map(mul, self.accepted, factors)),
            tuple(map(mul, self.drafted, factors)),
            tuple(map(mul, self.watched, factors)),
        )

    @property
    def is_empty(self) -> bool:
        return not self.reached or self.reached[0] <= 0

    @property
    def trials(self) -> Trials:
        return tuple(zip(self.accepted, self.reached, strict=True))


def total(parts: Iterable[PositionCounts]) -> PositionCounts:
    counts = PositionCounts()
    for part in parts:
        counts = counts.plus(part)
    return counts


def at(values: tuple[float, ...], j: int) -> float:
    return values[j] if j < len(values) else 0.0


def _sum(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
    if len(a) == len(b):
        return tuple(map(add, a, b))
    return tuple([x + y for x, y in zip_longest(a, b, fillvalue=0.0)])
