"""The entries of a row that top-k, top-p and min-p keep: by its parts, else by reading it."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_law.threshold import LOWEST, bound_of_min_p, bound_of_top_p, kept_by_reading
from specctl_kernels.verify_rejection.parts import cut_of_parts, listed_of_parts

__all__ = ["truncation_of"]

_AT_ONCE = tl.constexpr(16)
"""Entries of a list that are loaded together: each alone would be waited for."""
_FEW = tl.constexpr(64)
"""Parts that are read first where a nucleus seems to need more of them than that."""
_TRIES = tl.constexpr(5)


@triton.jit
def _bound_of(top, scale, columns, top_k, top_p, min_p):
    """A value under which none is kept, nor counts for what is."""
    bound = tl.minimum(top, LOWEST)
    is_top_k = (top_k > 0) & (top_k < columns)
    if min_p > 0:
        bound = tl.maximum(bound, bound_of_min_p(top, scale, min_p))
    elif (top_p < 1) & (is_top_k == 0):
        bound = tl.maximum(bound, bound_of_top_p(top, scale, columns, top_p))
    return bound


@triton.jit
def _sort(list_ptr, sorted_ptr, found, MOST: tl.constexpr):
    """Puts the ``found`` values of a list, ``MOST`` at most, where as many are as come before it: the largest
    come first. sorted_ptr: int32, their bits."""
    index = tl.arange(0, MOST)
    value = tl.load(list_ptr + index, mask=index < found, other=float("-inf"))
    rank = tl.zeros((MOST,), tl.int32)
    for begin in range(0, found, _AT_ONCE):
        for behind in tl.static_range(_AT_ONCE):
            other_at = begin + behind
            other = tl.load(list_ptr + other_at, mask=other_at < found, other=float("-inf"))
            rank += ((other > value) | ((other == value) & (other_at < index))).to(tl.int32)
    tl.store(sorted_ptr + rank, value.to(tl.int32, bitcast=True), mask=index < found)


@triton.jit
def _sorted(list_ptr, sorted_ptr, found, SHORT: tl.constexpr):
    """The ``found`` values of a list, the largest first, -inf behind them."""
    if found <= SHORT // 2:
        _sort(list_ptr, sorted_ptr, found, SHORT // 2)
    else:
        _sort(list_ptr, sorted_ptr, found, SHORT)
    tl.debug_barrier()
    index = tl.arange(0, SHORT)
    value = tl.load(sorted_ptr + index, mask=index < found, other=0).to(tl.float32, bitcast=True)
    return tl.where(index < found, value, float("-inf"))


@triton.jit
def _ranked_cut(
    list_ptr, sorted_ptr, found, is_whole, top, total, scale, columns, top_k, top_p, min_p,
    SHORT: tl.constexpr,
):  # fmt: skip
    """As ``_kept_by_parts``, of the ``found`` values in a list, which are all of a row from some value on.
    ``is_whole``: nothing that matters is left out."""
    rank = tl.arange(0, SHORT)
    value = tl.load(list_ptr + rank, mask=rank < found, other=float("-inf"))
    is_top_k = (top_k > 0) & (top_k < columns)
    is_alone = (is_top_k == 0) & (min_p <= 0)
    goal = total.to(tl.float64) * top_p.to(tl.float64)
    mass = tl.sum(tl.exp2((value - top) * scale).to(tl.float64), axis=0)
    is_right = is_whole | (is_top_k & (found >= top_k)).to(tl.int32)
    is_right = is_right | (is_alone & (mass >= goal)).to(tl.int32)
    least = tl.min(tl.where(rank < found, value, top), axis=0)
    if (is_right != 0) & (is_top_k | (top_p < 1)):
        value = _sorted(list_ptr, sorted_ptr, found, SHORT)
        if is_top_k & (found > top_k):
            least = tl.max(tl.where(rank == top_k - 1, value, float("-inf")), axis=0)
        weight = tl.where(value >= least, tl.exp2((value - top) * scale), 0.0).to(tl.float64)
        mass = tl.sum(weight, axis=0)
        if top_p < 1:
            goal = tl.where(is_alone, goal, mass * top_p.to(tl.float64))
            # A value is cut by what lies above it alone, by which ties are kept; a goal of 0 is reached by
            # the largest.
            is_in = (tl.cumsum(weight, axis=0) - weight < tl.maximum(goal, 1e-30)) & (weight > 0)
            least = tl.min(tl.where(is_in, value, top), axis=0)
            mass = tl.sum(tl.where(value >= least, weight, 0.0), axis=0)
    return least, mass.to(tl.float32), is_right


@triton.jit
def _kept_by_parts(
    row_ptr, columns, best_ptr, parts, taken_ptr, short_ptr, short_ids_ptr,
    top, scale, total, top_k, top_p, min_p,
    PARTS: tl.constexpr, PART: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """As ``truncation_of``; what is -1 here tells that the parts do not tell."""
    bound = _bound_of(top, scale, columns, top_k, top_p, min_p)
    index = tl.arange(0, PARTS)
    best = tl.load(best_ptr + index, mask=index < parts, other=float("-inf"))
    weight = tl.exp2((best - top) * scale)
    is_top_k = (top_k > 0) & (top_k < columns)
    is_alone = (is_top_k == 0) & (min_p <= 0)
    # So many parts have the k largest. The largest of a part may be but some of its mass.
    need = tl.where(is_top_k, top_k, _FEW)
    need = tl.minimum(need, tl.sum((best > float("-inf")).to(tl.int32), axis=0))
    goal = tl.where(is_alone, total * top_p * 1.0001, float("inf"))
    is_fixed = (is_top_k == 0) & (min_p > 0)
    need = tl.where(is_fixed, PARTS + 1, need)
    threshold = top
    kept = total
    listed = top_k * 0 - 1
    too_low = top * 0.0 + float("-inf")  # from here on there are too many,
    too_high = top * 0.0 + float("inf")  # and from here on too few
    tries = tl.where(is_top_k & (top_k > SHORT), _TRIES, top_k * 0)
    while tries < _TRIES:
        cut = too_low
        if (too_low == float("-inf")) | (too_high == float("inf")):
            cut = cut_of_parts(best, weight, bound, top, need, goal)
        else:
            cut += (too_high - too_low) * 0.5
        is_taken = best >= cut
        taken = tl.sum(is_taken.to(tl.int32), axis=0)
        found = taken  # at least
        if taken <= SHORT:
            tl.store(taken_ptr + tl.cumsum(is_taken.to(tl.int32), axis=0) - 1, index, mask=is_taken)
            tl.debug_barrier()
            found = listed_of_parts(
                row_ptr, columns, taken_ptr, taken, cut, short_ptr, short_ids_ptr, PART, SHORT
            )
            tl.debug_barrier()
        tries += 1
        if found > SHORT:
            too_low = cut
            need = need // 4
            tries = tl.where(is_fixed, _TRIES, tries)
        else:
            threshold, kept, is_right = _ranked_cut(
                short_ptr, taken_ptr, found, (cut <= bound).to(tl.int32), top, total, scale, columns,
                top_k, top_p, min_p, SHORT,
            )  # fmt: skip
            listed = tl.where(is_right != 0, found, listed)
            too_high = cut
            need = need * 4
            # Beside the largest of the parts that much lies above the cut, and above any lower one.
            goal -= kept - tl.sum(tl.where(is_taken, weight, 0.0), axis=0)
            # What a nucleus lacks takes so many more, each of them under the cut.
            most = (SHORT - found) * tl.exp2(tl.where(is_alone, cut - top, 0.0) * scale)
            is_hopeless = is_alone & (total * top_p - kept > most)
            tries = tl.where((is_right != 0) | is_hopeless, _TRIES, tries)
    return threshold, kept, listed


@triton.jit
def truncation_of(
    logits_ptr, logits_stride, columns, parts_ptr, parts, taken_ptr, short_ptr, short_ids_ptr, lists_ptr,
    at, place, top, scale, total, top_k, top_p, min_p,
    PARTS: tl.constexpr, PART: tl.constexpr, SHORT: tl.constexpr, LIST: tl.constexpr,
    MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """(threshold, mass of the values at it or above, how many entries the short list holds, -1 where it took
    a read of the row) of row ``at``, with what ``launch.scratch_of`` has at ``place`` (int64 both). The list
    holds all of the row from the threshold on, in the order of their columns, and others."""
    row_ptr = logits_ptr + at * logits_stride
    threshold, kept, listed = _kept_by_parts(
        row_ptr, columns, parts_ptr + at * parts, parts, taken_ptr + place * SHORT, short_ptr + place * SHORT,
        short_ids_ptr + place * SHORT, top, scale, total, top_k, top_p, min_p, PARTS, PART, SHORT,
    )  # fmt: skip
    if listed < 0:
        threshold, kept = kept_by_reading(
            row_ptr, columns, lists_ptr + place * LIST, top, scale, total, top_k, top_p, min_p,
            LIST, MOST_PASSES,
        )  # fmt: skip
    return threshold, kept, listed
