"""Rejection sampling along a chain of drafts: one program decides how far each request gets."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_law.judge import (
    acceptance_terms,
    greedy_stop,
    has_cuts,
    judged_rows,
    of_row,
    options_of,
    surely_kept,
    write_chain,
)
from specctl_kernels.row_law.stats import first_best_of_piece, scale_of
from specctl_kernels.row_law.threshold import kept_by_reading
from specctl_kernels.verify_rejection.residual import sample_list, sample_row
from specctl_kernels.verify_rejection.search import SEARCHED

__all__ = ["first_best", "verify_kernel"]


@triton.jit
def first_best(row_ptr, columns, pieces, PIECE: tl.constexpr):
    """int32: the first column of a row's largest number, 0 where it has none."""
    best = tl.full((), float("-inf"), tl.float32)
    column = pieces * 0
    for piece in range(pieces):
        value, at = first_best_of_piece(row_ptr, columns, piece, PIECE)
        column = tl.where(value > best, at.to(tl.int32), column)
        best = tl.maximum(value, best)
    return column


@triton.jit
def _stop_within_cuts(
    logits_ptr, logits_stride, columns, start, rows, row, searched_ptr, listed_ptr, kept_ptr, list_ptr,
    top, total, scale, is_bad, is_accepted, is_candidate, value, price, worth, top_k, top_p, min_p,
    ROWS: tl.constexpr, LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """(row where the request stops, its threshold, its kept mass, the number of the short list that has its
    kept entries, -1 where they are in the row alone): from the first draft on that is not surely kept, one
    row after the other is cut until one's draft is not kept."""
    which = tl.arange(0, 4)
    is_which = which < SEARCHED
    # All at once; where no row is searched the rest is nonsense, which nothing is compared with.
    searched = tl.load(searched_ptr + which, mask=is_which, other=-1)
    thresholds = tl.load(kept_ptr + which * 2, mask=is_which, other=0.0)
    masses = tl.load(kept_ptr + which * 2 + 1, mask=is_which, other=0.0)
    numbers = tl.where(tl.load(listed_ptr + which, mask=is_which, other=-1) >= 0, which, -1)
    stop = tl.min(tl.where(is_accepted == 0, row, ROWS), axis=0)
    threshold = scale * 0.0 + float("-inf")
    kept = of_row(total, row, stop)
    listed = stop * 0 - 1
    is_open = stop * 0 + 1
    while is_open != 0:
        is_open = is_open * 0
        listed = stop * 0 - 1
        if (stop < rows) & (of_row(is_bad, row, stop) == 0):
            if tl.max((searched == stop).to(tl.int32), axis=0) != 0:
                threshold = of_row(thresholds, searched, stop)
                kept = of_row(masses, searched, stop)
                listed = of_row(numbers, searched, stop)
            else:
                threshold, kept = kept_by_reading(
                    logits_ptr + (start + stop).to(tl.int64) * logits_stride, columns, list_ptr,
                    of_row(top, row, stop), scale, of_row(total, row, stop), top_k, top_p, min_p,
                    LIST, MOST_PASSES,
                )  # fmt: skip
            is_taken = is_candidate & (value >= threshold) & (price * kept.to(tl.float64) < worth)
            if of_row(is_taken.to(tl.int32), row, stop) != 0:
                is_accepted = is_accepted | (row == stop).to(tl.int32)
                stop = tl.min(tl.where(is_accepted == 0, row, ROWS), axis=0)
                is_open = is_open + 1
    return stop, threshold, kept, listed


@triton.jit
def verify_kernel(
    logits_ptr,  # [N, columns]
    logits_stride, columns,
    draft_logits_ptr,  # [slots, K, draft_columns] or None
    slot_stride, step_stride, draft_columns,
    draft_slots_ptr,  # int32[R] or None
    best_ptr, mass_ptr,  # float32[N, pieces]
    at_ptr,  # int32[N, pieces]
    draft_best_ptr, draft_mass_ptr,  # float32[N, pieces] or None
    pieces,
    drafts_ptr,  # integer[N]
    starts_ptr,  # int32[R + 1]
    temperature_ptr,  # float32[R]
    top_k_ptr,  # int32[R] or None
    top_p_ptr, min_p_ptr,  # float32[R] or None
    seeds_ptr,  # int64[R]
    positions_ptr,  # int64[N]
    uniforms_ptr,  # float64[N, 2] or None
    searched_ptr,  # int32[R, SEARCHED] or None
    listed_ptr,  # int32[R, SEARCHED] or None
    kept_ptr,  # float32[R, SEARCHED, 2] or None
    short_ptr,  # float32[R, SEARCHED, SHORT] or None
    short_ids_ptr,  # int32[R, SEARCHED, SHORT] or None
    lists_ptr,  # float32[R, SEARCHED, LIST] or None
    tokens_ptr,  # int64[R, width]
    tokens_stride,
    counts_ptr,  # int32[R]
    not_finite_ptr,  # int64[1]
    width,
    NO_TOKEN: tl.constexpr, ROUNDING: tl.constexpr, ROWS: tl.constexpr,
    PADDED: tl.constexpr, PIECE: tl.constexpr, SHORT: tl.constexpr, LIST: tl.constexpr,
    MOST_PASSES: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """One program for each request. Draft i of a request is judged by its row i, the last row has none."""
    HAS_DRAFTS: tl.constexpr = draft_logits_ptr is not None
    IS_LIMITED: tl.constexpr = lists_ptr is not None
    req = tl.program_id(0)
    (
        start, rows, row, draft, is_draft, own_logit, temperature, piece_at, is_in, best, mass, accept,
        sample,
    ) = judged_rows(
        logits_ptr, logits_stride, columns, best_ptr, mass_ptr, pieces, drafts_ptr, starts_ptr,
        temperature_ptr, top_k_ptr, seeds_ptr, positions_ptr, uniforms_ptr, req, width, ROWS, PADDED,
        IS_EARLY,
    )  # fmt: skip
    token = rows * 0
    if temperature > 0:
        scale = scale_of(temperature)
        (
            top, total, is_bad, is_bad_draft, value, weight, draft_top, draft_total, price, worth,
            is_candidate,
        ) = acceptance_terms(
            draft_logits_ptr, slot_stride, step_stride, draft_columns, draft_slots_ptr,
            draft_best_ptr, draft_mass_ptr, req, rows, row, draft, is_draft, own_logit, accept, piece_at,
            is_in, best, mass, scale,
        )  # fmt: skip
        draft_row_ptr = logits_ptr
        has_draft_row = rows * 0
        if HAS_DRAFTS:
            slot = tl.load(draft_slots_ptr + req).to(tl.int64)
            draft_row_ptr = draft_logits_ptr + slot * slot_stride
            has_draft_row = tl.where(slot >= 0, 1, has_draft_row)
        is_accepted = (is_candidate & (price * total.to(tl.float64) < worth)).to(tl.int32)
        stop = tl.min(tl.where(is_accepted == 0, row, ROWS), axis=0)
        threshold = scale * 0.0 + float("-inf")
        kept = of_row(total, row, stop)
        listed = rows * 0 - 1
        if IS_LIMITED:
            top_k, top_p, min_p = options_of(top_k_ptr, top_p_ptr, min_p_ptr, req)
            if has_cuts(top_k, top_p, min_p, columns):
                is_accepted = is_accepted & surely_kept(
                    value, top, weight, total, top_k, top_p, min_p, columns
                )
                stop, threshold, kept, listed = _stop_within_cuts(
                    logits_ptr, logits_stride, columns, start, rows, row, searched_ptr + req * SEARCHED,
                    listed_ptr + req * SEARCHED, kept_ptr + req * SEARCHED * 2,
                    lists_ptr + req.to(tl.int64) * SEARCHED * LIST,
                    top, total, scale, is_bad, is_accepted, is_candidate, value, price, worth,
                    top_k, top_p, min_p, ROWS, LIST, MOST_PASSES,
                )  # fmt: skip
        is_bad_stop = of_row(tl.where(row < rows, is_bad | is_bad_draft, 0), row, stop)
        is_sampled = of_row(tl.where(row < rows, 1 - is_bad, 0), row, stop)
        at_stop = (start + stop).to(tl.int64)
        if is_sampled != 0:
            # A draft without a distribution is rejected whatever the target says, which leaves the target's.
            is_judged = is_draft & (is_bad_draft == 0)
            judged_draft = of_row(tl.where(is_judged, draft + 1, 0), row, stop) - 1
            # A given distribution is subtracted only where a draft came from it.
            has_draft_row = tl.where(judged_draft >= 0, has_draft_row, 0)
            factor = kept / tl.maximum(of_row(tl.where(is_judged, draft_total, 1.0), row, stop), 1.0)
            without = tl.where(has_draft_row != 0, -1, judged_draft)
            draft_row_ptr += stop.to(tl.int64) * step_stride
            given_columns = tl.where(has_draft_row != 0, draft_columns, 0)
            least = tl.where(has_draft_row != 0, kept * ROUNDING, 0.0)
            stop_top, stop_draft_top = of_row(top, row, stop), of_row(draft_top, row, stop)
            uniform = of_row(sample, row, stop)
            if IS_LIMITED:  # noqa: SIM102 - decided when it is compiled
                if listed >= 0:
                    place = req * SEARCHED + listed
                    list_at = place.to(tl.int64) * SHORT
                    token = sample_list(
                        short_ptr + list_at, short_ids_ptr + list_at, tl.load(listed_ptr + place), stop_top,
                        scale, threshold, uniform, without, draft_row_ptr, given_columns, stop_draft_top,
                        factor, least, HAS_DRAFTS, SHORT,
                    )  # fmt: skip
            if listed < 0:
                token = sample_row(
                    logits_ptr + at_stop * logits_stride, columns,
                    best_ptr + at_stop * pieces, mass_ptr + at_stop * pieces, pieces,
                    stop_top, scale, threshold, uniform, without, draft_row_ptr, given_columns,
                    stop_draft_top, factor, least, HAS_DRAFTS, IS_LIMITED, PIECE, PADDED,
                )  # fmt: skip
        if is_bad_stop != 0:
            tl.atomic_add(not_finite_ptr, 1)
            if is_sampled == 0:
                token = first_best(logits_ptr + at_stop * logits_stride, columns, pieces, PIECE)
    else:
        stop, token = greedy_stop(at_ptr, best, pieces, start, rows, row, draft, ROWS)
    write_chain(tokens_ptr, tokens_stride, counts_ptr, req, rows, row, draft, stop, token, width, NO_TOKEN)
