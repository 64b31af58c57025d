"""Acceptance by depth and rank, from right-censored counts, and what follows for every setting.

A step with K drafts shows the outcome of every depth up to K, so counts are kept by depth and survival is the
product of the conditionals (Kaplan and Meier 1958, section 2). Depths above K are censored: they add nothing.
A tree's accepted tokens are counted by their rank among the siblings, so that fewer branches are known too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from specctl.contract.telemetry import ACCEPTANCE_GROUPS_MAX, AcceptanceGroup, ShadowAcceptance, TelemetryCell
from specctl.core.drift import Trials, dispersion_of, has_drifted
from specctl.core.request_groups import RequestGroups
from specctl.core.space import Floats, Ints, Space, by_depth

__all__ = ["Acceptance", "AcceptanceEstimate"]

HALF_LIFE_S = 4.0
HALF_TRIALS = 16.0
"""Counts are halved in ``HALF_LIFE_S`` or after so many new trials, whichever takes longer."""
RECENT_INTERVALS = 3
"""Kept apart from the past, so that the drift test compares two disjoint samples."""
PRIOR_TRIALS = 1.0
"""Pseudo-trials at the rate of the depth before."""
FIRST_PRIOR_RATIO = 0.5
RANK_PRIOR_RATIO = 0.25
"""Of what the ranks before it miss, the share that the next rank is expected to hit."""
LONG_HALF_LIFE_S = 40.0
"""Of the counts that drift leaves, and of the share of updates that found drift."""
DISPERSION_INTERVALS = 41
"""The dispersion of the trials is the median of so many; it begins as if all had shown 1."""
ENDS_PRIOR_TOKENS = 20.0
"""Pseudo-tokens, accepted at depth 1 and emitted."""
TREE_PRIOR_STEPS = 50.0
"""Request-steps at which a tree's own mean weighs as much as the product of conditionals."""


class _Counts(NamedTuple):
    """[rank, depth] and [depth]. ``reached``: the depth was drafted with that rank, and all before it were
    accepted. ``watched``: request-steps whose setting had this depth; ``drafted``: those with a token there.
    ``members``: [group], request-steps of the requests of each group.
    """

    reached: Floats
    hits: Floats
    watched: Floats
    drafted: Floats
    members: Floats

    @classmethod
    def none(cls, ranks: int, depths: int) -> _Counts:
        grid, line = np.zeros((ranks, depths)), np.zeros(depths)
        return cls(grid, grid.copy(), line, line.copy(), np.zeros(ACCEPTANCE_GROUPS_MAX))

    def plus(self, other: _Counts) -> _Counts:
        return _Counts(*[mine + theirs for mine, theirs in zip(self, other, strict=True)])

    def scaled(self, factors: Floats) -> _Counts:
        by_depth = [part * factors for part in self[:-1]]
        return _Counts._make([*by_depth, self.members * factors[0]])

    @property
    def first_rank(self) -> Trials:
        return tuple(zip(self.hits[0].tolist(), self.reached[0].tolist(), strict=True))


@dataclass(frozen=True)
class AcceptanceEstimate:
    """For every setting of the space, per request-step; ``trials``: outcomes of depth 1, discounted.

    ``emitted``: expected tokens, the bonus token included. ``drafted``: expected drafted tokens.
    ``gradient[s, j]``: d log emitted / d log (conditional at depth j); ``log_q_var[j]``: variance of that
    logarithm. ``survival``: of a chain as deep as the space allows.
    """

    emitted: Floats
    drafted: Floats
    gradient: Floats
    log_q_var: Floats
    survival: Floats
    trials: float
    has_drifted: bool

    def log_ratio_var(self, base: int) -> Floats:
        """Variance of log(emitted at each setting / emitted at ``base``), by the delta method."""
        difference = self.gradient - self.gradient[base]
        variance: Floats = (difference * difference) @ self.log_q_var
        return variance


class Acceptance:
    """Counts of one server's traffic, all decode batches together."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._ranks = int(space.topk.max())
        self._depths = max(int(space.depth.max()), 1)
        self._past = self._nothing()
        self._recent: deque[_Counts] = deque()
        self._tree_steps = np.zeros(len(space.settings))
        self._tree_emitted = np.zeros(len(space.settings))
        self._has_drifted = False
        self._groups = RequestGroups(space)
        self._has_shadow = False
        self._long = self._nothing()
        self._updates = self._drifts = 0.0
        self._cut = self._weighed = 0.0
        """Tokens that were accepted and not emitted; all accepted ones, each times its depth."""
        self._dispersions = deque([1.0] * DISPERSION_INTERVALS, DISPERSION_INTERVALS)
        self._extra_ranks = _extra_ranks(space, self._depths)

    def update(
        self,
        cells: Iterable[TelemetryCell],
        shadow: ShadowAcceptance | None,
        interval_s: float,
        groups: Sequence[AcceptanceGroup] = (),
    ) -> None:
        """Take in what an interval has counted; cells whose counts cannot be are left out."""
        self._has_drifted, self._has_shadow = False, shadow is not None
        self._groups.update(groups, interval_s)
        cells = [
            cell
            for cell in cells
            if cell.request_steps and cell.num_speculative_tokens and _is_possible(cell)
        ]
        self._learn_ends(cells, interval_s)
        counts = self._of_cells(cells) if shadow is None else self._of_shadow(shadow)
        if counts.reached[0, 0] <= 0:
            return
        kept = 0.5 ** (interval_s / LONG_HALF_LIFE_S)
        counts.members[: len(groups)] = [group.request_steps for group in groups]
        self._long = self._long.scaled(np.full(self._depths, kept)).plus(counts)
        self._updates, self._drifts = kept * self._updates + 1.0, kept * self._drifts
        self._learn_dispersion(counts)
        self._recent.append(counts)
        if len(self._recent) > RECENT_INTERVALS:
            self._past = self._past.plus(self._recent.popleft())
        age = np.minimum(interval_s / HALF_LIFE_S, counts.reached[0] / HALF_TRIALS)
        self._past = self._past.scaled(0.5**age)
        self._count_trees(cells, interval_s)
        self._forget_after_drift()

    def estimate(self) -> AcceptanceEstimate:
        total = self._total()
        q = _conditionals(total)
        by_setting = self._conditionals_of_settings(q)
        survival, members = np.cumprod(by_setting, axis=1), _share(total.members)
        share = self._late_share
        if share > 0.0:
            long = np.cumprod(self._conditionals_of_settings(_conditionals(self._long)), axis=1)
            survival += share * (long - survival)
            members += share * (_share(self._long.members) - members)
        depths = np.arange(self._depths)
        survival[depths[None, :] >= self._space.depth[:, None]] = 0.0
        tree_ratio = self._tree_ratio(1.0 + survival.sum(axis=1))
        survival *= self._not_ended(depths)
        emitted = 1.0 + survival.sum(axis=1)
        reached = total.reached[0]
        log_q_var = (1.0 - q[0]) / np.maximum(q[0], 1e-3) / (reached + PRIOR_TRIALS) * self._dispersion
        of_groups = self._groups.ratio(members, at_full_depth=self._has_shadow)
        tails = np.cumsum(survival[:, ::-1], axis=1)[:, ::-1] / emitted[:, None]
        return AcceptanceEstimate(
            emitted=emitted * tree_ratio * of_groups,
            drafted=_drafted(total, self._space),
            gradient=tails,
            log_q_var=log_q_var,
            survival=np.cumprod(q[0]),
            trials=float(reached[0]),
            has_drifted=self._has_drifted,
        )

    @property
    def _late_share(self) -> float:
        """Of the time: what the newest counts tell has just ended, as drift is acted on an update late. There
        the long mean is what may be expected. One change alone is followed all the way."""
        return max(self._drifts - 1.0, 0.0) / max(self._updates, 1.0)

    @property
    def _dispersion(self) -> float:
        """So many trials tell as much as one would if all were independent. Drift, which is rare, moves no
        median."""
        return max(median(self._dispersions), 1.0)

    def _learn_dispersion(self, counts: _Counts) -> None:
        """Texts come in stretches: the trials of an interval agree more than chance would have them."""
        found = dispersion_of(counts.first_rank, self._total().first_rank)
        if found is not None:
            self._dispersions.append(found)

    def _learn_ends(self, cells: Iterable[TelemetryCell], interval_s: float) -> None:
        """Accepted tokens behind an answer's last one are not emitted. An answer ends anywhere in a step with
        the same chance, so the share that is lost at a depth is proportional to the depth."""
        kept = 0.5 ** (interval_s / LONG_HALF_LIFE_S)
        self._cut, self._weighed = kept * self._cut, kept * self._weighed
        for cell in cells:
            cut = cell.request_steps + sum(cell.accepted_at) - cell.emitted_tokens
            self._cut += max(cut, 0)
            self._weighed += sum(depth * count for depth, count in enumerate(cell.accepted_at, 1))

    def _not_ended(self, depths: Ints) -> Floats:
        """[depth]: of the accepted tokens, the share that is emitted."""
        lost_ratio = self._cut / (self._weighed + ENDS_PRIOR_TOKENS)
        found: Floats = np.maximum(1.0 - lost_ratio * (depths + 1.0), 0.0)
        return found

    def _nothing(self) -> _Counts:
        return _Counts.none(self._ranks, self._depths)

    def _total(self) -> _Counts:
        total = self._past
        for counts in self._recent:
            total = total.plus(counts)
        return total

    def _of_cells(self, cells: Iterable[TelemetryCell]) -> _Counts:
        counts = self._nothing()
        for cell in cells:
            depth = min(cell.num_speculative_tokens, self._depths)
            accepted = by_depth(cell.accepted_at, depth)
            counts.watched[:depth] += cell.request_steps
            counts.drafted[:depth] += by_depth(cell.drafted_at, depth)
            if cell.tree_topk > 1 and not cell.accepted_rank_at:
                continue
            reached = np.concatenate(([cell.request_steps], accepted[:-1]))
            for rank in range(min(cell.tree_topk, self._ranks)):
                hits = accepted if cell.tree_topk == 1 else _of_rank(cell, rank, depth)
                counts.reached[rank, :depth] += reached
                counts.hits[rank, :depth] += hits
        return counts

    def _of_shadow(self, shadow: ShadowAcceptance) -> _Counts:
        """Drafts that were followed whether they were verified or not tell all depths at every setting."""
        counts = self._nothing()
        depth = min(len(shadow.accepted_at), self._depths)
        accepted = by_depth(shadow.accepted_at, depth)
        if depth and shadow.drafts and _never_rises((shadow.drafts, *shadow.accepted_at)):
            counts.reached[0, :depth] = np.concatenate(([shadow.drafts], accepted[:-1]))
            counts.hits[0, :depth] = accepted
            counts.watched[:depth] = shadow.drafts
            counts.drafted[:depth] = by_depth(shadow.drafted_at, depth)
        return counts

    def _count_trees(self, cells: Iterable[TelemetryCell], interval_s: float) -> None:
        for cell in cells:
            at = self._space.number_of(cell)
            if at is None or cell.tree_topk == 1:
                continue
            kept = 0.5 ** min(interval_s / HALF_LIFE_S, cell.request_steps / TREE_PRIOR_STEPS)
            self._tree_steps[at] = kept * self._tree_steps[at] + cell.request_steps
            emitted = cell.request_steps + sum(cell.accepted_at)
            self._tree_emitted[at] = kept * self._tree_emitted[at] + emitted

    def _tree_ratio(self, modelled: Floats) -> Floats:
        """Measured against modelled tokens of each tree, drawn to 1 where there are few steps."""
        ratio = (self._tree_emitted + TREE_PRIOR_STEPS * modelled) / (
            (self._tree_steps + TREE_PRIOR_STEPS) * modelled
        )
        return np.where(self._space.topk > 1, ratio, 1.0)

    def _forget_after_drift(self) -> None:
        """Keep only the newest intervals where they contradict what was before them."""
        recent, dispersion = list(self._recent), self._dispersion
        for newest in range(1, len(recent) + 1):
            fresh, before = self._nothing(), self._past
            for counts in recent[-newest:]:
                fresh = fresh.plus(counts)
            for counts in recent[:-newest]:
                before = before.plus(counts)
            if has_drifted(fresh.first_rank, before.first_rank, dispersion):
                self._past, self._recent = self._nothing(), deque(recent[-newest:])
                self._tree_steps[:] = self._tree_emitted[:] = 0.0
                self._has_drifted = True
                self._drifts += 1.0
                return

    def _conditionals_of_settings(self, q: Floats) -> Floats:
        """[setting, depth]: chance that one of the setting's drafts at a depth is accepted."""
        summed = np.cumsum(q, axis=0)
        depths = np.arange(self._depths)
        found: Floats = np.minimum(summed[self._extra_ranks, depths[None, :]], 1.0)
        return found


def _share(members: Floats) -> Floats:
    total = float(members.sum())
    return members / total if total > 0.0 else members


def _is_possible(cell: TelemetryCell) -> bool:
    """Nothing is accepted more often than what comes before it, nor by more ranks than it was accepted."""
    by_rank = zip(cell.accepted_rank_at, cell.accepted_at, strict=False)
    return _never_rises((cell.request_steps, *cell.accepted_at)) and all(
        sum(ranks) <= accepted for ranks, accepted in by_rank
    )


def _never_rises(counts: tuple[int, ...]) -> bool:
    return all(below <= above for above, below in pairwise(counts))


def _extra_ranks(space: Space, depths: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """[setting, depth]: how many siblings of the first choice a tree has there.

    Its nodes beyond one a depth are taken to be where they are worth most, at the smallest depths.
    """
    ranks = np.zeros((len(space.settings), depths), np.int64)
    for i, setting in enumerate(space.settings):
        left = setting.width_tokens - 1 - setting.num_speculative_tokens
        for j in range(setting.num_speculative_tokens):
            ranks[i, j] = min(setting.tree_topk - 1, max(left, 0))
            left -= ranks[i, j]
    return ranks


def _conditionals(counts: _Counts) -> Floats:
    """[rank, depth]: share of accepted among reached; each depth begins at the rate of the one before."""
    depths = counts.reached.shape[1]
    q, hit_before = [], [0.0] * depths
    for rank, (hits, reached) in enumerate(zip(counts.hits.tolist(), counts.reached.tolist(), strict=True)):
        ratio, row = FIRST_PRIOR_RATIO, []
        for j in range(depths):
            if rank:
                ratio = RANK_PRIOR_RATIO * (1.0 - hit_before[j])
            ratio = (hits[j] + PRIOR_TRIALS * ratio) / (reached[j] + PRIOR_TRIALS)
            row.append(ratio)
            hit_before[j] += ratio
        q.append(row)
    return np.array(q)


def _drafted(counts: _Counts, space: Space) -> Floats:
    """Expected drafted tokens of a request-step: a proposer may find fewer than it is asked for."""
    share, ratio = [], 1.0
    for tokens, could in zip(counts.drafted.tolist(), counts.watched.tolist(), strict=True):
        if could > 0:
            ratio = min(tokens / could, ratio)
        share.append(ratio)
    cumulated = np.concatenate(([0.0], np.cumsum(share)))
    return np.where(space.topk > 1, space.width - 1.0, cumulated[space.depth])


def _of_rank(cell: TelemetryCell, rank: int, depth: int) -> Floats:
    return by_depth(tuple(ranks[rank] if rank < len(ranks) else 0 for ranks in cell.accepted_rank_at), depth)
