"""Acceptance by traffic class, and what it says of the mix that decodes now.

The pool's estimate is of the mix that has been. With S_cj the survival of class c at position j and w_c its
share of the requests that decode now, the present mix survives with S_j = sum over c of w_c S_cj
(post-stratification: Holt and Smith, JRSS A 142, 1979).

A class's conditional is drawn towards the pool's q_j by m pseudo-trials: q_cj = (accepted + m q_j) / (reached
+ m), the posterior mean under the prior Beta(m q_j, m (1 - q_j)). m = 1 / g - 1 with g the moment estimate of
the correlation within classes (Kleinman, "Proportions with extraneous variance", JASA 68, 1973), numerators
and denominators added over positions: with X^2_j the statistic of equal rates over k classes of n_c trials,
N together,

    g = sum (X^2_j - (k - 1)) / sum (N - sum n_c^2 / N - (k - 1)).

Classes that differ by no more than chance are drawn to the pool for good; very different ones are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Self

from specctl.contract.classes import ClassKey
from specctl.estimate.drift import Trials, has_drifted
from specctl.estimate.positions import MEASURED_TRIALS, PositionCounts, at, total
from specctl.types import ClassDelta, Observation, SurvivalEstimate

__all__ = ["ClassAcceptance"]

# A class that rests is remembered: its traffic may come back as it was.
REST_HALF_LIFE_S = 300.0
PSEUDO_TRIALS_MIN = 2.0
PSEUDO_TRIALS_MAX = 64.0
# Most of what classes differ in shows at the first positions, and a look has to be cheap.
COMPARED_POSITIONS = 4
# A position is measured once classes with trials there are this share of the mix.
MEASURED_SHARE = 0.5
CLASSES_MAX = 32


@dataclass(frozen=True, slots=True)
class _Remembered:
    """``counts`` as of ``until_s``, the class's last interval with traffic."""

    counts: PositionCounts
    until_s: float


_NOTHING = PositionCounts()
_Classes = Mapping[ClassKey, _Remembered]
_Interval = tuple[tuple[ClassKey, PositionCounts], ...]


@dataclass(frozen=True, slots=True)
class ClassAcceptance:
    """``known``: discounted counts; ``recent``: the last intervals' own, newest last; ``before``: what was
    known before each of those. ``shares``: of the requests that decode now; empty: nothing is told of them.
    ``is_fresh``: the last look had counts by class."""

    half_life_s: float
    keep_intervals: int
    known: _Classes = field(default_factory=dict)
    recent: tuple[_Interval, ...] = ()
    before: tuple[_Classes, ...] = ()
    shares: tuple[tuple[ClassKey, float], ...] = ()
    is_fresh: bool = False

    def updated(self, observation: Observation) -> Self:
        classes, interval_s = observation.classes, observation.interval_s
        if classes is None or interval_s is None:
            if not self.shares and not self.is_fresh:
                return self
            return replace(self, shares=(), is_fresh=False)
        shares = _shares(classes)
        interval = tuple([(one.key, _counts(one)) for one in classes if at(one.watched_at, 0) > 0])
        if not interval:
            # Shadow drafts go on while nothing is drafted: they are newer than what the classes remember.
            known_shares = () if observation.shadow is not None else shares
            return replace(self, shares=known_shares, is_fresh=False)
        known = dict(self.known)
        for key, counts in interval:
            known[key] = self._learned(known.get(key), counts, observation.time_s, interval_s)
        return replace(
            self,
            known=_newest(known),
            recent=(*self.recent, interval)[-self.keep_intervals :],
            before=(*self.before, self.known)[-self.keep_intervals :],
            shares=shares,
            is_fresh=True,
        )

    def forgotten(self, newest: int) -> Self:
        """After a drift that no mix explains: without the past of the classes that drifted themselves.

        Where none did by itself all are kept: they are discounted in any case, and the test may have erred.
        """
        if not self.is_fresh or newest > len(self.recent):
            return replace(self, known={}, recent=(), before=())
        past, new = self.before[-newest], self._newest(newest)
        until_s = {key: self.known[key].until_s for key in new if key in self.known}
        gone = {k for k in until_s if k in past and has_drifted(new[k].trials, past[k].counts.trials)}
        known = {key: one for key, one in self.known.items() if key not in gone}
        fresh = {key: _Remembered(new[key], seen_s) for key, seen_s in until_s.items() if key in gone}
        kept = {key: one for key, one in past.items() if key not in gone}
        recent = self.recent[-newest:]
        return replace(self, known={**known, **fresh}, recent=recent, before=(kept,) * len(recent))

    def explains(self, newest: int) -> bool:
        """Whether the last ``newest`` intervals look like the past once it is weighted by their mix.

        Classes without a past are not compared: that they came is a change of the mix.
        """
        if not self.is_fresh or len(self.known) < 2 or newest > len(self.recent):
            return False
        past = self.before[-newest]
        compared = [(new, past[key].counts) for key, new in self._newest(newest).items() if key in past]
        return not has_drifted(total(new for new, _ in compared).trials, _past_in_the_mix_of(compared))

    def mixed(self, pool: SurvivalEstimate) -> SurvivalEstimate:
        """The pool's estimate for the requests that decode now; the pool's own where that is not known."""
        if len(self.known) < 2 or not self.shares:
            return pool
        pseudo = _pseudo_trials([one.counts for one in self.known.values()])
        size = len(pool.survival_at)
        survival, drafted, variance, told = [0.0] * size, [0.0] * size, [0.0] * size, [0.0] * size
        for key, share in self.shares:
            own = self.known[key].counts if key in self.known else _NOTHING
            alive, rate = 1.0, 0.0
            for j, of_pool in enumerate(pool.conditional_at):
                reached = at(own.reached, j)
                # Where the pool extrapolates, it does so from another mix's positions.
                prior = of_pool if j == 0 or pool.trials_at[j] >= MEASURED_TRIALS else rate
                rate = (at(own.accepted, j) + pseudo * prior) / (reached + pseudo)
                alive *= rate
                survival[j] += share * alive
                seen = (at(own.drafted, j) + pseudo * pool.drafted_at[j]) / (at(own.watched, j) + pseudo)
                drafted[j] += share * seen
                variance[j] += share * share / (reached + pseudo)
                told[j] += share if reached >= MEASURED_TRIALS else 0.0
        measured = next((j for j, share in enumerate(told) if share < MEASURED_SHARE), size)
        survival = list(accumulate(survival, min))
        above = (1.0, *survival)
        return replace(
            pool,
            survival_at=tuple(survival),
            drafted_at=tuple(accumulate(drafted, min)),
            conditional_at=tuple([s / a if a > 0 else 0.0 for s, a in zip(survival, above, strict=False)]),
            trials_at=tuple([1.0 / v for v in variance]),
            measured_positions=max(measured, pool.measured_positions),
        )

    def _newest(self, newest: int) -> dict[ClassKey, PositionCounts]:
        parts: dict[ClassKey, PositionCounts] = {}
        for key, counts in (pair for interval in self.recent[-newest:] for pair in interval):
            parts[key] = parts[key].plus(counts) if key in parts else counts
        return parts

    def _learned(
        self, old: _Remembered | None, counts: PositionCounts, time_s: float, interval_s: float
    ) -> _Remembered:
        """What was not watched rests, positions of a class that drafts less now included."""
        if old is None:
            return _Remembered(counts, time_s)
        rest_s = max(time_s - old.until_s - interval_s, 0.0)
        rested = 0.5 ** (rest_s / REST_HALF_LIFE_S)
        watched = sum(1 for number in counts.watched if number > 0)
        renewed = rested * 0.5 ** (interval_s / self.half_life_s)
        kept = rested * 0.5 ** (interval_s / REST_HALF_LIFE_S)
        positions = len(old.counts.reached)
        factors = (renewed,) * min(watched, positions) + (kept,) * (positions - watched)
        return _Remembered(old.counts.scaled_at(factors).plus(counts), time_s)


def _shares(classes: Sequence[ClassDelta]) -> tuple[tuple[ClassKey, float], ...]:
    decoding = sum(one.decoding for one in classes)
    return tuple([(one.key, one.decoding / decoding) for one in classes if one.decoding])


def _counts(one: ClassDelta) -> PositionCounts:
    return PositionCounts(one.reached_at, one.accepted_at, one.drafted_at, one.watched_at)


def _newest(known: dict[ClassKey, _Remembered]) -> dict[ClassKey, _Remembered]:
    """The classes seen last, where there are too many."""
    if len(known) <= CLASSES_MAX:
        return known
    newest = sorted(known.items(), key=lambda item: item[1].until_s, reverse=True)
    return dict(newest[:CLASSES_MAX])


def _past_in_the_mix_of(compared: Sequence[tuple[PositionCounts, PositionCounts]]) -> Trials:
    """Past trials by position, classes weighted by how often the new counts reached it."""
    trials = []
    for j in range(max((len(new.reached) for new, _ in compared), default=0)):
        weight = rate = inverse = 0.0
        for new, old in compared:
            share, reached = at(new.reached, j), at(old.reached, j)
            if share > 0 and reached > 0:
                weight += share
                rate += share * at(old.accepted, j) / reached
                inverse += share * share / reached
        reached = weight * weight / inverse if inverse > 0 else 0.0
        trials.append((reached * rate / weight if weight > 0 else 0.0, reached))
    return tuple(trials)


def _pseudo_trials(classes: Sequence[PositionCounts]) -> float:
    excess = scale = 0.0
    for j in range(COMPARED_POSITIONS):
        told = [(at(one.accepted, j), at(one.reached, j)) for one in classes]
        told = [(accepted, reached) for accepted, reached in told if reached >= 1.0]
        trials = sum(reached for _, reached in told)
        rate = sum(accepted for accepted, _ in told) / trials if trials > 0 else 0.0
        if len(told) < 2 or not 0.0 < rate < 1.0:
            continue
        spread = sum((accepted - reached * rate) ** 2 / reached for accepted, reached in told)
        excess += spread / (rate * (1.0 - rate)) - (len(told) - 1)
        scale += trials - sum(reached * reached for _, reached in told) / trials - (len(told) - 1)
    if scale <= 0 or excess <= 0:
        return PSEUDO_TRIALS_MAX
    return min(max(scale / excess - 1.0, PSEUDO_TRIALS_MIN), PSEUDO_TRIALS_MAX)
