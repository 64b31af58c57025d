"""Rejection sampling along a chain of drafts: one program decides how far each request gets."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.verify_rejection.draws import uniforms_at
from specctl_kernels.verify_rejection.residual import sample_row
from specctl_kernels.verify_rejection.stats import first_best_of_piece, scale_of
from specctl_kernels.verify_rejection.threshold import kept_set

__all__ = ["verify_kernel"]


@triton.jit
def _of_row(values, row, chosen):
    """The scalar of one row."""
    return tl.sum(tl.where(row == chosen, values, 0), axis=0)


@triton.jit
def _totals(best_ptr, mass_ptr, at, is_in, scale):
    """(largest entry or 0 for none, softmax mass against it, 1 where the row has no distribution) of rows."""
    best = tl.load(best_ptr + at, mask=is_in, other=float("-inf"))
    mass = tl.load(mass_ptr + at, mask=is_in, other=0.0)
    is_bad = tl.max((mass != mass).to(tl.int32), axis=1)
    top = tl.max(best, axis=1)
    is_bad = is_bad | (top == float("-inf")).to(tl.int32)
    top = tl.where(is_bad != 0, 0.0, top)
    return top, tl.sum(mass * tl.exp2((best - top[:, None]) * scale), axis=1), is_bad


@triton.jit
def _first_best(row_ptr, columns, pieces, PIECE: tl.constexpr):
    """int32: the first column of a row's largest number, 0 where it has none."""
    best = tl.full((), float("-inf"), tl.float32)
    column = pieces * 0
    for piece in range(pieces):
        value, at = first_best_of_piece(row_ptr, columns, piece, PIECE)
        column = tl.where(value > best, at.to(tl.int32), column)
        best = tl.maximum(value, best)
    return column


@triton.jit
def _surely_kept(weight, total, top_k, top_p, min_p, columns):
    """1 where an entry is in the kept set whatever the rest of its row: k larger ones, or a nucleus without
    it, would weigh more than is left. The margin is for rounding."""
    safe = weight * 0.999
    of_top_k = tl.where((top_k > 0) & (top_k < columns), 1.0 / (top_k + 1), 0.0)
    of_top_p = tl.where(top_p < 1, 1.0 - top_p, -1.0)
    is_kept = (safe >= of_top_k * total) & (safe > of_top_p * total) & (safe >= min_p)
    return is_kept.to(tl.int32)


@triton.jit
def _uniforms(uniforms_ptr, seeds_ptr, positions_ptr, req, row_at, is_row):
    """(accept, sample) float64 of rows, the injected ones if there are any."""
    if uniforms_ptr is not None:
        accept = tl.load(uniforms_ptr + row_at * 2, mask=is_row, other=0.0)
        sample = tl.load(uniforms_ptr + row_at * 2 + 1, mask=is_row, other=0.0)
    else:
        position = tl.load(positions_ptr + row_at, mask=is_row, other=0)
        accept, sample = uniforms_at(tl.load(seeds_ptr + req), position)
    return accept, sample


@triton.jit
def _options(top_k_ptr, top_p_ptr, min_p_ptr, req):
    """(top_k, top_p, min_p) of a request, with what is off for those that are not given."""
    top_k = req * 0
    top_p = top_k.to(tl.float32) + 1.0
    min_p = top_k.to(tl.float32)
    if top_k_ptr is not None:
        top_k = tl.load(top_k_ptr + req)
    if top_p_ptr is not None:
        top_p = tl.load(top_p_ptr + req)
    if min_p_ptr is not None:
        min_p = tl.load(min_p_ptr + req)
    return top_k, top_p, min_p


@triton.jit
def _stop_within_cuts(
    logits_ptr, logits_stride, columns, start, rows, row, list_ptr, top, total, scale, is_bad, is_accepted,
    is_candidate, value, price, worth, top_k, top_p, min_p,
    ROWS: tl.constexpr, LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """(row where the request stops, its threshold, its kept mass): from the first draft on that is not surely
    kept, rows are searched until one's draft is not."""
    stop = tl.min(tl.where(is_accepted == 0, row, ROWS), axis=0)
    threshold = scale * 0.0 + float("-inf")
    kept = _of_row(total, row, stop)
    is_open = stop * 0 + 1
    while is_open != 0:
        is_open = is_open * 0
        if (stop < rows) & (_of_row(is_bad, row, stop) == 0):
            threshold, kept = kept_set(
                logits_ptr + (start + stop).to(tl.int64) * logits_stride, columns, list_ptr,
                _of_row(top, row, stop), scale, _of_row(total, row, stop), top_k, top_p, min_p,
                LIST, MOST_PASSES,
            )  # fmt: skip
            is_taken = is_candidate & (value >= threshold) & (price * kept.to(tl.float64) < worth)
            if _of_row(is_taken.to(tl.int32), row, stop) != 0:
                is_accepted = is_accepted | (row == stop).to(tl.int32)
                stop = tl.min(tl.where(is_accepted == 0, row, ROWS), axis=0)
                is_open = is_open + 1
    return stop, threshold, kept


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
    lists_ptr,  # float32[R, LIST] or None
    tokens_ptr,  # int64[R, width]
    tokens_stride,
    counts_ptr,  # int32[R]
    not_finite_ptr,  # int64[1] or None
    width,
    NO_TOKEN: tl.constexpr, NOT_FINITE: tl.constexpr, ROUNDING: tl.constexpr, ROWS: tl.constexpr,
    PADDED: tl.constexpr, PIECE: tl.constexpr, LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """One program for each request. Draft i of a request is judged by its row i, the last row has none."""
    HAS_DRAFTS: tl.constexpr = draft_logits_ptr is not None
    IS_LIMITED: tl.constexpr = lists_ptr is not None
    req = tl.program_id(0)
    start = tl.load(starts_ptr + req)
    rows = tl.minimum(tl.load(starts_ptr + req + 1) - start, width)
    temperature = tl.load(temperature_ptr + req)
    row = tl.arange(0, ROWS)
    draft = tl.load(drafts_ptr + start + row + 1, mask=row + 1 < rows, other=-1).to(tl.int32)
    is_draft = (draft >= 0) & (draft < columns)
    piece = tl.arange(0, PADDED)
    first = start.to(tl.int64) * pieces
    at = first + row[:, None] * pieces + piece[None, :]
    is_in = (row < rows)[:, None] & (piece < pieces)[None, :]
    token = rows * 0
    is_bad_stop = rows * 0
    if temperature > 0:
        scale = scale_of(temperature)
        top, total, is_bad = _totals(best_ptr, mass_ptr, at, is_in, scale)
        row_at = (start + row).to(tl.int64)
        value = tl.load(
            logits_ptr + row_at * logits_stride + draft, mask=is_draft & (is_bad == 0), other=float("-inf")
        ).to(tl.float32)
        weight = tl.exp2((value - top) * scale)
        accept, sample = _uniforms(uniforms_ptr, seeds_ptr, positions_ptr, req, row_at, row < rows)
        # Of the draft: its own probability is draft_weight / draft_total, 1 where no distribution is given.
        draft_row_ptr = logits_ptr
        has_draft_row = rows * 0
        is_bad_draft = is_bad * 0
        draft_top = top * 0.0
        draft_total = top * 0.0 + 1.0
        draft_weight = draft_total
        if HAS_DRAFTS:
            slot = tl.load(draft_slots_ptr + req).to(tl.int64)
            draft_row_ptr = draft_logits_ptr + slot * slot_stride
            if slot >= 0:
                has_draft_row += 1
                is_given = is_in & (row + 1 < rows)[:, None]
                draft_top, draft_total, is_bad_draft = _totals(
                    draft_best_ptr, draft_mass_ptr, at, is_given, scale
                )
                is_bad_draft = tl.where(is_draft, is_bad_draft, 0)
                own = tl.load(
                    draft_row_ptr + row.to(tl.int64) * step_stride + draft,
                    mask=is_draft & (is_bad_draft == 0) & (draft < draft_columns), other=float("-inf"),
                )  # fmt: skip
                draft_weight = tl.exp2((own.to(tl.float32) - draft_top) * scale)
        # The draft is kept if accept * q < p; q and p without their divisions.
        price = accept * draft_weight.to(tl.float64)
        worth = weight.to(tl.float64) * draft_total.to(tl.float64)
        is_candidate = is_draft & (is_bad == 0) & (is_bad_draft == 0)
        is_accepted = (is_candidate & (price * total.to(tl.float64) < worth)).to(tl.int32)
        stop = tl.min(tl.where(is_accepted == 0, row, ROWS), axis=0)
        threshold = temperature * 0.0 + float("-inf")
        kept = _of_row(total, row, stop)
        if IS_LIMITED:
            top_k, top_p, min_p = _options(top_k_ptr, top_p_ptr, min_p_ptr, req)
            if ((top_k > 0) & (top_k < columns)) | (top_p < 1) | (min_p > 0):
                is_accepted = is_accepted & _surely_kept(weight, total, top_k, top_p, min_p, columns)
                stop, threshold, kept = _stop_within_cuts(
                    logits_ptr, logits_stride, columns, start, rows, row, lists_ptr + req.to(tl.int64) * LIST,
                    top, total, scale, is_bad, is_accepted, is_candidate, value, price, worth,
                    top_k, top_p, min_p, ROWS, LIST, MOST_PASSES,
                )  # fmt: skip
        is_bad_stop = _of_row(tl.where(row < rows, is_bad | is_bad_draft, 0), row, stop)
        is_sampled = _of_row(tl.where(row < rows, 1 - is_bad, 0), row, stop)
        if not_finite_ptr is None:
            is_sampled = tl.where(is_bad_stop != 0, 0, is_sampled)
        at_stop = (start + stop).to(tl.int64)
        if is_sampled != 0:
            # A draft without a distribution is rejected whatever the target says, which leaves the target's.
            is_judged = is_draft & (is_bad_draft == 0)
            judged = _of_row(tl.where(is_judged, draft + 1, 0), row, stop) - 1
            # A given distribution is subtracted only where a draft came from it.
            has_draft_row = tl.where(judged >= 0, has_draft_row, 0)
            factor = kept / tl.maximum(_of_row(tl.where(is_judged, draft_total, 1.0), row, stop), 1.0)
            token = sample_row(
                logits_ptr + at_stop * logits_stride, columns,
                best_ptr + at_stop * pieces, mass_ptr + at_stop * pieces, pieces,
                _of_row(top, row, stop), scale, threshold, _of_row(sample, row, stop),
                tl.where(has_draft_row != 0, -1, judged),
                draft_row_ptr + stop.to(tl.int64) * step_stride,
                tl.where(has_draft_row != 0, draft_columns, 0), _of_row(draft_top, row, stop), factor,
                tl.where(has_draft_row != 0, kept * ROUNDING, 0.0), HAS_DRAFTS, IS_LIMITED, PIECE, PADDED,
            )  # fmt: skip
        if not_finite_ptr is not None:
            if is_bad_stop != 0:
                tl.atomic_add(not_finite_ptr, 1)
                if is_sampled == 0:
                    token = _first_best(logits_ptr + at_stop * logits_stride, columns, pieces, PIECE)
                is_bad_stop = is_bad_stop * 0
    else:
        best = tl.load(best_ptr + at, mask=is_in, other=float("-inf"))
        winner = tl.argmax(best, axis=1, tie_break_left=True)
        choice = tl.load(at_ptr + first + row * pieces + winner, mask=row < rows, other=-2)
        stop = tl.min(tl.where(draft == choice, ROWS, row), axis=0)
        token = _of_row(choice, row, stop)
    emitted = tl.where(row < stop, draft, tl.where(row == stop, token, NO_TOKEN))
    emitted = tl.where((row <= stop) & (rows > 0) & (is_bad_stop == 0), emitted, NO_TOKEN)
    goal_ptr = tokens_ptr + req.to(tl.int64) * tokens_stride
    tl.store(goal_ptr + row, emitted.to(tl.int64), mask=row < width)
    count = tl.where(rows > 0, stop + 1, 0)
    tl.store(counts_ptr + req, tl.where(is_bad_stop != 0, NOT_FINITE, count))
