"""Counters of what verification kept, by class and position, added to on the device."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_kernel"]


@triton.jit
def add_kernel(
    counts_ptr,  # int32[R]
    starts_ptr,  # int32[R + 1]
    drafts_ptr,  # integer[N] or None
    classes_ptr,  # int32[R] or None
    requests,
    steps_ptr, not_finite_ptr,  # int64[classes]
    reached_ptr, accepted_ptr,  # int64[classes, positions]
    positions,
    REQUESTS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """One program for each class: no two write the same counter, so the sums need no atomics."""
    own = tl.program_id(0)
    place = tl.arange(0, POSITIONS)
    is_place = place < positions
    steps = tl.zeros((REQUESTS,), tl.int64)
    not_finite = tl.zeros((REQUESTS,), tl.int64)
    reached = tl.zeros((POSITIONS,), tl.int64)
    accepted = tl.zeros((POSITIONS,), tl.int64)
    for begin in tl.range(0, requests, REQUESTS):
        req = begin + tl.arange(0, REQUESTS)
        is_own = req < requests
        if classes_ptr is not None:
            is_own = is_own & (tl.load(classes_ptr + req, mask=is_own, other=-1) == own)
        count = tl.load(counts_ptr + req, mask=is_own, other=0)
        start = tl.load(starts_ptr + req, mask=is_own, other=0)
        drafts = tl.load(starts_ptr + req + 1, mask=is_own, other=0) - start - 1
        steps += (is_own & (count > 0)).to(tl.int64)
        not_finite += (is_own & (count < 0)).to(tl.int64)
        # Of count emitted tokens, the last is no draft: count - 1 were kept, and one more was looked at.
        is_reached = is_place[None, :] & (place[None, :] < tl.minimum(drafts, count)[:, None])
        if drafts_ptr is not None:
            at = start.to(tl.int64)[:, None] + place[None, :] + 1
            is_reached = is_reached & (tl.load(drafts_ptr + at, mask=is_reached, other=-1) >= 0)
        is_accepted = is_reached & (place[None, :] + 1 < count[:, None])
        reached += tl.sum(is_reached.to(tl.int64), axis=0)
        accepted += tl.sum(is_accepted.to(tl.int64), axis=0)
    tl.store(steps_ptr + own, tl.load(steps_ptr + own) + tl.sum(steps, axis=0))
    tl.store(not_finite_ptr + own, tl.load(not_finite_ptr + own) + tl.sum(not_finite, axis=0))
    at_place = own.to(tl.int64) * positions + place
    reached += tl.load(reached_ptr + at_place, mask=is_place, other=0)
    accepted += tl.load(accepted_ptr + at_place, mask=is_place, other=0)
    tl.store(reached_ptr + at_place, reached, mask=is_place)
    tl.store(accepted_ptr + at_place, accepted, mask=is_place)
