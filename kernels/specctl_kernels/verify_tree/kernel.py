"""Verification of a tree of drafts: one program walks each request's tree, and samples in one row of it."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_argmax.kernel import best_of_pieces
from specctl_kernels.row_law.judge import options_of
from specctl_kernels.row_law.stats import scale_of, temperature_of
from specctl_kernels.verify_tree.residual import sample_left, sample_left_of_list
from specctl_kernels.verify_tree.rows import nodes_of, parents_in_links, write_rows
from specctl_kernels.verify_tree.walk import walk

__all__ = ["OF_ENGINE", "greedy_tree_kernel", "tree_kernel"]

OF_ENGINE = (
    "drafts_ptr", "first_child_ptr", "next_sibling_ptr", "temperature_ptr", "top_k_ptr", "top_p_ptr",
    "min_p_ptr", "seeds_ptr", "positions_ptr",
)  # fmt: skip
"""What an engine may hand over as parts of larger memory: an address that is no multiple of 16 bytes would be
a kernel of its own, compiled for seconds in the middle of the day."""


@triton.jit
def _walk_greedy(
    best_ptr, at_ptr, pieces, start, row, token, parent, ROWS: tl.constexpr, PADDED: tl.constexpr
):
    """(row where the request stops, its choice): from the root to the child that is the row's own choice."""
    stop = start * 0
    choice = start * 0
    is_open = start * 0 + 1
    while is_open != 0:
        choice = best_of_pieces(best_ptr, at_ptr, start + stop, pieces, PADDED)
        child = tl.min(tl.where((parent == stop) & (token == choice), row, ROWS), axis=0)
        is_open = (child < ROWS).to(tl.int32)
        stop = tl.where(child < ROWS, child, stop)
    return stop, choice


@triton.jit(do_not_specialize=["rows", "depth"], do_not_specialize_on_alignment=OF_ENGINE)
def greedy_tree_kernel(
    best_ptr,  # float32[N, pieces]
    at_ptr,  # int32[N, pieces]
    pieces, columns,
    drafts_ptr,  # integer[N]
    first_child_ptr, next_sibling_ptr,  # integer[R, rows]
    emitted_ptr,  # int32[N]
    index_ptr,  # int32[R, depth]
    counts_ptr,  # int32[R]
    rows, depth,
    ROWS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """One program for each request."""
    req = tl.program_id(0)
    row = tl.arange(0, ROWS)
    start = req * rows
    parent = parents_in_links(first_child_ptr, next_sibling_ptr, start, rows, row)
    token, parent = nodes_of(drafts_ptr, start, rows, columns, row, parent, False)
    stop, choice = _walk_greedy(best_ptr, at_ptr, pieces, start, row, token, parent, ROWS, PADDED)
    write_rows(
        emitted_ptr, index_ptr, counts_ptr, req, start, rows, depth, row, token, parent, stop, choice, ROWS
    )


@triton.jit(do_not_specialize=["rows", "depth"], do_not_specialize_on_alignment=OF_ENGINE)
def tree_kernel(
    logits_ptr,  # [N, columns]
    logits_stride, columns,
    best_ptr, mass_ptr,  # float32[N, pieces]
    at_ptr,  # int32[N, pieces]
    pieces,
    drafts_ptr,  # integer[N]
    parents_ptr,  # int32[N], written here
    first_child_ptr, next_sibling_ptr,  # integer[R, rows]
    temperature_ptr,  # float32[R]
    top_k_ptr,  # int32[R] or None
    top_p_ptr, min_p_ptr,  # float32[R] or None
    seeds_ptr,  # int64[R]
    positions_ptr,  # int64[N]
    uniforms_ptr,  # float64[N, 2] or None
    parts_ptr,  # float32[N, parts] or None
    parts,
    short_ptr,  # float32[R, SHORT] or None
    short_ids_ptr,  # int32[R, SHORT] or None
    lists_ptr,  # float32[R, LIST] or None
    taken_ptr,  # int32[R, SHORT] or None
    emitted_ptr,  # int32[N]
    index_ptr,  # int32[R, depth]
    counts_ptr,  # int32[R]
    rows, depth,
    ROWS: tl.constexpr, PADDED: tl.constexpr, PIECE: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
    SHORT: tl.constexpr, LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """One program for each request."""
    IS_LIMITED: tl.constexpr = lists_ptr is not None
    req = tl.program_id(0)
    row = tl.arange(0, ROWS)
    start = req * rows
    parent = parents_in_links(first_child_ptr, next_sibling_ptr, start, rows, row)
    temperature = temperature_of(temperature_ptr, top_k_ptr, req)
    tl.store(parents_ptr + start + row, parent, mask=row < rows)
    tl.debug_barrier()
    token, parent = nodes_of(drafts_ptr, start, rows, columns, row, parent, True)
    stop = start * 0 - 1
    last_token = start * 0
    if temperature > 0:
        scale = scale_of(temperature)
        place = (start + parent).to(tl.int64) * logits_stride + token
        value = tl.load(logits_ptr + place, mask=parent >= 0, other=float("-inf")).to(tl.float32)
        top_k, top_p, min_p = options_of(top_k_ptr, top_p_ptr, min_p_ptr, req)
        at, top, threshold, listed, sample, is_bad = walk(
            logits_ptr, logits_stride, columns, best_ptr, mass_ptr, pieces, uniforms_ptr, seeds_ptr,
            positions_ptr, parts_ptr, parts, taken_ptr, short_ptr, short_ids_ptr, lists_ptr, req, start, row,
            parent, value, scale, top_k, top_p, min_p,
            IS_LIMITED, ROWS, PADDED, PARTS, PART, SHORT, LIST, MOST_PASSES,
        )  # fmt: skip
        if is_bad == 0:
            stop = at
            stop_at = (start + stop).to(tl.int64)
            if IS_LIMITED:  # noqa: SIM102 - decided when it is compiled
                if listed >= 0:
                    list_at = req.to(tl.int64) * SHORT
                    last_token = sample_left_of_list(
                        short_ptr + list_at, short_ids_ptr + list_at, listed, top, scale, threshold, sample,
                        drafts_ptr + start, parents_ptr + start, stop, rows, SHORT,
                    )  # fmt: skip
            if listed < 0:
                last_token = sample_left(
                    logits_ptr + stop_at * logits_stride, columns, best_ptr + stop_at * pieces,
                    mass_ptr + stop_at * pieces, pieces, top, scale, threshold, sample, drafts_ptr + start,
                    parents_ptr + start, stop, rows, IS_LIMITED, PIECE, PADDED,
                )  # fmt: skip
    else:
        stop, last_token = _walk_greedy(best_ptr, at_ptr, pieces, start, row, token, parent, ROWS, PADDED)
    write_rows(
        emitted_ptr, index_ptr, counts_ptr, req, start, rows, depth, row, token, parent, stop, last_token,
        ROWS,
    )  # fmt: skip
