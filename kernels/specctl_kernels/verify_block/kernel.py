"""Block verification along a chain of drafts: one program decides how far each request gets."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_law.judge import of_row, uniforms_of
from specctl_kernels.row_law.stats import scale_of, temperature_of
from specctl_kernels.verify_block.ratios import accept_uniforms
from specctl_kernels.verify_rejection.kernel import first_best, verify_kernel
from specctl_kernels.verify_rejection.residual import sample_of_masses, sample_row

__all__ = ["block_kernel"]


@triton.jit
def _stop_of_block(
    left_ptr, ratio_ptr, kept_ptr, factor_ptr, uniforms_ptr, seeds_ptr, positions_ptr, req, start, rows, row,
    pieces, BAD_DRAFT: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The row where a request stops: the last whose uniform is under h = Z / (Z + 1 - r)."""
    piece = tl.arange(0, PADDED)
    row_at = (start + row).to(tl.int64)
    factor = tl.load(factor_ptr + row_at, mask=row < rows, other=-1.0)
    ratio = tl.load(ratio_ptr + row_at, mask=row < rows, other=0.0)
    kept = tl.load(kept_ptr + row_at, mask=row < rows, other=1.0)
    at = start.to(tl.int64) * pieces + row[:, None] * pieces + piece[None, :]
    is_in = (factor > 0)[:, None] & (piece < pieces)[None, :]
    left = tl.sum(tl.load(left_ptr + at, mask=is_in, other=0.0).to(tl.float64), axis=1)
    left = tl.where(factor > 0, ratio * left / kept.to(tl.float64), 0.0)
    accept = accept_uniforms(uniforms_ptr, seeds_ptr, positions_ptr, req, start, row, rows)
    under = left + (1.0 - ratio)
    # Nothing is left of p, and nothing of the block was lost: the rows behind decide.
    is_kept = (accept * under < left) | (under <= 0) | (row == 0)
    # A last row that is open was kept.
    is_last = (factor == 0) | (factor != factor) | (factor == BAD_DRAFT)
    is_stop = ((factor > 0) & is_kept) | is_last
    return tl.max(tl.where(is_stop, row, 0), axis=0)


@triton.jit
def _sample_at(
    logits_ptr, logits_stride, columns, draft_row_ptr, draft_columns, best_ptr, mass_ptr, left_ptr, pieces,
    at_stop, scale, top, threshold, kept, draft_top, factor, uniform,
    ROUNDING: tl.constexpr, IS_LIMITED: tl.constexpr, PADDED: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """A token of what is left of the row where a request stops; of p if that is no more than rounding, or if
    there is nothing to subtract."""
    row_ptr = logits_ptr + at_stop * logits_stride
    piece = tl.arange(0, PADDED)
    left = tl.load(left_ptr + at_stop * pieces + piece, mask=piece < pieces, other=0.0).to(tl.float64)
    token = at_stop.to(tl.int32) * 0
    if (factor == 0) | ((factor > 0) & (tl.sum(left, axis=0) > kept * ROUNDING)):
        token = sample_of_masses(
            row_ptr, columns, left, top, scale, threshold, uniform, -1,
            draft_row_ptr, tl.where(factor > 0, draft_columns, 0), draft_top, factor, True, PIECE, PADDED,
        )  # fmt: skip
    else:
        token = sample_row(
            row_ptr, columns, best_ptr + at_stop * pieces, mass_ptr + at_stop * pieces, pieces, top, scale,
            threshold, uniform, token - 1, draft_row_ptr, token * 0, draft_top, factor, 0.0,
            True, IS_LIMITED, PIECE, PADDED,
        )  # fmt: skip
    return token


@triton.jit
def block_kernel(
    logits_ptr,  # [N, columns]
    logits_stride, columns,
    draft_logits_ptr,  # [slots, K, draft_columns]
    slot_stride, step_stride, draft_columns,
    draft_slots_ptr,  # int32[R]
    best_ptr, mass_ptr,  # float32[N, pieces]
    at_ptr,  # int32[N, pieces]
    pieces,
    threshold_ptr, kept_ptr, top_ptr, draft_top_ptr,  # float32[N]
    ratio_ptr,  # float64[N]
    factor_ptr,  # float32[N]
    left_ptr,  # float32[N, pieces]
    drafts_ptr,  # integer[N]
    starts_ptr,  # int32[R + 1]
    temperature_ptr,  # float32[R]
    top_k_ptr,  # int32[R] or None
    top_p_ptr, min_p_ptr,  # float32[R] or None
    seeds_ptr,  # int64[R]
    positions_ptr,  # int64[N]
    uniforms_ptr,  # float64[N, 2] or None
    searched_ptr,  # int32[R, SEARCHED], -1, or None
    lists_ptr,  # float32[SEARCHED R or more, LIST] or None
    tokens_ptr,  # int64[R, width]
    tokens_stride,
    counts_ptr,  # int32[R]
    not_finite_ptr,  # int64[1]
    width,
    NO_TOKEN: tl.constexpr, ROUNDING: tl.constexpr, BAD_DRAFT: tl.constexpr,
    ROWS: tl.constexpr, PADDED: tl.constexpr, PIECE: tl.constexpr, LIST: tl.constexpr,
    MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """One program for each request. Greedy ones and those whose drafts were not sampled go token by token."""
    req = tl.program_id(0)
    start = tl.load(starts_ptr + req)
    rows = tl.minimum(tl.load(starts_ptr + req + 1) - start, width)
    temperature = temperature_of(temperature_ptr, top_k_ptr, req)
    slot = tl.load(draft_slots_ptr + req).to(tl.int64)
    if (slot < 0) | (temperature <= 0) | (rows <= 0):
        verify_kernel(
            logits_ptr, logits_stride, columns, None, 0, 0, 0, None, best_ptr, mass_ptr, at_ptr, None, None,
            pieces, drafts_ptr, starts_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr,
            seeds_ptr, positions_ptr, uniforms_ptr,
            # No row was searched before, so what a search would have left is not read.
            searched_ptr, searched_ptr, lists_ptr, lists_ptr, searched_ptr, lists_ptr,
            tokens_ptr, tokens_stride, counts_ptr, not_finite_ptr, width,
            NO_TOKEN, ROUNDING, ROWS, PADDED, PIECE, 16, LIST, MOST_PASSES, False,
        )  # fmt: skip
    else:
        row = tl.arange(0, ROWS)
        stop = _stop_of_block(
            left_ptr, ratio_ptr, kept_ptr, factor_ptr, uniforms_ptr, seeds_ptr, positions_ptr, req, start,
            rows, row, pieces, BAD_DRAFT, ROWS, PADDED,
        )  # fmt: skip
        at_stop = (start + stop).to(tl.int64)
        factor = tl.load(factor_ptr + at_stop)
        is_bad = (factor != factor) | (factor == BAD_DRAFT)
        if is_bad:
            tl.atomic_add(not_finite_ptr, 1)
        token = stop * 0
        if factor == factor:
            row_at = (start + row).to(tl.int64)
            _, sample = uniforms_of(uniforms_ptr, seeds_ptr, positions_ptr, req, row_at, row < rows)
            token = _sample_at(
                logits_ptr, logits_stride, columns,
                draft_logits_ptr + slot * slot_stride + stop.to(tl.int64) * step_stride, draft_columns,
                best_ptr, mass_ptr, left_ptr, pieces, at_stop, scale_of(temperature),
                tl.load(top_ptr + at_stop), tl.load(threshold_ptr + at_stop), tl.load(kept_ptr + at_stop),
                tl.load(draft_top_ptr + at_stop), factor, of_row(sample, row, stop),
                ROUNDING, lists_ptr is not None, PADDED, PIECE,
            )  # fmt: skip
        else:
            token = first_best(logits_ptr + at_stop * logits_stride, columns, pieces, PIECE)
        draft = tl.load(drafts_ptr + start + row + 1, mask=row + 1 < rows, other=-1).to(tl.int64)
        emitted = tl.where(row < stop, draft, tl.where(row == stop, token.to(tl.int64), NO_TOKEN))
        tl.store(tokens_ptr + req.to(tl.int64) * tokens_stride + row, emitted, mask=row < width)
        tl.store(counts_ptr + req, stop + 1)
