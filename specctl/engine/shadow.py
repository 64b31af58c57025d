"""Follow drafts against the tokens that are emitted later, whether they were verified or not.

A draft of the full length costs a suffix index microseconds; verifying it costs the target. Comparing it
with what the target emits anyway gives the acceptance of every length, also while speculation is off.
For a one-hot draft this is unbiased under any temperature: the draft comes true with the target's own
probability, which is the probability of its acceptance (Leviathan et al. 2023, section 2.3).
"""

from __future__ import annotations

from collections.abc import Sequence

from specctl.contract.telemetry import ShadowAcceptance
from specctl.engine.step_counters import at_least

__all__ = ["ShadowFollower"]


class ShadowFollower:
    """One draft at a time for each request. Used from one thread."""

    def __init__(self, num_speculative_tokens_max: int) -> None:
        size = num_speculative_tokens_max + 1
        self._drafted_histogram = [0] * size
        self._accepted_histogram = [0] * size
        self._drafts = 0
        self._followed: dict[str, tuple[list[int], int]] = {}

    def emit(self, request_id: str, tokens: Sequence[int]) -> None:
        """Tokens that the target emitted for a request, in order."""
        followed = self._followed.get(request_id)
        if followed is None:
            return
        draft, accepted = followed
        for token in tokens:
            if accepted == len(draft) or draft[accepted] != token:
                self._drafted_histogram[len(draft)] += 1
                self._accepted_histogram[accepted] += 1
                self._drafts += 1
                del self._followed[request_id]
                return
            accepted += 1
        self._followed[request_id] = (draft, accepted)

    def wants(self, request_id: str) -> bool:
        """True if the request has no draft under way."""
        return request_id not in self._followed

    def follow(self, request_id: str, draft: list[int]) -> None:
        """Start with a draft of the full length that the index allows, possibly empty."""
        self._followed.setdefault(request_id, (draft, 0))

    def forget(self, request_id: str) -> None:
        """The request ended; a draft still under way is not counted."""
        self._followed.pop(request_id, None)

    def counts(self) -> ShadowAcceptance:
        return ShadowAcceptance(
            drafts=self._drafts,
            drafted_at=at_least(self._drafted_histogram),
            accepted_at=at_least(self._accepted_histogram),
        )
