"""Buckets without traffic that need no new choice yet. Pure.

Their settings serve nobody now and follow the estimates at leisure: the guard rails let one change once in
5 s. So a settled one is weighed again within that time, a few at each look, the oldest first. Whatever would
make it another question (traffic, another table, policy or range of candidates, a drift) asks at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from specctl.policy.base import Policy
from specctl.types import BucketChoice, Reason

__all__ = ["NO_REST", "Rest"]

REST_S = 5.0
# Settled: the next look tells the same, unless the estimates move a lot.
_SETTLED = (Reason.NO_BETTER, Reason.WITHIN_NOISE, Reason.OFF_NO_GAIN, Reason.SET_BY_POLICY)


@dataclass(frozen=True, slots=True)
class Rest:
    """Choices of idle buckets as of ``weighed_s``, by upper end, and what they were made by."""

    policy: Policy | None = None
    candidates: tuple[int, ...] = ()
    time_s: float = 0.0
    known: Mapping[int, tuple[float, BucketChoice]] = field(default_factory=dict)

    def standing(
        self,
        policy: Policy,
        candidates: tuple[int, ...],
        base: Mapping[int, int],
        active: Iterable[int],
        time_s: float,
    ) -> dict[int, BucketChoice]:
        """The choices that need not be made now.

        Args:
            base: num_speculative_tokens that choices are weighed against, by upper end.
            active: upper ends of the buckets with traffic.
        """
        elapsed_s = time_s - self.time_s
        is_same = (policy, candidates) == (self.policy, self.candidates)
        if not is_same or not 0.0 <= elapsed_s < REST_S:
            return {}
        busy = set(active)
        resting = [
            (weighed_s, upper)
            for upper, (weighed_s, choice) in self.known.items()
            if upper not in busy and base.get(upper) == choice.from_num_speculative_tokens
        ]
        resting.sort()
        due = math.ceil(len(resting) * elapsed_s / REST_S)
        return {upper: self.known[upper][1] for _, upper in resting[due:]}

    def after(
        self,
        policy: Policy,
        candidates: tuple[int, ...],
        choices: Iterable[BucketChoice],
        standing: Mapping[int, BucketChoice],
        time_s: float,
    ) -> Rest:
        """With one look's choices, of which ``standing`` were made before."""
        known = {}
        for choice in choices:
            upper = choice.decode_batch_to
            if upper in standing:
                known[upper] = self.known[upper]
            elif not choice.is_active and not choice.is_change and choice.reason in _SETTLED:
                known[upper] = time_s, choice
        return Rest(policy, candidates, time_s, known)


NO_REST = Rest()
