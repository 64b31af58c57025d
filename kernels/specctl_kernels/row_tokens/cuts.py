"""Whether an entry is one that top-k, top-p and min-p keep, without the whole kept set."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_tokens.lanes import read_over
from specctl_kernels.row_law.judge import surely_kept
from specctl_kernels.row_law.threshold import bound_of_min_p, kept_by_reading

__all__ = ["first_kept"]


@triton.jit
def _surely_cut(value, best, top, scale, total, top_k, top_p, min_p, columns):
    """1 where an entry is not kept by what the lanes' largest alone tell: with those above it there are k, or
    they weigh top-p of everything. The margin is for rounding. All of it where min-p alone cuts."""
    is_over = best[:, None] > value[None, :]
    count = tl.sum(is_over.to(tl.int32), axis=0)
    mass = tl.sum(tl.where(is_over, tl.exp2((best - top) * scale)[:, None], 0.0), axis=0)
    most = tl.where((top_k > 0) & (top_k < columns), top_k, columns)
    enough = tl.where(top_p < 1, top_p * total, float("inf"))
    bound = bound_of_min_p(top, scale, tl.where(min_p > 0, min_p, 1.0))
    least = tl.where(min_p > 0, bound, float("-inf"))
    return ((count >= most) | (mass * 0.9999 > enough) | (value < least)).to(tl.int32)


@triton.jit
def first_kept(
    row_ptr, columns, value, best, top, scale, total, top_k, top_p, min_p, taken_ptr, list_ptr,
    CANDIDATES: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, TILES: tl.constexpr,
    LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """int32: the number of the first of the entries ``value`` (float32[CANDIDATES]) that is kept, else
    ``CANDIDATES``. An entry is kept if fewer than k lie above it, and of the mass that min-p and top-k leave
    less than top-p: what is above it is read, lanes without any such are not."""
    number = tl.arange(0, CANDIDATES)
    is_top_k = (top_k > 0) & (top_k < columns)
    is_cut = _surely_cut(value, best, top, scale, total, top_k, top_p, min_p, columns)
    weight = tl.exp2((value - top) * scale)
    is_kept = surely_kept(value, top, weight, total, top_k, top_p, min_p, columns)
    if (is_top_k == 0) & (top_p >= 1):
        is_kept = 1 - is_cut
    at = tl.min(tl.where(is_cut != 0, CANDIDATES, number), axis=0)
    while tl.max(tl.where(number == at, 1 - is_kept, 0), axis=0) != 0:
        pivot = tl.max(tl.where(number == at, value, float("-inf")), axis=0)
        if (top_p < 1) & (is_top_k | (min_p > 0)):
            threshold, _kept = kept_by_reading(
                row_ptr, columns, list_ptr, top, scale, total, top_k, top_p, min_p, LIST, MOST_PASSES
            )
            is_cut = (value < threshold).to(tl.int32)
            is_kept = 1 - is_cut
        else:
            count, mass = read_over(
                row_ptr, columns, best, pivot, top, scale, taken_ptr, LANES, RUN, TILES
            )
            goal = tl.maximum(top_p.to(tl.float64) * total.to(tl.float64), 1e-30)
            is_in = ((is_top_k == 0) | (count < top_k)) & ((top_p >= 1) | (mass < goal))
            # The kept set has all from some value on.
            is_kept = tl.where(value >= tl.where(is_in, pivot, float("inf")), 1, is_kept)
            is_cut = tl.where(value <= tl.where(is_in, float("-inf"), pivot), 1, is_cut)
        at = tl.min(tl.where(is_cut != 0, CANDIDATES, number), axis=0)
    return at
