"""Which entries of a row may be kept, from the largest of each of its parts: few parts are read again."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_law.runs import RUN_BITS, RUNS, listed_runs, loaded_runs

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
def _read_parts(
    row_ptr, columns, taken_ptr, taken, begin, cut, PART: tl.constexpr, RUN: tl.constexpr
):  # fmt: skip
    """(first columns of the runs of some of the ``taken`` parts, their entries at the cut or above, -inf for
    the others)."""
    run = tl.arange(0, RUNS)
    place = begin + run * RUN // PART
    part = tl.load(taken_ptr + place, mask=place < taken, other=0)
    first_column = part * PART + run * RUN % PART
    value = loaded_runs(row_ptr, columns, first_column, place < taken, RUN)
    return first_column, tl.where(value >= cut, value, float("-inf"))


@triton.jit
def listed_of_parts(
    row_ptr, columns, taken_ptr, taken, cut, short_ptr, short_ids_ptr, PART: tl.constexpr, SHORT: tl.constexpr
):  # fmt: skip
    """How many entries of the ``taken`` parts are at the cut or above. They and their columns, in the order
    of the parts, the first ``SHORT`` of them, go to the short list."""
    RUN: tl.constexpr = RUN_BITS // row_ptr.dtype.element_ty.primitive_bitwidth
    AT_ONCE: tl.constexpr = RUNS * RUN // PART
    found = taken * 0
    next_column, next_value = _read_parts(row_ptr, columns, taken_ptr, taken, 0, cut, PART, RUN)
    for begin in range(0, taken, AT_ONCE):
        first_column, value = next_column, next_value
        next_column, next_value = _read_parts(
            row_ptr, columns, taken_ptr, taken, begin + AT_ONCE, cut, PART, RUN
        )
        found = listed_runs(value, first_column, found, SHORT, short_ptr, short_ids_ptr, RUN)
    return found
