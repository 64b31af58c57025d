"""The entries of the rows to be cut that may be kept, gathered by many programs at once."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.verify_rejection.judge import has_cuts, judged, options_of, rows_of, surely_kept
from specctl_kernels.verify_rejection.search import LEVELS, bound_of, level_of
from specctl_kernels.verify_rejection.stats import scale_of

__all__ = ["candidates_kernel", "searched_kernel"]


@triton.jit
def searched_kernel(
    logits_ptr, logits_stride, columns,
    draft_logits_ptr, slot_stride, step_stride, draft_columns, draft_slots_ptr,
    best_ptr, mass_ptr, at_ptr, draft_best_ptr, draft_mass_ptr, pieces,
    drafts_ptr, starts_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seeds_ptr, positions_ptr,
    uniforms_ptr,
    searched_ptr,  # int32[R, 2]
    width,
    ROWS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """One program for each request: its first row whose draft is not surely kept, and, if the draft there is
    not surely rejected either, the next such row; -1 for none."""
    req = tl.program_id(0)
    first = tl.program_id(0) * 0 - 1
    second = first
    temperature = tl.load(temperature_ptr + req)
    top_k, top_p, min_p = options_of(top_k_ptr, top_p_ptr, min_p_ptr, req)
    if (temperature > 0) & has_cuts(top_k, top_p, min_p, columns):
        start, rows, row, draft, is_draft = rows_of(starts_ptr, drafts_ptr, req, columns, width, ROWS)
        (
            _top, total, is_bad, _is_bad_draft, _value, weight, _sample, _draft_top, _draft_total, price,
            worth, is_candidate,
        ) = judged(
            logits_ptr, logits_stride,
            draft_logits_ptr, slot_stride, step_stride, draft_columns, draft_slots_ptr,
            best_ptr, mass_ptr, draft_best_ptr, draft_mass_ptr, pieces,
            seeds_ptr, positions_ptr, uniforms_ptr, req, start, rows, row, draft, is_draft,
            scale_of(temperature), PADDED,
        )  # fmt: skip
        is_sure = is_candidate & (price * total.to(tl.float64) < worth)
        is_sure = is_sure & (surely_kept(weight, total, top_k, top_p, min_p, columns) != 0)
        # The largest entry alone has a mass of 1; of the rest, top-p alone keeps a known share.
        is_top_p_alone = ((top_k <= 0) | (top_k >= columns)) & (min_p <= 0)
        least = tl.maximum(tl.where(is_top_p_alone, top_p * total * 0.999, 1.0), 1.0)
        is_open = is_candidate & (price * least.to(tl.float64) < worth)
        begin = tl.min(tl.where(is_sure, ROWS, row), axis=0)
        after = tl.min(tl.where(is_sure | (row <= begin), ROWS, row), axis=0)
        is_begin_open = tl.max(tl.where((row == begin) & is_open, 1, 0), axis=0)
        is_begin_bad = tl.max(tl.where(row == begin, is_bad, 0), axis=0)
        is_after_bad = tl.max(tl.where(row == after, is_bad, 0), axis=0)
        first = tl.where((begin < rows) & (is_begin_bad == 0), begin, -1)
        second = tl.where(
            (first >= 0) & (is_begin_open != 0) & (after < rows) & (is_after_bad == 0), after, -1
        )
    tl.store(searched_ptr + req * 2, first)
    tl.store(searched_ptr + req * 2 + 1, second)


@triton.jit
def candidates_kernel(
    logits_ptr, logits_stride, columns, starts_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr,
    best_ptr, mass_ptr,  # float32[N, pieces]
    pieces,
    searched_ptr,  # int32[R, 2]
    values_ptr,  # float32[R, 2, LIST]
    ids_ptr,  # int32[R, 2, LIST]
    cuts_ptr,  # float32[R, 2, pieces]
    founds_ptr,  # int32[R, 2, LEVELS, pieces]
    PIECE: tl.constexpr, PADDED: tl.constexpr, SEGMENT: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """Program (searched row and piece): the piece's entries from its cut on, in their order, -inf behind. The
    cut is the lowest of some levels from which they fit its segment; +inf where they do not from any. Of each
    level, how many there are."""
    which = tl.program_id(0) // pieces
    piece = tl.program_id(0) % pieces
    row = tl.load(searched_ptr + which)
    if row >= 0:
        req = which // 2
        at = (tl.load(starts_ptr + req) + row).to(tl.int64)
        scale = scale_of(tl.load(temperature_ptr + req))
        index = tl.arange(0, PADDED)
        top = tl.max(
            tl.load(best_ptr + at * pieces + index, mask=index < pieces, other=float("-inf")), axis=0
        )
        column = piece * PIECE + tl.arange(0, PIECE)
        value = tl.load(
            logits_ptr + at * logits_stride + column, mask=column < columns, other=float("-inf")
        ).to(tl.float32)
        top_k, top_p, min_p = options_of(top_k_ptr, top_p_ptr, min_p_ptr, req)
        bound = bound_of(top, scale, columns, top_k, top_p, min_p)
        cut = top * 0.0 + float("inf")
        listed = piece * 0
        for level in tl.static_range(LEVELS):
            pivot = level_of(level, top, scale, bound)
            found = tl.sum((value >= pivot).to(tl.int32), axis=0)
            cut = tl.where(found <= SEGMENT, pivot, cut)
            listed = tl.where(found <= SEGMENT, found, listed)
            tl.store(founds_ptr + (which.to(tl.int64) * LEVELS + level) * pieces + piece, found)
        is_in = value >= cut
        place = tl.cumsum(is_in.to(tl.int32), axis=0) - 1
        begin = which.to(tl.int64) * LIST + piece * SEGMENT
        behind = tl.arange(0, SEGMENT)
        tl.store(values_ptr + begin + place, value, mask=is_in)
        tl.store(ids_ptr + begin + place, column.to(tl.int32), mask=is_in)
        tl.store(values_ptr + begin + behind, float("-inf"), mask=behind >= listed)
        tl.store(cuts_ptr + which.to(tl.int64) * pieces + piece, cut)
