"""Follow drafts against the tokens that are emitted later, whether they were verified or not.

A draft of the full length costs a suffix index microseconds; verifying it costs the target. Comparing it
with what the target emits anyway gives the acceptance of every length, also while speculation is off.
For a one-hot draft this is unbiased under any temperature: the draft comes true with the target's own
probability, which is the probability of its acceptance (Leviathan et al. 2023, section 2.3).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.contract.telemetry import ShadowAcceptance
from specctl.engine.step_counters import at_least

__all__ = ["ShadowFollower"]

Ints = npt.NDArray[np.int32]
_NONE = -1


@njit(cache=True, nogil=True)
def _emit(drafts, lengths, accepted, drafted_histogram, accepted_histogram, slots, tokens, offsets):
    for i in range(slots.size):
        slot = slots[i]
        for j in range(offsets[i], offsets[i + 1]):
            if lengths[slot] == _NONE:
                break
            at = accepted[slot]
            if at == lengths[slot] or drafts[slot, at] != tokens[j]:
                drafted_histogram[lengths[slot]] += 1
                accepted_histogram[at] += 1
                lengths[slot] = _NONE
            else:
                accepted[slot] = at + 1


@njit(cache=True, nogil=True)
def _follow(drafts, lengths, accepted, slots, tokens, new_lengths):
    for i in range(slots.size):
        slot = slots[i]
        if lengths[slot] != _NONE:
            continue
        lengths[slot] = new_lengths[i]
        accepted[slot] = 0
        for j in range(new_lengths[i]):
            drafts[slot, j] = tokens[i, j]


class ShadowFollower:
    """One draft at a time for each slot, 0 to max_requests - 1. Used from one thread."""

    def __init__(self, max_requests: int, num_speculative_tokens_max: int) -> None:
        size = num_speculative_tokens_max + 1
        self._drafts = np.zeros((max_requests, num_speculative_tokens_max), np.int32)
        self._lengths = np.full(max_requests, _NONE, np.int32)
        self._accepted = np.zeros(max_requests, np.int32)
        self._drafted_histogram = np.zeros(size, np.int64)
        self._accepted_histogram = np.zeros(size, np.int64)

    def emit(self, slots: Ints, tokens: Ints, offsets: Ints) -> None:
        """The target emitted tokens[offsets[i]:offsets[i + 1]] for slots[i]."""
        _emit(
            self._drafts, self._lengths, self._accepted, self._drafted_histogram, self._accepted_histogram,
            slots, tokens, offsets,
        )  # fmt: skip

    def follow(self, slots: Ints, tokens: Ints, lengths: Ints) -> None:
        """tokens[i, :lengths[i]], int32[n, width], is the full draft of slots[i], possibly empty.

        A slot whose draft is still under way keeps it.
        """
        _follow(self._drafts, self._lengths, self._accepted, slots, tokens, lengths)

    def forget(self, slot: int) -> None:
        """The request ended; a draft still under way is not counted."""
        self._lengths[slot] = _NONE

    def counts(self) -> ShadowAcceptance:
        return ShadowAcceptance(
            drafts=int(self._drafted_histogram.sum()),
            drafted_at=at_least(self._drafted_histogram.tolist()),
            accepted_at=at_least(self._accepted_histogram.tolist()),
        )
