"""The cuts of the rows where a request may stop, each looked for by a program of its own."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.dependent_launch import let_next_begin
from specctl_kernels.row_law.judge import (
    acceptance_terms,
    has_cuts,
    judged_rows,
    of_row,
    options_of,
    surely_kept,
)
from specctl_kernels.row_law.stats import scale_of
from specctl_kernels.verify_rejection.kept import truncation_of

__all__ = ["SEARCHED", "search_kernel"]

SEARCHED = tl.constexpr(3)
"""Rows of a request whose cuts are looked for at once. Where it needs more, its own program looks, for one
after the other."""


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
    # The first row and what it is like, in one reduction.
    number_and_kind = row * 4 + tl.where(is_bad != 0, 2, 0) + is_open.to(tl.int32)
    for number in tl.static_range(SEARCHED):
        first = tl.min(tl.where(is_sure | (row <= at), ROWS * 4, number_and_kind), axis=0)
        at = first // 4
        goes_on = goes_on & (at < rows) & (first % 4 < 2)
        found = tl.where(goes_on & (which == number), at, found)
        goes_on = goes_on & (first % 2 != 0)
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
    SHORT: tl.constexpr, LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
    IS_EARLY: tl.constexpr,
):  # fmt: skip
    """One program for each request and number of a row in it that is searched: which row that is, -1 for
    none, (threshold, kept mass), and the entries that may be kept, in the order of their columns, with how
    many they are; -1 where they do not fit the short list."""
    let_next_begin(IS_EARLY)
    # First the first rows of all requests: many need no other.
    requests = tl.num_programs(0) // SEARCHED
    req = tl.program_id(0) % requests
    which = tl.program_id(0) // requests
    (
        start, rows, row, draft, is_draft, own_logit, temperature, piece_at, is_in, best, mass, accept,
        _sample,
    ) = judged_rows(
        logits_ptr, logits_stride, columns, best_ptr, mass_ptr, pieces, drafts_ptr, starts_ptr,
        temperature_ptr, top_k_ptr, seeds_ptr, positions_ptr, uniforms_ptr, req, width, ROWS, PADDED,
        IS_EARLY,
    )  # fmt: skip
    top_k, top_p, min_p = options_of(top_k_ptr, top_p_ptr, min_p_ptr, req)
    found = rows * 0 - 1
    scale = tl.full((), 0.0, tl.float32)
    top_here = scale
    total_here = scale
    if (temperature > 0) & has_cuts(top_k, top_p, min_p, columns):
        scale = scale_of(temperature)
        (
            top, total, is_bad, _is_bad_draft, value, weight, _draft_top, _draft_total, price, worth,
            is_candidate,
        ) = acceptance_terms(
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
        threshold, kept, listed = truncation_of(
            logits_ptr, logits_stride, columns, parts_ptr, parts, taken_ptr, short_ptr, short_ids_ptr,
            lists_ptr, (start + found).to(tl.int64), place, top_here, scale, total_here, top_k, top_p, min_p,
            PARTS, PART, SHORT, LIST, MOST_PASSES,
        )  # fmt: skip
        tl.store(listed_ptr + place, listed)
        tl.store(kept_ptr + place * 2, threshold)
        tl.store(kept_ptr + place * 2 + 1, kept)
