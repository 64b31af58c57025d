"""The mass that a draft distribution leaves of the target's, by row and piece."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_law.stats import scale_of, temperature_of
from specctl_kernels.verify_rejection.residual import weights_of

__all__ = ["masses_kernel"]


@triton.jit
def masses_kernel(
    logits_ptr,  # [N, columns]
    logits_stride, columns,
    draft_logits_ptr,  # [slots, K, draft_columns]
    slot_stride, step_stride, draft_columns,
    draft_slots_ptr,  # int32[R]
    best_ptr, mass_ptr,  # float32[N, pieces]
    pieces,
    starts_ptr,  # int32[R + 1]
    temperature_ptr,  # float32[R]
    top_k_ptr,  # int32[R] or None
    threshold_ptr, top_ptr, draft_top_ptr, factor_ptr,  # float32[N]
    left_ptr,  # float32[N, pieces]
    width,
    PIECE: tl.constexpr,
):  # fmt: skip
    """Program (request and row of it, piece): the sum of max(p - q / r_i, 0) over the piece, in units of the
    target's weights; of p alone in the row behind a block's last draft. Rows that do not matter are not read,
    nor pieces of which nothing is kept."""
    req = tl.program_id(0) // width
    row = tl.program_id(0) % width
    piece = tl.program_id(1)
    start = tl.load(starts_ptr + req)
    rows = tl.load(starts_ptr + req + 1) - start
    slot = tl.load(draft_slots_ptr + req).to(tl.int64)
    temperature = temperature_of(temperature_ptr, top_k_ptr, req)
    if (row < rows) & (slot >= 0) & (temperature > 0):
        at_row = (start + row).to(tl.int64)
        factor = tl.load(factor_ptr + at_row)
        if factor >= 0:
            at = at_row * pieces + piece
            scale = scale_of(temperature)
            threshold = tl.load(threshold_ptr + at_row)
            top = tl.load(top_ptr + at_row)
            best = tl.load(best_ptr + at)
            left = tl.load(mass_ptr + at) * tl.exp2((best - top) * scale)
            if (factor > 0) | (threshold > float("-inf")):
                is_kept = best >= threshold
                weight = weights_of(
                    logits_ptr + at_row * logits_stride, tl.where(is_kept, columns, 0),
                    piece * PIECE + tl.arange(0, PIECE), top, scale, threshold, -1,
                    draft_logits_ptr + slot * slot_stride + row.to(tl.int64) * step_stride,
                    tl.where(is_kept & (factor > 0), draft_columns, 0), tl.load(draft_top_ptr + at_row),
                    factor, True,
                )  # fmt: skip
                left = tl.sum(weight, axis=0)
            tl.store(left_ptr + at, left)
