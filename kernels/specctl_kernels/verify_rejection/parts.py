"""Which entries of a row may be kept, from the largest of each of its parts: few parts are read again."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["cut_of_parts", "listed_of_parts"]

_PASSES_MOST = tl.constexpr(8)
_CLOSE = tl.constexpr(16)
"""Parts more than needed that are read sooner than another pass is made."""


@triton.jit
def cut_of_parts(best, weight, bound, top, need, goal):
    """A value that ``need`` parts reach, or parts of a mass of ``goal``, and hardly more; the bound where
    there are not so many. best float32[PARTS], the largest entry of each, weight its mass."""
    step = tl.arange(0, 4)
    first = tl.min(tl.where(best > float("-inf"), best, top), axis=0)
    first = tl.maximum(first, bound)
    high = top
    pivots = first + (high - first) * (step * 0.25)
    cut = bound
    most = need * 0 + best.shape[0]
    fewest = need * 0
    passes = need * 0
    while passes < _PASSES_MOST:
        is_in = best[None, :] >= pivots[:, None]
        counts = tl.sum(is_in.to(tl.int32), axis=1)
        masses = tl.sum(tl.where(is_in, weight[None, :], 0.0), axis=1)
        is_reached = (counts >= need) | (masses >= goal)
        cut = tl.maximum(cut, tl.max(tl.where(is_reached, pivots, float("-inf")), axis=0))
        high = tl.minimum(high, tl.min(tl.where(is_reached, float("inf"), pivots), axis=0))
        most = tl.minimum(most, tl.min(tl.where(is_reached, counts, most), axis=0))
        fewest = tl.maximum(fewest, tl.max(tl.where(is_reached, 0, counts), axis=0))
        is_any = tl.max(is_reached.to(tl.int32), axis=0)
        passes += 1
        is_close = (most - fewest <= _CLOSE) | (cut >= high)
        passes = tl.where(((passes == 1) & (is_any == 0)) | is_close, _PASSES_MOST, passes)
        pivots = cut + (high - cut) * ((step + 1) * 0.2)
    return cut


@triton.jit
def _part_at(row_ptr, columns, taken_ptr, taken, begin, PART: tl.constexpr, AT_ONCE: tl.constexpr):
    """(numbers of some of the ``taken`` parts, their entries [AT_ONCE, PART]), -inf behind the last."""
    place = begin + tl.arange(0, AT_ONCE)
    is_part = place < taken
    part = tl.load(taken_ptr + place, mask=is_part, other=0)
    column = part[:, None] * PART + tl.arange(0, PART)[None, :]
    value = tl.load(row_ptr + column, mask=is_part[:, None] & (column < columns), other=float("-inf"))
    return part, value.to(tl.float32)


@triton.jit
def listed_of_parts(
    row_ptr, columns, taken_ptr, taken, cut, short_ptr, short_ids_ptr,
    PART: tl.constexpr, AT_ONCE: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """How many entries of the ``taken`` parts are at the cut or above. They and their columns, in the order
    of the parts, the first ``SHORT`` of them, go to the short list.

    Most parts have one such entry or two: one of each part is written at a time.
    """
    offset = tl.arange(0, PART)[None, :]
    found = taken * 0
    next_part, next_value = _part_at(row_ptr, columns, taken_ptr, taken, 0, PART, AT_ONCE)
    for begin in range(0, taken, AT_ONCE):
        part, value = next_part, next_value
        next_part, next_value = _part_at(row_ptr, columns, taken_ptr, taken, begin + AT_ONCE, PART, AT_ONCE)
        here = tl.sum((value >= cut).to(tl.int32), axis=1)
        goal = found + tl.cumsum(here, axis=0) - here
        most = tl.where(found < SHORT, tl.max(here, axis=0), 0)
        found += tl.sum(here, axis=0)
        number = taken * 0
        while number < most:
            first = tl.min(tl.where(value >= cut, offset, PART), axis=1)
            is_first = offset == first[:, None]
            entry = tl.max(tl.where(is_first, value, float("-inf")), axis=1)
            value = tl.where(is_first, float("-inf"), value)
            is_one = (number < here) & (goal + number < SHORT)
            tl.store(short_ptr + goal + number, entry, mask=is_one)
            tl.store(short_ids_ptr + goal + number, part * PART + first, mask=is_one)
            number += 1
    return found
