"""The entries of the rows to be cut that may be kept, gathered by many programs at once."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.dependent_launch import let_next_begin, wait_for_previous
from specctl_kernels.row_argmax.kernel import entries_of
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
from specctl_kernels.verify_rejection.search import LEVELS, SEARCHED, TOLD, bound_of, level_of
from specctl_kernels.verify_rejection.stats import scale_of

__all__ = ["candidates_kernel", "searched_kernel"]

_BITS = tl.constexpr(15)
_MASK = tl.constexpr(2**15 - 1)
"""More than a piece has columns; two such numbers are one int32."""


@triton.jit
def searched_kernel(
    logits_ptr, logits_stride, columns,
    draft_logits_ptr, slot_stride, step_stride, draft_columns, draft_slots_ptr,
    best_ptr, mass_ptr, at_ptr, draft_best_ptr, draft_mass_ptr, pieces,
    drafts_ptr, starts_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seeds_ptr, positions_ptr,
    uniforms_ptr,
    searched_ptr,  # int32[R, SEARCHED]
    told_ptr,  # float32[R, SEARCHED, TOLD]
    width,
    ROWS: tl.constexpr, PADDED: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """One program for each request: its first row whose draft is not surely kept, and, while the draft there
    is not surely rejected either, the next such row; -1 for none. Of each: its largest entry, scale, mass and
    the value under which nothing matters."""
    let_next_begin(IS_EARLY)
    req = tl.program_id(0)
    start, rows, row, draft, is_draft = rows_of(starts_ptr, drafts_ptr, req, columns, width, ROWS)
    own_logit = own_logits_of(logits_ptr, logits_stride, start, row, draft, is_draft)
    wait_for_previous(IS_EARLY)
    for which in tl.static_range(SEARCHED):
        tl.store(searched_ptr + req * SEARCHED + which, -1)
    temperature = tl.load(temperature_ptr + req)
    piece_at, is_in = pieces_at(start, rows, row, pieces, PADDED)
    best, mass = partials_at(best_ptr, mass_ptr, piece_at, is_in)
    accept, _sample = uniforms_of(
        uniforms_ptr, seeds_ptr, positions_ptr, req, (start + row).to(tl.int64), row < rows
    )
    top_k, top_p, min_p = options_of(top_k_ptr, top_p_ptr, min_p_ptr, req)
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
        is_sure = is_candidate & (price * total.to(tl.float64) < worth)
        is_sure = is_sure & (surely_kept(value, top, weight, total, top_k, top_p, min_p, columns) != 0)
        # The largest entry alone has a mass of 1; of the rest, top-p alone keeps a known share.
        is_top_p_alone = ((top_k <= 0) | (top_k >= columns)) & (min_p <= 0)
        least = tl.maximum(tl.where(is_top_p_alone, top_p * total * 0.999, 1.0), 1.0)
        is_open = is_candidate & (price * least.to(tl.float64) < worth)
        at = rows * 0 - 1
        goes_on = at < 0
        for which in tl.static_range(SEARCHED):
            at = tl.min(tl.where(is_sure | (row <= at), ROWS, row), axis=0)
            is_bad_here = tl.max(tl.where(row == at, is_bad, 0), axis=0)
            goes_on = goes_on & (at < rows) & (is_bad_here == 0)
            tl.store(searched_ptr + req * SEARCHED + which, tl.where(goes_on, at, -1))
            here = told_ptr + (req * SEARCHED + which) * TOLD
            top_here = of_row(top, row, at)
            tl.store(here, top_here)
            tl.store(here + 1, scale)
            tl.store(here + 2, of_row(total, row, at))
            tl.store(here + 3, bound_of(top_here, scale, columns, top_k, top_p, min_p))
            goes_on = goes_on & (tl.max(tl.where((row == at) & is_open, 1, 0), axis=0) != 0)


@triton.jit
def _two_founds(value, lower, upper):
    """How many entries reach each of two values, in one sum: each sum is a wait of all threads."""
    reached = tl.where(value >= lower, 1, 0) + tl.where(value >= upper, _MASK + 1, 0)
    found = tl.sum(reached, axis=0)
    return found & _MASK, found >> _BITS


@triton.jit
def candidates_kernel(
    logits_ptr, logits_stride, columns, starts_ptr,
    best_ptr,  # float32[N, pieces]
    pieces,
    searched_ptr,  # int32[R, SEARCHED]
    told_ptr,  # float32[R, SEARCHED, TOLD]
    values_ptr,  # float32[R, SEARCHED, LIST]
    ids_ptr,  # int32[R, SEARCHED, LIST]
    cuts_ptr,  # float32[R, SEARCHED, pieces]
    founds_ptr,  # int32[R, SEARCHED, LEVELS, pieces]
    PIECE: tl.constexpr, PART: tl.constexpr, SEGMENT: tl.constexpr, LIST: tl.constexpr,
    IS_EARLY: tl.constexpr,
):  # fmt: skip
    """Program (searched row and piece): the piece's entries from its cut on, in their order, -inf behind. The
    cut is the lowest of some levels from which they fit its segment; +inf where they do not from any. Of each
    level, how many there are."""
    let_next_begin(IS_EARLY)
    wait_for_previous(IS_EARLY)
    which = tl.program_id(0) // pieces
    piece = tl.program_id(0) % pieces
    row = tl.load(searched_ptr + which)
    start = tl.load(starts_ptr + which // SEARCHED)
    told = told_ptr + which * TOLD
    top, scale, bound = tl.load(told), tl.load(told + 1), tl.load(told + 3)
    if row >= 0:
        at = (start + row).to(tl.int64)
        best = tl.load(best_ptr + at * pieces + piece)
        row_ptr = logits_ptr + at * logits_stride
        first = piece * PIECE
        end = tl.where(best >= bound, columns, 0)  # where nothing matters, nothing is read
        _columns, entries = entries_of(row_ptr, first, end, PIECE)
        entries = entries.to(tl.float32)
        cut = top * 0.0 + float("inf")
        listed = piece * 0
        founds_ptr += which.to(tl.int64) * LEVELS * pieces + piece
        for pair in tl.static_range(LEVELS // 2):
            values = level_of(2 * pair, top, scale, bound), level_of(2 * pair + 1, top, scale, bound)
            founds = _two_founds(entries, values[0], values[1])
            for of_pair in tl.static_range(2):
                cut = tl.where(founds[of_pair] <= SEGMENT, values[of_pair], cut)
                listed = tl.where(founds[of_pair] <= SEGMENT, founds[of_pair], listed)
                tl.store(founds_ptr + (2 * pair + of_pair) * pieces, founds[of_pair])
        begin = which.to(tl.int64) * LIST + piece * SEGMENT
        behind = tl.arange(0, SEGMENT)
        if listed > 0:
            written = begin
            for offset in tl.range(0, PIECE, PART):
                column, value = entries_of(row_ptr, first + offset, end, PART)
                value = value.to(tl.float32)
                is_in = value >= cut
                place = tl.cumsum(is_in.to(tl.int32), axis=0) - 1
                tl.store(values_ptr + written + place, value, mask=is_in)
                tl.store(ids_ptr + written + place, column.to(tl.int32), mask=is_in)
                written += tl.sum(is_in.to(tl.int32), axis=0)
        tl.store(values_ptr + begin + behind, float("-inf"), mask=behind >= listed)
        tl.store(cuts_ptr + which.to(tl.int64) * pieces + piece, cut)
