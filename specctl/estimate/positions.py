"""Counts by position of the draft."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add, mul
from typing import NamedTuple

from specctl.estimate.drift import Trials

__all__ = ["MEASURED_TRIALS", "PositionCounts", "at", "padded", "summed", "total"]

MEASURED_TRIALS = 1.0


class PositionCounts(NamedTuple):
    """Index j: the draft's token j + 1. ``watched``: request-steps that could have drafted it."""

    reached: tuple[float, ...] = ()
    accepted: tuple[float, ...] = ()
    drafted: tuple[float, ...] = ()
    watched: tuple[float, ...] = ()

    def plus(self, other: PositionCounts) -> PositionCounts:
        return PositionCounts(
            summed(self.reached, other.reached),
            summed(self.accepted, other.accepted),
            summed(self.drafted, other.drafted),
            summed(self.watched, other.watched),
        )

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
    return reduce(PositionCounts.plus, parts, PositionCounts())


def at(values: tuple[float, ...], j: int) -> float:
    return values[j] if j < len(values) else 0.0


def padded(values: tuple[float, ...], positions: int) -> tuple[float, ...]:
    """Exactly so many, with 0 for what was not counted."""
    return (*map(float, values[:positions]), *((0.0,) * (positions - len(values))))


def summed(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
    """Position by position; what only the longer one has stays as it is."""
    if len(a) < len(b):
        a, b = b, a
    return (*map(add, a, b), *a[len(b) :])
