"""Every row of a uniform draft pass by a program of its own."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["peagle_rows_kernel"]


@triton.jit(do_not_specialize=["tokens_stride", "mask_id", "requests", "padding_length"])
def peagle_rows_kernel(
    tokens_ptr, tokens_stride,  # [n, w]
    hidden_ptr, hidden_stride, hidden_row_stride,  # [n, w, HIDDEN]
    known_ptr,  # [n]
    mask_hidden_ptr,  # [HIDDEN]
    requests_ptr, starts_ptr,  # [n] each
    table_ptr, table_stride,  # [P, T]
    ids_ptr,  # int64[n * ROWS]
    states_ptr,  # [n * ROWS, HIDDEN]
    slots_ptr,  # int64[n * ROWS]
    first_ptr,  # int64[n]
    last_ptr,  # [n, HIDDEN]
    positions_ptr,  # int64[m * ROWS] or None, with all that follow
    lengths_ptr,  # int64[m]
    row_counts_ptr,  # int32[m]
    requests_out_ptr,  # int64[m]
    mask_id, requests, padding_length,
    ROWS: tl.constexpr, DRAFTS: tl.constexpr, HIDDEN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Program (request and row, TILE columns of its state); behind the requests those that only pad."""
    place = tl.program_id(0).to(tl.int64)
    req = place // ROWS
    row = place % ROWS
    if req >= requests:
        if (positions_ptr is not None) and (tl.program_id(1) == 0):
            tl.store(slots_ptr + place, 0)
            tl.store(positions_ptr + place, 0)
            if row == 0:
                tl.store(lengths_ptr + req, padding_length)
                tl.store(row_counts_ptr + req, ROWS)
                tl.store(requests_out_ptr + req, 0)
    else:
        known = tl.load(known_ptr + req).to(tl.int64)
        last = tl.maximum(known - 1, 0)

        column = tl.program_id(1) * TILE + tl.arange(0, TILE)
        is_column = column < HIDDEN
        is_given = column < tl.where(row < known, HIDDEN, 0)
        source = req * hidden_stride + row * hidden_row_stride + column
        state = tl.load(hidden_ptr + source, mask=is_given, other=0.0)
        masked = tl.load(mask_hidden_ptr + column, mask=is_column & (is_given == 0), other=0.0)
        state = tl.where(is_given, state, masked.to(state.dtype))
        tl.store(states_ptr + place * HIDDEN + column, state, mask=is_column)
        tl.store(last_ptr + req * HIDDEN + column, state, mask=column < tl.where(row == last, HIDDEN, 0))

        if tl.program_id(1) == 0:
            token = tl.load(tokens_ptr + req * tokens_stride + row, mask=row < known, other=0).to(tl.int64)
            tl.store(ids_ptr + place, tl.where(row < known, token, mask_id))
            position = tl.load(starts_ptr + req).to(tl.int64) + row
            request = tl.load(requests_ptr + req).to(tl.int64)
            slot = tl.load(table_ptr + request * table_stride + position)
            tl.store(slots_ptr + place, slot.to(tl.int64))
            if positions_ptr is not None:
                tl.store(positions_ptr + place, position)
                if row == 0:
                    tl.store(lengths_ptr + req, position + ROWS)
                    tl.store(row_counts_ptr + req, ROWS)
                    tl.store(requests_out_ptr + req, request)
            if row == 0:
                tl.store(first_ptr + req, place + tl.minimum(last, ROWS - DRAFTS))
