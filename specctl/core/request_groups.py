"""Requests that differ in acceptance: what a setting is worth to all of them together.

A request whose drafts are accepted ends sooner, so that most of those that decode at a time are the others.
The mean of tokens per step weighs every request-step alike. A deeper setting looks better by it than it is:
the easy requests would only end sooner still, and be fewer. In the long run the tokens of every group stay
what they are, and a setting is worth all tokens over all the steps that they take, a harmonic mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specctl.contract.telemetry import AcceptanceGroup
from specctl.core.drift import Trials, has_drifted
from specctl.core.space import Floats, Space, by_depth

__all__ = ["RequestGroups"]

HALF_LIFE_S = 40.0
"""Of a group's acceptance and of its mean tokens per step, whatever the settings were."""
PRIOR_STEPS = 20.0
"""Pseudo-steps at the mean of all groups."""


class RequestGroups:
    """Counts of one server, by group."""

    def __init__(self, space: Space) -> None:
        self._depth = space.depth
        self._deepest = int(space.depth.argmax())
        self._positions = max(int(space.depth.max()), 1)
        self._steps = self._accepted = np.zeros(0)
        self._reached = self._hits = np.zeros((0, self._positions))

    def update(self, groups: Sequence[AcceptanceGroup], interval_s: float) -> None:
        """Take in what an interval has counted."""
        if len(groups) != len(self._steps):
            self._steps = self._accepted = np.zeros(len(groups))
            self._reached = self._hits = np.zeros((len(groups), self._positions))
        if not groups:
            return
        kept = 0.5 ** (interval_s / HALF_LIFE_S)
        if any(has_drifted(_trials(one), past) for one, past in zip(groups, self._past(), strict=True)):
            kept = 0.0
        self._steps = kept * self._steps + [one.request_steps for one in groups]
        self._accepted = kept * self._accepted + [sum(one.accepted_at) for one in groups]
        self._reached = kept * self._reached + [by_depth(one.reached_at, self._positions) for one in groups]
        self._hits = kept * self._hits + [by_depth(one.accepted_at, self._positions) for one in groups]

    def ratio(self, members: Floats, *, at_full_depth: bool) -> Floats:
        """[setting]: what it is worth over its mean of tokens per step; 1 where all requests are alike.

        ``members``: [group], request-steps that the mean was taken over. ``at_full_depth``: it is a mean over
        the steps of a server that always drafts the full length, where the members would be others.
        """
        tokens = members[: len(self._steps)] * self._mean()
        total = float(tokens.sum())
        if total <= 0.0:
            return np.ones(len(self._depth))
        emitted = self._emitted()
        steps = tokens / emitted[:, self._deepest] if at_full_depth else members[: len(tokens)]
        found: Floats = total / (tokens @ (1.0 / emitted)) / (steps / steps.sum() @ emitted)
        return found

    def _emitted(self) -> Floats:
        """[group, setting]: tokens per step."""
        pooled = (self._hits.sum(axis=0) + 0.5) / (self._reached.sum(axis=0) + 1.0)
        q = (self._hits + PRIOR_STEPS * pooled) / (self._reached + PRIOR_STEPS)
        survived = np.cumsum(np.cumprod(np.minimum(q, 1.0), axis=1), axis=1)
        found: Floats = 1.0 + np.pad(survived, ((0, 0), (1, 0)))[:, self._depth]
        return found

    def _mean(self) -> Floats:
        """[group]: tokens per step under the settings that ran."""
        pooled = self._accepted.sum() / max(self._steps.sum(), 1.0)
        found: Floats = 1.0 + (self._accepted + PRIOR_STEPS * pooled) / (self._steps + PRIOR_STEPS)
        return found

    def _past(self) -> list[Trials]:
        hits, reached = self._hits.tolist(), self._reached.tolist()
        return [tuple(zip(*line, strict=True)) for line in zip(hits, reached, strict=True)]


def _trials(group: AcceptanceGroup) -> Trials:
    return tuple(zip(group.accepted_at, group.reached_at, strict=False))
