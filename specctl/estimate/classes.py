"""Acceptance by traffic class, and what it says of the mix that decodes now.

The pool's estimate is of the mix that has been. With S_cj the survival of class c at position j, w_c its
share of the requests that decode now and p_c its share of what the pool rests on,

    S_j = pool S_j + sum over c of (w_c - p_c) S_cj,

the difference estimator of survey sampling (Sarndal, Swensson and Wretman, "Model assisted survey sampling",
1992, section 6.3): the mean over the classes by the requests that decode now, less what the same classes
would have made of the pool, plus the pool. An unchanged mix leaves the pool as it is, noise included.

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
from typing import Self

from specctl.contract.classes import ClassKey
from specctl.estimate.drift import Trials, has_drifted
from specctl.estimate.positions import PositionCounts, at, total
from specctl.types import ClassDelta, Observation, SurvivalEstimate

__all__ = ["ClassAcceptance"]

# A class that rests is remembered: its traffic may come back as it was.
REST_HALF_LIFE_S = 300.0
PSEUDO_TRIALS_MIN = 2.0
PSEUDO_TRIALS_MAX = 64.0
# Most of what classes differ in shows at the first positions, and a look has to be cheap.
COMPARED_POSITIONS = 4
# A mix that has moved by less is the pool's.
SHARE_MIN = 0.02
CLASSES_MAX = 32


@dataclass(frozen=True, slots=True)
class _Remembered:
    """``counts`` as of ``until_s``, the class's last interval with traffic."""

    counts: PositionCounts
    until_s: float


_Classes = Mapping[ClassKey, _Remembered]
_Interval = tuple[tuple[ClassKey, PositionCounts], ...]


@dataclass(frozen=True, slots=True)
class ClassAcceptance:
    """``known``: discounted counts; ``recent``: the last intervals' own, newest last; ``before``: what was
    known before each of those. ``exposure``: request-steps by class, discounted as the pool's counts are.
    ``is_fresh``: the last look had counts by class."""

    half_life_s: float
    keep_intervals: int
    known: _Classes = field(default_factory=dict)
    recent: tuple[_Interval, ...] = ()
    before: tuple[_Classes, ...] = ()
    exposure: Mapping[ClassKey, float] = field(default_factory=dict)
    decoding: tuple[tuple[ClassKey, int], ...] = ()
    is_fresh: bool = False

    def updated(self, observation: Observation) -> Self:
        classes, interval_s = observation.classes, observation.interval_s
        if classes is None or interval_s is None:
            return replace(self, decoding=(), is_fresh=False)
        decoding = tuple([(one.key, one.decoding) for one in classes if one.decoding])
        exposure = self._exposed(classes, interval_s, has_shadow=observation.shadow is not None)
        interval = tuple([(one.key, _counts(one)) for one in classes if at(one.watched_at, 0) > 0])
        if not interval:
            return replace(self, decoding=decoding, exposure=exposure, is_fresh=False)
        known = dict(self.known)
        for key, counts in interval:
            known[key] = self._learned(known.get(key), counts, observation.time_s, interval_s)
        return replace(
            self,
            known=_newest(known),
            recent=(*self.recent, interval)[-self.keep_intervals :],
            before=(*self.before, self.known)[-self.keep_intervals :],
            exposure=exposure,
            decoding=decoding,
            is_fresh=True,
        )

    def forgotten(self, newest: int) -> Self:
        """As if only the last ``newest`` intervals had been, after a drift that no mix explains."""
        kept = self.recent[-newest:]
        known: dict[ClassKey, _Remembered] = {}
        exposure: dict[ClassKey, float] = {}
        for key, counts in (pair for interval in kept for pair in interval):
            old = known.get(key)
            merged = counts if old is None else old.counts.plus(counts)
            known[key] = _Remembered(merged, self.known[key].until_s if key in self.known else 0.0)
            exposure[key] = exposure.get(key, 0.0) + at(counts.watched, 0)
        return replace(self, known=known, recent=kept, before=({},) * len(kept), exposure=exposure)

    def explains(self, newest: int) -> bool:
        """Whether the last ``newest`` intervals look like the past once it is weighted by their mix.

        Classes without a past are not compared: that they came is a change of the mix.
        """
        if not self.is_fresh or len(self.known) < 2 or newest > len(self.recent):
            return False
        past = self.before[-newest]
        parts: dict[ClassKey, PositionCounts] = {}
        for key, counts in (pair for interval in self.recent[-newest:] for pair in interval):
            parts[key] = parts[key].plus(counts) if key in parts else counts
        compared = [(counts, past[key].counts) for key, counts in parts.items() if key in past]
        if not compared:
            return bool(parts)
        return not has_drifted(total(new for new, _ in compared).trials, _past_in_the_mix_of(compared))

    def mixed(self, pool: SurvivalEstimate) -> SurvivalEstimate:
        """The pool's estimate for the requests that decode now; the pool's own where that is not known."""
        moved = self._moved()
        if not moved:
            return pool
        counts = {key: one.counts for key, one in self.known.items()}
        pseudo = _pseudo_trials(list(counts.values()))
        survival, drafted = list(pool.survival_at), list(pool.drafted_at)
        variance = [1.0 / n if n > 0 else 0.0 for n in pool.trials_at]
        for key, share in moved:
            own, alive = counts.get(key, PositionCounts()), 1.0
            for j, prior in enumerate(pool.conditional_at):
                reached = at(own.reached, j) + pseudo
                alive *= (at(own.accepted, j) + pseudo * prior) / reached
                survival[j] += share * alive
                seen = (at(own.drafted, j) + pseudo * pool.drafted_at[j]) / (at(own.watched, j) + pseudo)
                drafted[j] += share * seen
                variance[j] += share * share / reached
        return _bounded(pool, survival, drafted, variance)

    def _exposed(
        self, classes: Sequence[ClassDelta], interval_s: float, *, has_shadow: bool
    ) -> Mapping[ClassKey, float]:
        """Shadow drafts go on where nothing is drafted; other counts of the pool rest then."""
        steps = {one.key: one.request_steps if has_shadow else at(one.watched_at, 0) for one in classes}
        if not any(steps.values()):
            return self.exposure
        decay = 0.5 ** (interval_s / self.half_life_s)
        exposure = {key: value * decay for key, value in self.exposure.items() if value > 1e-3}
        for key, number in steps.items():
            exposure[key] = exposure.get(key, 0.0) + number
        return exposure

    def _moved(self) -> list[tuple[ClassKey, float]]:
        """Share of the requests that decode now, less share of the pool's counts; empty: about the same."""
        requests, steps = sum(n for _, n in self.decoding), sum(self.exposure.values())
        if len(self.known) < 2 or requests <= 0 or steps <= 0:
            return []
        moved = {key: -n / steps for key, n in self.exposure.items()}
        for key, n in self.decoding:
            moved[key] = moved.get(key, 0.0) + n / requests
        if max(map(abs, moved.values())) < SHARE_MIN:
            return []
        return list(moved.items())

    def _learned(
        self, old: _Remembered | None, counts: PositionCounts, time_s: float, interval_s: float
    ) -> _Remembered:
        if old is None:
            return _Remembered(counts, time_s)
        rest_s = max(time_s - old.until_s - interval_s, 0.0)
        kept = 0.5 ** (interval_s / self.half_life_s + rest_s / REST_HALF_LIFE_S)
        return _Remembered(old.counts.scaled(kept).plus(counts), time_s)


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
    for j in range(max(len(new.reached) for new, _ in compared)):
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


def _bounded(
    pool: SurvivalEstimate, survival: Sequence[float], drafted: Sequence[float], variance: Sequence[float]
) -> SurvivalEstimate:
    """Sums of differences, held to what shares of a whole can be."""
    kept: list[float] = []
    seen: list[float] = []
    conditional: list[float] = []
    for alive, share in zip(survival, drafted, strict=True):
        above = kept[-1] if kept else 1.0
        kept.append(min(max(alive, 0.0), above))
        seen.append(max(min(share, seen[-1] if seen else 1.0), kept[-1]))
        conditional.append(kept[-1] / above if above > 0 else 0.0)
    return replace(
        pool,
        survival_at=tuple(kept),
        drafted_at=tuple(seen),
        conditional_at=tuple(conditional),
        trials_at=tuple([1.0 / v if v > 0 else 0.0 for v in variance]),
    )
