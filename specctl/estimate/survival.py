"""Acceptance by position from right-censored counts.

A step with K drafts tells the outcome of every position up to K, so counts are kept per position and the
survival is the product of the conditionals (Kaplan and Meier 1958, "Nonparametric estimation from incomplete
observations", section 2). Positions above K are censored: they add nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from specctl.estimate.classes import ClassAcceptance
from specctl.estimate.drift import has_drifted
from specctl.estimate.positions import MEASURED_TRIALS, PositionCounts, at, total
from specctl.types import CellDelta, Observation, SurvivalEstimate

__all__ = ["DiscountedSurvival", "counts_of"]

# Traffic changes by the second; at 5 to 20 steps a second this still leaves some 30 to 100 trials.
HALF_LIFE_S = 4.0
# Intervals kept apart from the past, so that the drift test compares two disjoint samples.
RECENT_INTERVALS = 3
# One pseudo-trial at the position before's rate: keeps a position with one trial off 0 and 1.
PRIOR_TRIALS = 1.0
FIRST_PRIOR_RATIO = 0.5
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
        return replace(self, classes=self.classes.updated(observation))._with_pool(observation)

    def _with_pool(self, observation: Observation) -> Self:
        counts = counts_of(observation)
        if counts is None or observation.interval_s is None:
            return replace(self, drifted=False)
        if counts.is_empty:
            is_blind = observation.shadow is None and bool(observation.emitted_tokens)
            return replace(self, drifted=False, watched_positions=0 if is_blind else self.watched_positions)
        watched_positions = sum(1 for watched in counts.watched if watched > 0)
        recent = (*self.recent, counts)
        past = self.past
        if len(recent) > RECENT_INTERVALS:
            past, recent = past.plus(recent[0]), recent[1:]
        past = past.scaled(0.5 ** (observation.interval_s / self.half_life_s))
        for newest in range(1, len(recent) + 1):
            has_changed = has_drifted(
                total(recent[-newest:]).trials, past.plus(total(recent[:-newest])).trials
            )
            if has_changed and not self.classes.explains(newest):
                kept = recent[-newest:]
                return replace(
                    self,
                    past=PositionCounts(),
                    recent=kept,
                    drifted=True,
                    classes=self.classes.forgotten(newest),
                    watched_positions=watched_positions,
                )
        return replace(self, past=past, recent=recent, drifted=False, watched_positions=watched_positions)

    def estimate(self, positions: int) -> SurvivalEstimate | None:
        counts = self.past.plus(total(self.recent))
        if counts.is_empty:
            return None
        conditional: list[float] = []
        survival: list[float] = []
        drafted: list[float] = []
        trials: list[float] = []
        for j in range(positions):
            reached, accepted = at(counts.reached, j), at(counts.accepted, j)
            prior = conditional[-1] if conditional else FIRST_PRIOR_RATIO
            conditional.append((accepted + PRIOR_TRIALS * prior) / (reached + PRIOR_TRIALS))
            survival.append((survival[-1] if survival else 1.0) * conditional[-1])
            watched = at(counts.watched, j)
            seen = at(counts.drafted, j) / watched if watched > 0 else (drafted[-1] if drafted else 1.0)
            drafted.append(min(seen, drafted[-1] if drafted else 1.0))
            trials.append(reached)
        measured = next((j for j, n in enumerate(trials) if n < MEASURED_TRIALS), positions)
        known = sum(1 for j in range(positions) if at(counts.watched, j) >= MEASURED_TRIALS)
        pool = SurvivalEstimate(
            survival_at=tuple(survival),
            drafted_at=tuple(drafted),
            conditional_at=tuple(conditional),
            trials_at=tuple(trials),
            # A position that nothing reaches although it was watched for is known to be hopeless.
            measured_positions=max(measured, known),
            watched_positions=self.watched_positions,
            drifted=self.drifted,
        )
        return self.classes.mixed(pool)


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
    accepted = tuple(float(at(accepted_at, j)) for j in range(positions))
    return PositionCounts(
        reached=(drafts, *accepted[:-1]) if positions else (),
        accepted=accepted,
        drafted=tuple(float(at(drafted_at, j)) for j in range(positions)),
        watched=(drafts,) * positions,
    )
