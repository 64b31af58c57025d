"""Acceptance by position from right-censored counts.

A step with K drafts tells the outcome of every position up to K, so counts are kept per position and the
survival is the product of the conditionals (Kaplan and Meier 1958, "Nonparametric estimation from incomplete
observations", section 2). Positions above K are censored: they add nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Self

from specctl.estimate.classes import ClassAcceptance
from specctl.estimate.drift import Trials, has_drifted
from specctl.estimate.positions import MEASURED_TRIALS, PositionCounts, padded, summed, total
from specctl.types import CellDelta, Observation, SurvivalEstimate

__all__ = ["DiscountedSurvival", "counts_of"]

# Traffic changes by the second; at 5 to 20 steps a second this still leaves some 30 to 100 trials.
HALF_LIFE_S = 4.0
# Positions above the setting in force are not watched; what they were like is still the best guess.
REST_HALF_LIFE_S = 60.0
# Intervals kept apart from the past, so that the drift test compares two disjoint samples.
RECENT_INTERVALS = 3
# One pseudo-trial at the position before's rate: keeps a position with one trial off 0 and 1.
PRIOR_TRIALS = 1.0
FIRST_PRIOR_RATIO = 0.5
# Accepted and reached, each by position.
_Counted = tuple[tuple[float, ...], tuple[float, ...]]
_NOTHING = PositionCounts()
_UNTOLD = ClassAcceptance(HALF_LIFE_S, RECENT_INTERVALS)


@dataclass(frozen=True, slots=True)
class DiscountedSurvival:
    """``past``: discounted counts; ``recent``: the last intervals, newest last, not in ``past``.

    That is the pool of all traffic; ``classes`` tell it apart where the engine does.
    """

    past: PositionCounts = _NOTHING
    recent: tuple[PositionCounts, ...] = ()
    drifted: bool = False
    watched_positions: int = 0
    half_life_s: float = HALF_LIFE_S
    classes: ClassAcceptance = _UNTOLD

    def updated(self, observation: Observation) -> Self:
        classes = self.classes.updated(observation)
        counts = counts_of(observation)
        if counts is None or observation.interval_s is None:
            return replace(self, drifted=False, classes=classes)
        if counts.is_empty:
            is_blind = observation.shadow is None and bool(observation.emitted_tokens)
            watched_positions = 0 if is_blind else self.watched_positions
            return replace(self, drifted=False, watched_positions=watched_positions, classes=classes)
        watched_positions = sum(1 for watched in counts.watched if watched > 0)
        recent = (*self.recent, counts)
        past = self.past
        if len(recent) > RECENT_INTERVALS:
            past, recent = past.plus(recent[0]), recent[1:]
        past = past.scaled_at(_kept(past, watched_positions, observation.interval_s, self.half_life_s))
        for newest, (fresh, before) in enumerate(_splits(past, recent), start=1):
            if has_drifted(fresh, before) and not classes.explains(newest):
                kept = recent[-newest:]
                return replace(
                    self,
                    past=PositionCounts(),
                    recent=kept,
                    drifted=True,
                    classes=classes.forgotten(newest),
                    watched_positions=watched_positions,
                )
        # Not ``replace``: this is done at every look, and takes a third of its time.
        return type(self)(past, recent, False, watched_positions, self.half_life_s, classes)

    def estimate(self, positions: int) -> SurvivalEstimate | None:
        counts = total((self.past, *self.recent))
        if counts.is_empty:
            return None
        trials = padded(counts.reached, positions)
        watched = padded(counts.watched, positions)
        conditional = _conditionals(padded(counts.accepted, positions), trials)
        measured = next((j for j, n in enumerate(trials) if n < MEASURED_TRIALS), positions)
        known = sum(1 for n in watched if n >= MEASURED_TRIALS)
        pool = SurvivalEstimate(
            survival_at=tuple(accumulate(conditional, mul)),
            drafted_at=_drafted_at(padded(counts.drafted, positions), watched),
            conditional_at=conditional,
            trials_at=trials,
            # A position that nothing reaches although it was watched for is known to be hopeless.
            measured_positions=max(measured, known),
            watched_positions=self.watched_positions,
            drifted=self.drifted,
        )
        return self.classes.mixed(pool)


def _kept(
    past: PositionCounts, watched_positions: int, interval_s: float, half_life_s: float
) -> tuple[float, ...]:
    """Share of the past that stays, by position: what is not watched is only remembered."""
    watched = min(watched_positions, len(past.reached))
    rest = len(past.reached) - watched
    return (0.5 ** (interval_s / half_life_s),) * watched + (0.5 ** (interval_s / REST_HALF_LIFE_S),) * rest


def _conditionals(accepted: tuple[float, ...], reached: tuple[float, ...]) -> tuple[float, ...]:
    ratio, ratios = FIRST_PRIOR_RATIO, []
    for kept, trials in zip(accepted, reached, strict=True):
        ratio = (kept + PRIOR_TRIALS * ratio) / (trials + PRIOR_TRIALS)
        ratios.append(ratio)
    return tuple(ratios)


def _drafted_at(drafted: tuple[float, ...], watched: tuple[float, ...]) -> tuple[float, ...]:
    """Share that had the position's token: never more than at the position before."""
    ratio, ratios = 1.0, []
    for tokens, could in zip(drafted, watched, strict=True):
        if could > 0:
            ratio = min(tokens / could, ratio)
        ratios.append(ratio)
    return tuple(ratios)


def counts_of(observation: Observation) -> PositionCounts | None:
    """The interval's counts: shadow drafts where the engine follows them, else cells, else /metrics."""
    if observation.shadow is not None:
        shadow = observation.shadow
        return _counts(float(shadow.drafts), shadow.accepted_at, shadow.drafted_at, len(shadow.accepted_at))
    if observation.cells is not None:
        return total(tuple(_cell_counts(cell) for cell in observation.cells))
    stock = observation.stock
    if stock is not None and stock.drafts is not None and stock.accepted_at is not None:
        # vLLM does not export the drafted tokens by position; their mean serves every position.
        mean_drafted = (stock.drafted_tokens or 0) / stock.drafts if stock.drafts else 0.0
        drafted = tuple(
            stock.drafts * min(max(mean_drafted - j, 0.0), 1.0) for j in range(len(stock.accepted_at))
        )
        return _counts(float(stock.drafts), stock.accepted_at, drafted, len(stock.accepted_at))
    return None


def _cell_counts(cell: CellDelta) -> PositionCounts:
    positions = cell.num_speculative_tokens
    return _counts(float(cell.request_steps), cell.accepted_at, cell.drafted_at, positions)


def _counts(
    drafts: float, accepted_at: tuple[float, ...], drafted_at: tuple[float, ...], positions: int
) -> PositionCounts:
    accepted = padded(accepted_at, positions)
    return PositionCounts(
        reached=(drafts, *accepted[:-1]) if positions else (),
        accepted=accepted,
        drafted=padded(drafted_at, positions),
        watched=(drafts,) * positions,
    )


def _splits(past: PositionCounts, recent: tuple[PositionCounts, ...]) -> Iterator[tuple[Trials, Trials]]:
    """The newest 1, 2, ... intervals together, each with all that was before them."""
    # Only what a drift test asks for, and no sum twice: this is done at every look.
    counted = [(part.accepted, part.reached) for part in (past, *recent)]
    before = list(accumulate(counted[:-1], _plus))
    newest = accumulate(reversed(counted[1:]), _plus)
    for fresh, old in zip(newest, reversed(before), strict=True):
        yield tuple(zip(*fresh, strict=True)), tuple(zip(*old, strict=True))


def _plus(a: _Counted, b: _Counted) -> _Counted:
    return summed(a[0], b[0]), summed(a[1], b[1])
