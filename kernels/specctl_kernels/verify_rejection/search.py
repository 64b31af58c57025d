"""The cuts of the rows that are searched, where so few entries matter that each is held against all."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.dependent_launch import let_next_begin, wait_for_previous
from specctl_kernels.verify_rejection.judge import options_of

__all__ = ["LEVELS", "SEARCHED", "TOLD", "bound_of", "level_of", "ranked_cut", "search_kernel"]

LEVELS = tl.constexpr(6)
SEARCHED = tl.constexpr(3)
"""Rows of a request whose cuts are looked for by many programs at once. Where it needs more, its own program
looks, which takes it ten times as long as all the others."""
TOLD = tl.constexpr(4)
"""Numbers that are kept of a searched row: largest entry, scale, mass, value under which nothing matters."""
_LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest finite float32: -inf is in no set."""
_AT_ONCE = tl.constexpr(16)
"""Entries of a list that are loaded together: each alone would be waited for."""
_SCAN = tl.constexpr(2048)
"""Entries of a list read at a time."""


@triton.jit
def bound_of(top, scale, columns, top_k, top_p, min_p):
    """A value under which none is kept, nor counts for what is."""
    bound = tl.minimum(top, _LOWEST)
    is_top_k = (top_k > 0) & (top_k < columns)
    if min_p > 0:
        bound = tl.maximum(bound, top + tl.log2(tl.minimum(min_p, 1.0)) / scale)
    elif (top_p < 1) & (is_top_k == 0):
        # All that lie below this together weigh less than 1 - top_p of the largest alone; a bit to spare.
        bound = tl.maximum(bound, top - (tl.log2(columns / (1.0 - top_p)) + 1.0) / scale)
    return bound


@triton.jit
def level_of(level, top, scale, bound):
    """The value of a level: 5, 8, 11, 14 and 17 bits under the largest, and all that matters."""
    value = tl.maximum(top - (5.0 + 3.0 * level) / scale, bound)
    return tl.where(level == LEVELS - 1, bound, value)


@triton.jit
def ranked_cut(
    list_ptr, found, value, is_whole, top, total, scale, columns, top_k, top_p, min_p, SHORT: tl.constexpr
):  # fmt: skip
    """As ``kept_set``, of the ``found`` values in a list, which are all of a row from some value on.

    ``value`` is the same, float32[SHORT], with -inf behind; ``is_whole``: nothing that matters is left out.
    """
    # Ties are kept: a value is cut by what lies above it alone.
    above = tl.zeros((SHORT,), tl.int32)
    mass_above = tl.zeros((SHORT,), tl.float64)
    for begin in tl.range(0, found, _AT_ONCE):
        for behind in tl.static_range(_AT_ONCE):  # the list ends with -inf, which is above nothing
            other = tl.load(list_ptr + begin + behind)
            weight = tl.exp2((other - top) * scale).to(tl.float64)
            is_above = other > value
            above += is_above.to(tl.int32)
            mass_above += tl.where(is_above, weight, 0.0)
    is_top_k = (top_k > 0) & (top_k < columns)
    is_in = value > float("-inf")
    is_right = is_whole
    if is_top_k:
        is_in = is_in & (above < top_k)
        is_right = is_right | (found >= top_k).to(tl.int32)
    weights = tl.exp2((value - top) * scale).to(tl.float64)
    mass = tl.sum(tl.where(is_in, weights, 0.0), axis=0)
    if top_p < 1:
        is_alone = (is_top_k == 0) & (min_p <= 0)
        goal = tl.where(is_alone, total.to(tl.float64), mass) * top_p.to(tl.float64)
        is_right = is_right | (is_alone & (mass >= goal)).to(tl.int32)
        # A goal of 0 is reached by the largest.
        is_in = is_in & (mass_above < tl.maximum(goal, 1e-30))
    threshold = tl.min(tl.where(is_in, value, float("inf")), axis=0)
    kept = tl.sum(tl.where(is_in, weights, 0.0), axis=0).to(tl.float32)
    return threshold, kept, is_right


@triton.jit
def _gathered(values_ptr, ids_ptr, slots, cut, short_ptr, short_ids_ptr, SHORT: tl.constexpr):
    """How many values of a list with gaps are at the cut or above; they and their columns, in their order,
    the first ``SHORT`` of them, go to the short list, with -inf behind."""
    offset = tl.arange(0, _SCAN)
    found = 0
    for begin in tl.range(0, slots, _SCAN):
        place = begin + offset
        value = tl.load(values_ptr + place, mask=place < slots, other=float("-inf"))
        is_in = value >= cut
        column = tl.load(ids_ptr + place, mask=is_in, other=0)
        goal = found + tl.cumsum(is_in.to(tl.int32), axis=0) - 1
        tl.store(short_ptr + goal, value, mask=is_in & (goal < SHORT))
        tl.store(short_ids_ptr + goal, column, mask=is_in & (goal < SHORT))
        found += tl.sum(is_in.to(tl.int32), axis=0)
    rank = tl.arange(0, SHORT)
    tl.store(short_ptr + rank, float("-inf"), mask=rank >= found)
    return found


@triton.jit
def search_kernel(
    columns,
    top_k_ptr,  # int32[R] or None
    top_p_ptr, min_p_ptr,  # float32[R] or None
    pieces,
    searched_ptr,  # int32[R, SEARCHED]
    told_ptr,  # float32[R, SEARCHED, TOLD]
    values_ptr,  # float32[R, SEARCHED, LIST]
    ids_ptr,  # int32[R, SEARCHED, LIST]
    cuts_ptr,  # float32[R, SEARCHED, pieces]
    founds_ptr,  # int32[R, SEARCHED, LEVELS, pieces]
    short_ptr,  # float32[R, SEARCHED, SHORT]
    short_ids_ptr,  # int32[R, SEARCHED, SHORT]
    kept_ptr,  # float32[R, SEARCHED, 2]
    PADDED: tl.constexpr, SEGMENT: tl.constexpr, LIST: tl.constexpr, SHORT: tl.constexpr,
    IS_EARLY: tl.constexpr,
):  # fmt: skip
    """One program for each searched row: of its list the entries that matter without gaps, in the order of
    their columns, -inf behind, and (threshold, kept mass); a mass of -1 where they do not tell it."""
    wait_for_previous(IS_EARLY)
    let_next_begin(IS_EARLY)
    which = tl.program_id(0).to(tl.int64)
    row = tl.load(searched_ptr + which)
    told = told_ptr + which * TOLD
    top, scale, total, bound = tl.load(told), tl.load(told + 1), tl.load(told + 2), tl.load(told + 3)
    if row >= 0:
        top_k, top_p, min_p = options_of(top_k_ptr, top_p_ptr, min_p_ptr, tl.program_id(0) // SEARCHED)
        piece = tl.arange(0, PADDED)
        levels = tl.arange(0, 8)
        founds = tl.load(
            founds_ptr + (which * LEVELS + levels[:, None]) * pieces + piece[None, :],
            mask=(levels < LEVELS)[:, None] & (piece < pieces)[None, :], other=0,
        )  # fmt: skip
        # The lowest level from which each piece's entries fit its segment, and all of them the short list.
        is_fit = (tl.max(founds, axis=1) <= SEGMENT) & (tl.sum(founds, axis=1) <= SHORT)
        level = tl.max(tl.where(is_fit & (levels < LEVELS), levels, -1), axis=0)
        kept = top * 0.0 - 1.0
        threshold = top
        if level >= 0:
            cut = level_of(level, top, scale, bound)
            is_whole = ((level == LEVELS - 1) | (cut <= bound)).to(tl.int32)
            short = short_ptr + which * SHORT
            found = _gathered(
                values_ptr + which * LIST, ids_ptr + which * LIST, pieces * SEGMENT, cut,
                short, short_ids_ptr + which * SHORT, SHORT,
            )  # fmt: skip
            tl.debug_barrier()
            if found <= SHORT:
                rank = tl.arange(0, SHORT)
                value = tl.load(short + rank, mask=rank < found, other=float("-inf"))
                threshold, all_kept, is_right = ranked_cut(
                    short, found, value, is_whole, top, total, scale, columns, top_k, top_p, min_p, SHORT
                )
                kept = tl.where(is_right != 0, all_kept, -1.0)
        tl.store(kept_ptr + which * 2, threshold)
        tl.store(kept_ptr + which * 2 + 1, kept)
