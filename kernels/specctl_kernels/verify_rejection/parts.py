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
def listed_of_parts(
    row_ptr, columns, taken_ptr, taken, cut, short_ptr, short_ids_ptr,
    PART: tl.constexpr, AT_ONCE: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """How many entries of the ``taken`` parts are at the cut or above. They and their columns, in the order
    of the parts, the first ``SHORT`` of them, go to the short list."""
    offset = tl.arange(0, PART)
    found = taken * 0
    for begin in tl.range(0, taken, AT_ONCE, num_stages=3):
        place = begin + tl.arange(0, AT_ONCE)
        is_part = place < taken
        part = tl.load(taken_ptr + place, mask=is_part, other=0)
        column = part[:, None] * PART + offset[None, :]
        value = tl.load(row_ptr + column, mask=is_part[:, None] & (column < columns), other=float("-inf")).to(
            tl.float32
        )
        is_in = value >= cut
        here = tl.sum(is_in.to(tl.int32), axis=1)
        before = found + tl.cumsum(here, axis=0) - here
        goal = before[:, None] + tl.cumsum(is_in.to(tl.int32), axis=1) - 1
        is_in = is_in & (goal < SHORT)
        tl.store(short_ptr + goal, value, mask=is_in)
        tl.store(short_ids_ptr + goal, column, mask=is_in)
        found += tl.sum(here, axis=0)
    return found
