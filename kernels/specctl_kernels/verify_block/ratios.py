"""What decides how much of a block may be kept, before any residual is known."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_law.draws import uniforms_at
from specctl_kernels.row_law.judge import (
    has_cuts,
    of_row,
    options_of,
    partials_at,
    pieces_at,
    rows_of,
    totals_of,
)
from specctl_kernels.row_law.stats import scale_of, temperature_of
from specctl_kernels.verify_rejection.kept import truncation_of
from specctl_kernels.verify_rejection.search import SEARCHED

__all__ = ["accept_uniforms", "cuts_kernel", "ratios_kernel"]


@triton.jit
def accept_uniforms(uniforms_ptr, seeds_ptr, positions_ptr, req, start, row, rows):
    """float64 of rows: which the chance to keep a block up to a row must exceed; 0 for the first row.

    Drawn by the first row's position and the place in the block. Drawn by their own positions, those behind
    the kept drafts would come up again in the next step, although it is known that they were too large.
    """
    if uniforms_ptr is not None:
        at = (start + row).to(tl.int64) * 2 - 2
        accept = tl.load(uniforms_ptr + at, mask=(row > 0) & (row < rows), other=0.0)
    else:
        place = tl.maximum(row - 1, 0)
        accept, _ = uniforms_at(tl.load(seeds_ptr + req), tl.load(positions_ptr + start), place)
    return tl.where(row > 0, accept, 0.0)


@triton.jit
def cuts_kernel(
    logits_ptr,  # [N, columns]
    logits_stride, columns,
    best_ptr, mass_ptr,  # float32[N, pieces]
    pieces,
    drafts_ptr,  # integer[N]
    draft_slots_ptr,  # int32[R]
    starts_ptr,  # int32[R + 1]
    temperature_ptr,  # float32[R]
    top_k_ptr,  # int32[R] or None
    top_p_ptr, min_p_ptr,  # float32[R] or None
    parts_ptr,  # float32[N, parts]
    parts,
    searched_ptr,  # int32[R, SEARCHED]
    short_ptr,  # float32[N or more, SHORT]
    short_ids_ptr,  # int32[N or more, SHORT]
    lists_ptr,  # float32[N or more, LIST]
    taken_ptr,  # int32[N or more, SHORT]
    threshold_ptr, kept_ptr,  # float32[N]
    width,
    ROWS: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
    SHORT: tl.constexpr, LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """Program (request and row of it): the least logit that is kept and the mass that is. Left out are rows
    behind the block's end, and requests without cuts or without a draft distribution. Of the latter nothing
    is listed, so that ``verify_kernel`` reads their rows."""
    req = tl.program_id(0) // width
    place = tl.program_id(0) % width
    if place == 0:
        for which in tl.static_range(SEARCHED):
            tl.store(searched_ptr + req * SEARCHED + which, -1)
    start, rows, row, _draft, is_draft = rows_of(starts_ptr, drafts_ptr, req, columns, width, ROWS)
    temperature = temperature_of(temperature_ptr, top_k_ptr, req)
    top_k, top_p, min_p = options_of(top_k_ptr, top_p_ptr, min_p_ptr, req)
    is_block = (tl.load(draft_slots_ptr + req) >= 0) & (temperature > 0)
    if is_block & (place < rows) & has_cuts(top_k, top_p, min_p, columns):
        last = tl.min(tl.where(is_draft, ROWS, row), axis=0)
        at, is_in = pieces_at(start, rows, row, pieces, PADDED)
        scale = scale_of(temperature)
        best, mass = partials_at(best_ptr, mass_ptr, at, is_in & (row == place)[:, None])
        top, total, is_bad = totals_of(best, mass, scale)
        if (place <= last) & (of_row(is_bad, row, place) == 0):
            at_row = (start + place).to(tl.int64)
            threshold, kept, _listed = truncation_of(
                logits_ptr, logits_stride, columns, parts_ptr, parts, taken_ptr, short_ptr, short_ids_ptr,
                lists_ptr, at_row, at_row, of_row(top, row, place), scale, of_row(total, row, place),
                top_k, top_p, min_p, PARTS, PART, SHORT, LIST, MOST_PASSES,
            )  # fmt: skip
            tl.store(threshold_ptr + at_row, threshold)
            tl.store(kept_ptr + at_row, kept)


@triton.jit
def _running_ratios(worth, price, row, last, ROWS: tl.constexpr):
    """float64[ROWS]: r_0 = 1, r_i = min(r_{i-1} p(x_i) / q(x_i), 1), where p / q is worth / price."""
    ratios = row.to(tl.float64) * 0.0 + 1.0
    ratio = last.to(tl.float64) * 0.0 + 1.0
    i = last * 0
    while i < last:
        own = ratio * of_row(worth, row, i)
        other = of_row(price, row, i)
        less = own / tl.maximum(other, 1e-300)
        ratio = tl.where(own >= other, tl.where(own > 0, 1.0, 0.0), less)
        i += 1
        ratios = tl.where(row == i, ratio, ratios)
    return ratios


@triton.jit
def ratios_kernel(
    logits_ptr,  # [N, columns]
    logits_stride, columns,
    draft_logits_ptr,  # [slots, K, draft_columns]
    slot_stride, step_stride, draft_columns,
    draft_slots_ptr,  # int32[R]
    best_ptr, mass_ptr, draft_best_ptr, draft_mass_ptr,  # float32[N, pieces]
    pieces,
    drafts_ptr,  # integer[N]
    starts_ptr,  # int32[R + 1]
    temperature_ptr,  # float32[R]
    top_k_ptr,  # int32[R] or None
    top_p_ptr, min_p_ptr,  # float32[R] or None
    seeds_ptr,  # int64[R]
    positions_ptr,  # int64[N]
    uniforms_ptr,  # float64[N, 2] or None
    threshold_ptr, kept_ptr,  # float32[N], in: of rows with cuts; out: of all
    top_ptr, draft_top_ptr,  # float32[N]
    ratio_ptr,  # float64[N]
    factor_ptr,  # float32[N]
    width,
    NOT_READ: tl.constexpr, BAD_DRAFT: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """One program for each request: of each row where its block may still end, how the row is to be weighed.

    The chance to end there or behind is at most r_i. So a row whose uniform is not under r_i is not read, and
    none but the last where the last one's is: its chance is exactly r_i. ``factor`` is ``NOT_READ``; else 0
    where the target alone counts; NaN where it has no distribution, ``BAD_DRAFT`` where its draft has none;
    else what makes a draft's weight that of q / r_i, in units of the target's weights.
    """
    req = tl.program_id(0)
    start, rows, row, draft, is_draft = rows_of(starts_ptr, drafts_ptr, req, columns, width, ROWS)
    temperature = temperature_of(temperature_ptr, top_k_ptr, req)
    slot = tl.load(draft_slots_ptr + req).to(tl.int64)
    if (slot >= 0) & (temperature > 0) & (rows > 0):
        row_at = (start + row).to(tl.int64)
        at, is_in = pieces_at(start, rows, row, pieces, PADDED)
        scale = scale_of(temperature)
        best, mass = partials_at(best_ptr, mass_ptr, at, is_in)
        top, total, is_bad = totals_of(best, mass, scale)
        draft_best, draft_mass = partials_at(
            draft_best_ptr, draft_mass_ptr, at, is_in & (row + 1 < rows)[:, None]
        )
        draft_top, draft_total, is_bad_draft = totals_of(draft_best, draft_mass, scale)
        last = tl.min(tl.where(is_draft & (is_bad == 0) & (is_bad_draft == 0), ROWS, row), axis=0)
        threshold = top * 0.0 + float("-inf")
        kept = total
        top_k, top_p, min_p = options_of(top_k_ptr, top_p_ptr, min_p_ptr, req)
        if has_cuts(top_k, top_p, min_p, columns):
            is_searched = (row <= last) & (is_bad == 0)
            threshold = tl.load(threshold_ptr + row_at, mask=is_searched, other=0.0)
            kept = tl.load(kept_ptr + row_at, mask=is_searched, other=1.0)
        value = tl.load(logits_ptr + row_at * logits_stride + draft, mask=row < last, other=float("-inf")).to(
            tl.float32
        )
        weight = tl.where(value >= threshold, tl.exp2((value - top) * scale), 0.0)
        own = tl.load(
            draft_logits_ptr + slot * slot_stride + row.to(tl.int64) * step_stride + draft,
            mask=(row < last) & (draft < draft_columns), other=float("-inf"),
        ).to(tl.float32)  # fmt: skip
        draft_weight = tl.exp2((own - draft_top) * scale)
        worth = weight.to(tl.float64) * draft_total.to(tl.float64)
        ratio = _running_ratios(worth, draft_weight.to(tl.float64) * kept.to(tl.float64), row, last, ROWS)
        accept = accept_uniforms(uniforms_ptr, seeds_ptr, positions_ptr, req, start, row, rows)
        is_open = (row <= last) & (accept < ratio)
        is_whole = tl.max(tl.where(row == last, is_open.to(tl.int32), 0), axis=0)
        is_open = is_open & ((row == last) | (is_whole == 0))
        # Bounded, so that its product with a weight is finite.
        factor = tl.minimum(kept / tl.maximum(draft_total * ratio.to(tl.float32), 1e-30), 1e30)
        of_last = tl.where(is_draft & (is_bad_draft != 0), BAD_DRAFT, 0.0)
        of_last = tl.where(is_bad != 0, float("nan"), of_last)
        factor = tl.where(row == last, of_last, factor)
        tl.store(factor_ptr + row_at, tl.where(is_open, factor, NOT_READ), mask=row < rows)
        tl.store(ratio_ptr + row_at, ratio, mask=row < rows)
        tl.store(threshold_ptr + row_at, threshold, mask=row < rows)
        tl.store(kept_ptr + row_at, kept, mask=row < rows)
        tl.store(top_ptr + row_at, top, mask=row < rows)
        tl.store(draft_top_ptr + row_at, draft_top, mask=row < rows)
