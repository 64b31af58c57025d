"""The cuts of the rows where a request may stop, each looked for by a program of its own."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.dependent_launch import let_next_begin, wait_for_previous
from specctl_kernels.verify_rejection.judge import (
    has_cuts,
    judged,
    of_row,
    options_of,
    own_logits_of,
    partials_at,
    pieces_at,
    rows_of,
    surely_kept,
    uniforms_of,
)
from specctl_kernels.verify_rejection.parts import cut_of_parts, listed_of_parts
from specctl_kernels.verify_rejection.stats import scale_of
from specctl_kernels.verify_rejection.threshold import kept_by_reading

__all__ = ["SEARCHED", "search_kernel"]

SEARCHED = tl.constexpr(3)
"""Rows of a request whose cuts are looked for at once. Where it needs more, its own program looks, for one
after the other."""
_LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest finite float32: -inf is in no set."""
_AT_ONCE = tl.constexpr(16)
"""Entries of a list that are loaded together: each alone would be waited for."""
_FEW = tl.constexpr(64)
"""Parts that are read first where a nucleus seems to need more of them than that."""
_TRIES = tl.constexpr(5)


@triton.jit
def _bound_of(top, scale, columns, top_k, top_p, min_p):
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
def _ranked_cut(
    list_ptr, found, is_whole, top, total, scale, columns, top_k, top_p, min_p, SHORT: tl.constexpr
):  # fmt: skip
    """As ``kept_set``, of the ``found`` values in a list, which are all of a row from some value on.
    ``is_whole``: nothing that matters is left out."""
    rank = tl.arange(0, SHORT)
    value = tl.load(list_ptr + rank, mask=rank < found, other=float("-inf"))
    weights = tl.where(rank < found, tl.exp2((value - top) * scale), 0.0).to(tl.float64)
    mass = tl.sum(weights, axis=0)
    is_top_k = (top_k > 0) & (top_k < columns)
    is_alone = (is_top_k == 0) & (min_p <= 0)
    goal = total.to(tl.float64) * top_p.to(tl.float64)
    is_right = is_whole | (is_top_k & (found >= top_k)).to(tl.int32)
    is_right = is_right | (is_alone & (mass >= goal)).to(tl.int32)
    # Ties are kept: a value is cut by what lies above it alone.
    above = tl.zeros((SHORT,), tl.int32)
    mass_above = tl.zeros((SHORT,), tl.float64)
    for begin in tl.range(0, tl.where((is_right != 0) & (is_top_k | (top_p < 1)), found, 0), _AT_ONCE):
        for behind in tl.static_range(_AT_ONCE):
            other = tl.load(list_ptr + begin + behind, mask=begin + behind < found, other=float("-inf"))
            is_above = other > value
            above += is_above.to(tl.int32)
            mass_above += tl.where(is_above, tl.exp2((other - top) * scale), 0.0).to(tl.float64)
    is_in = rank < found
    if is_top_k:
        is_in = is_in & (above < top_k)
        mass = tl.sum(tl.where(is_in, weights, 0.0), axis=0)
    if top_p < 1:
        goal = tl.where(is_alone, goal, mass * top_p.to(tl.float64))
        # A goal of 0 is reached by the largest.
        is_in = is_in & (mass_above < tl.maximum(goal, 1e-30))
        mass = tl.sum(tl.where(is_in, weights, 0.0), axis=0)
    return tl.min(tl.where(is_in, value, float("inf")), axis=0), mass.to(tl.float32), is_right


@triton.jit
def _kept_by_parts(
    row_ptr, columns, best_ptr, parts, taken_ptr, short_ptr, short_ids_ptr,
    top, scale, total, top_k, top_p, min_p,
    PARTS: tl.constexpr, PART: tl.constexpr, AT_ONCE: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """(threshold, mass of the values at it or above, how many the short list holds, -1 where the parts do not
    tell). The list holds all of the row from the threshold on, in the order of their columns, and others."""
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
                row_ptr, columns, taken_ptr, taken, cut, short_ptr, short_ids_ptr, PART, AT_ONCE, SHORT
            )
            tl.debug_barrier()
        tries += 1
        if found > SHORT:
            too_low = cut
            need = need // 4
            tries = tl.where(is_fixed, _TRIES, tries)
        else:
            threshold, kept, is_right = _ranked_cut(
                short_ptr, found, (cut <= bound).to(tl.int32), top, total, scale, columns,
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
def _row_to_search(
    which, rows, row, is_bad, is_candidate, value, top, weight, total, price, worth, columns,
    top_k, top_p, min_p, ROWS: tl.constexpr,
):  # fmt: skip
    """A request's first row whose draft is not surely kept, and, while the draft there is not surely rejected
    either, the next such row: of these the one with this number, -1 for none."""
    is_sure = is_candidate & (price * total.to(tl.float64) < worth)
    is_sure = is_sure & (surely_kept(value, top, weight, total, top_k, top_p, min_p, columns) != 0)
    # The largest entry alone has a mass of 1; of the rest, top-p alone keeps a known share.
    is_top_p_alone = ((top_k <= 0) | (top_k >= columns)) & (min_p <= 0)
    least = tl.maximum(tl.where(is_top_p_alone, top_p * total * 0.999, 1.0), 1.0)
    is_open = is_candidate & (price * least.to(tl.float64) < worth)
    found = rows * 0 - 1
    at = rows * 0 - 1
    goes_on = at < 0
    for number in tl.static_range(SEARCHED):
        at = tl.min(tl.where(is_sure | (row <= at), ROWS, row), axis=0)
        is_bad_here = tl.max(tl.where(row == at, is_bad, 0), axis=0)
        goes_on = goes_on & (at < rows) & (is_bad_here == 0)
        found = tl.where(goes_on & (which == number), at, found)
        goes_on = goes_on & (tl.max(tl.where((row == at) & is_open, 1, 0), axis=0) != 0)
    return found


@triton.jit
def search_kernel(
    logits_ptr, logits_stride, columns,
    draft_logits_ptr, slot_stride, step_stride, draft_columns, draft_slots_ptr,
    best_ptr, mass_ptr, at_ptr, draft_best_ptr, draft_mass_ptr, pieces,
    drafts_ptr, starts_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seeds_ptr, positions_ptr,
    uniforms_ptr,  # all as in verify_kernel
    parts_ptr,  # float32[N, parts]
    parts,
    searched_ptr,  # int32[R, SEARCHED]
    listed_ptr,  # int32[R, SEARCHED]
    kept_ptr,  # float32[R, SEARCHED, 2]
    short_ptr,  # float32[R, SEARCHED, SHORT]
    short_ids_ptr,  # int32[R, SEARCHED, SHORT]
    lists_ptr,  # float32[R, SEARCHED, LIST]
    taken_ptr,  # int32[R, SEARCHED, SHORT]
    width,
    ROWS: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
    AT_ONCE: tl.constexpr, SHORT: tl.constexpr, LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
    SCAN: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """One program for each request and number of a row in it that is searched: which row that is, -1 for
    none, (threshold, kept mass), and the entries that may be kept, in the order of their columns, with how
    many they are; -1 where they do not fit the short list."""
    let_next_begin(IS_EARLY)
    # First the first rows of all requests: many need no other.
    requests = tl.num_programs(0) // SEARCHED
    req = tl.program_id(0) % requests
    which = tl.program_id(0) // requests
    start, rows, row, draft, is_draft = rows_of(starts_ptr, drafts_ptr, req, columns, width, ROWS)
    own_logit = own_logits_of(logits_ptr, logits_stride, start, row, draft, is_draft)
    wait_for_previous(IS_EARLY)
    # All that is waited for together.
    temperature = tl.load(temperature_ptr + req)
    piece_at, is_in = pieces_at(start, rows, row, pieces, PADDED)
    best, mass = partials_at(best_ptr, mass_ptr, piece_at, is_in)
    accept, _sample = uniforms_of(
        uniforms_ptr, seeds_ptr, positions_ptr, req, (start + row).to(tl.int64), row < rows
    )
    top_k, top_p, min_p = options_of(top_k_ptr, top_p_ptr, min_p_ptr, req)
    found = rows * 0 - 1
    scale = temperature * 0.0
    top_here = scale
    total_here = scale
    if (temperature > 0) & has_cuts(top_k, top_p, min_p, columns):
        scale = scale_of(temperature)
        (
            top, total, is_bad, _is_bad_draft, value, weight, _draft_top, _draft_total, price, worth,
            is_candidate,
        ) = judged(
            draft_logits_ptr, slot_stride, step_stride, draft_columns, draft_slots_ptr,
            draft_best_ptr, draft_mass_ptr, req, rows, row, draft, is_draft, own_logit, accept, piece_at,
            is_in, best, mass, scale,
        )  # fmt: skip
        found = _row_to_search(
            which, rows, row, is_bad, is_candidate, value, top, weight, total, price, worth, columns,
            top_k, top_p, min_p, ROWS,
        )  # fmt: skip
        top_here, total_here = of_row(top, row, found), of_row(total, row, found)
    place = req.to(tl.int64) * SEARCHED + which
    tl.store(searched_ptr + place, found)
    if found >= 0:
        at = (start + found).to(tl.int64)
        threshold, kept, listed = _kept_by_parts(
            logits_ptr + at * logits_stride, columns, parts_ptr + at * parts, parts,
            taken_ptr + place * SHORT, short_ptr + place * SHORT, short_ids_ptr + place * SHORT,
            top_here, scale, total_here, top_k, top_p, min_p, PARTS, PART, AT_ONCE, SHORT,
        )  # fmt: skip
        if listed < 0:
            threshold, kept = kept_by_reading(
                logits_ptr + at * logits_stride, columns, lists_ptr + place * LIST, top_here, scale,
                total_here, top_k, top_p, min_p, LIST, MOST_PASSES, SCAN,
            )  # fmt: skip
        tl.store(listed_ptr + place, listed)
        tl.store(kept_ptr + place * 2, threshold)
        tl.store(kept_ptr + place * 2 + 1, kept)
