"""Verification of a tree of drafts: one program walks each request's tree, and samples in one row of it."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_argmax.kernel import best_of_pieces
from specctl_kernels.verify_rejection.judge import options_of
from specctl_kernels.verify_rejection.stats import scale_of, temperature_of
from specctl_kernels.verify_tree.residual import sample_left, sample_left_of_list
from specctl_kernels.verify_tree.rows import given_tree, row_totals, tree_of, write_path, write_rows
from specctl_kernels.verify_tree.walk_down import walk_down
from specctl_kernels.verify_tree.walk_up import walk_up

__all__ = ["greedy_tree_kernel", "tree_kernel"]

OF_ENGINE = (
    "drafts_ptr", "first_child_ptr", "next_sibling_ptr", "starts_ptr", "temperature_ptr", "top_k_ptr",
    "top_p_ptr", "min_p_ptr", "seeds_ptr", "positions_ptr",
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


@triton.jit(do_not_specialize=["width", "depth"], do_not_specialize_on_alignment=OF_ENGINE)
def greedy_tree_kernel(
    best_ptr,  # float32[N, pieces]
    at_ptr,  # int32[N, pieces]
    pieces, columns,
    drafts_ptr,  # integer[N]
    parents_ptr,  # int32[N] or None
    first_child_ptr, next_sibling_ptr,  # integer[R, width] or None
    starts_ptr,  # int32[R + 1], None with links
    tokens_ptr,  # int64[R, width]; with links int32[N]
    paths_ptr,  # int32[R, width]; with links [R, depth]
    counts_ptr,  # int32[R]
    width, depth,
    NO_TOKEN: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """One program for each request."""
    req = tl.program_id(0)
    row = tl.arange(0, ROWS)
    start, rows, parent = given_tree(
        starts_ptr, parents_ptr, first_child_ptr, next_sibling_ptr, req, width, row
    )
    token, parent = tree_of(drafts_ptr, start, rows, columns, row, parent, False)
    stop = rows * 0 - 1
    choice = rows * 0
    if rows > 0:
        stop, choice = _walk_greedy(best_ptr, at_ptr, pieces, start, row, token, parent, ROWS, PADDED)
    if first_child_ptr is None:
        write_path(
            tokens_ptr, paths_ptr, counts_ptr, req, width, row, token, parent, stop, choice, rows * 0,
            NO_TOKEN,
        )  # fmt: skip
    else:
        write_rows(
            tokens_ptr, paths_ptr, counts_ptr, req, start, rows, depth, row, token, parent, stop, choice, ROWS
        )


@triton.jit(do_not_specialize=["width", "depth"], do_not_specialize_on_alignment=OF_ENGINE)
def tree_kernel(
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
    parents_ptr,  # int32[N], with links written here
    first_child_ptr, next_sibling_ptr,  # integer[R, width] or None
    starts_ptr,  # int32[R + 1], None with links
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
    tokens_ptr,  # int64[R, width]; with links int32[N]
    paths_ptr,  # int32[R, width]; with links [R, depth]
    counts_ptr,  # int32[R]
    width, depth,
    IS_TRAVERSAL: tl.constexpr, NO_TOKEN: tl.constexpr, NOT_FINITE: tl.constexpr, ROUNDING: tl.constexpr,
    ROWS: tl.constexpr, PADDED: tl.constexpr, PIECE: tl.constexpr, PARTS: tl.constexpr,
    PART: tl.constexpr, SHORT: tl.constexpr, LIST: tl.constexpr,
    MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """One program for each request."""
    HAS_DRAFTS: tl.constexpr = draft_logits_ptr is not None
    IS_LIMITED: tl.constexpr = lists_ptr is not None
    req = tl.program_id(0)
    row = tl.arange(0, ROWS)
    start, rows, parent = given_tree(
        starts_ptr, parents_ptr, first_child_ptr, next_sibling_ptr, req, width, row
    )
    if first_child_ptr is None:
        temperature = temperature_of(temperature_ptr, None, req)
    else:
        temperature = temperature_of(temperature_ptr, top_k_ptr, req)
        tl.store(parents_ptr + start + row, parent, mask=row < rows)
        tl.debug_barrier()
    token, parent = tree_of(drafts_ptr, start, rows, columns, row, parent, True)
    stop = rows * 0 - 1
    last_token = rows * 0
    is_bad = rows * 0
    if (rows > 0) & (temperature > 0):
        scale = scale_of(temperature)
        is_node = parent >= 0
        place = (start + parent).to(tl.int64) * logits_stride + token
        value = tl.load(logits_ptr + place, mask=is_node, other=float("-inf")).to(tl.float32)
        top_k, top_p, min_p = options_of(top_k_ptr, top_p_ptr, min_p_ptr, req)
        # Of the drafts: what they were sampled from, if they were.
        has_law = rows * 0
        draft_row_ptr = logits_ptr
        draft_value = value
        if HAS_DRAFTS:
            slot = tl.load(draft_slots_ptr + req).to(tl.int64)
            has_law = (slot >= 0).to(tl.int32)
            draft_row_ptr = draft_logits_ptr + slot * slot_stride
            known_columns = tl.where(has_law != 0, draft_columns, 0)
            draft_value = tl.load(
                draft_row_ptr + parent.to(tl.int64) * step_stride + token,
                mask=is_node & (token < known_columns), other=float("-inf"),
            ).to(tl.float32)  # fmt: skip
        end = rows
        threshold = scale * 0.0 + float("-inf")
        kept = scale * 0.0
        listed = rows * 0 - 1
        debt = kept.to(tl.float64)
        sample = debt
        is_up = rows * 0
        if HAS_DRAFTS and IS_TRAVERSAL:
            is_up = has_law
        if is_up != 0:
            if HAS_DRAFTS:
                stop, end, threshold, kept, listed, debt, sample, is_bad = walk_up(
                    logits_ptr, logits_stride, columns, draft_row_ptr, step_stride, draft_columns,
                    best_ptr, mass_ptr, draft_best_ptr, draft_mass_ptr, pieces, drafts_ptr, parents_ptr,
                    uniforms_ptr, seeds_ptr, positions_ptr,
                    parts_ptr, parts, taken_ptr, short_ptr, short_ids_ptr, lists_ptr, req, start, row, parent,
                    value, draft_value, scale, top_k, top_p, min_p,
                    IS_LIMITED, ROUNDING, ROWS, PADDED, PIECE, PARTS, PART, SHORT, LIST,
                    MOST_PASSES,
                )  # fmt: skip
        else:
            stop, end, threshold, kept, listed, debt, sample, is_bad = walk_down(
                logits_ptr, logits_stride, columns, draft_row_ptr, step_stride, draft_columns, has_law,
                best_ptr, mass_ptr, draft_best_ptr, draft_mass_ptr, pieces, drafts_ptr, parents_ptr,
                uniforms_ptr, seeds_ptr, positions_ptr,
                parts_ptr, parts, taken_ptr, short_ptr, short_ids_ptr, lists_ptr, req, start, rows, row,
                parent, value, draft_value, scale, top_k, top_p, min_p,
                HAS_DRAFTS, IS_LIMITED, ROUNDING, ROWS, PADDED, PIECE, PARTS, PART, SHORT, LIST,
                MOST_PASSES,
            )  # fmt: skip
        if is_bad != 0:
            stop = rows * 0 - 1
        else:
            at = (start + stop).to(tl.int64)
            top, _, _ = row_totals(best_ptr, mass_ptr, at, pieces, scale, PADDED)
            draft_top = top * 0.0
            factor = top * 0.0
            if HAS_DRAFTS:
                is_owed = debt > 0
                if is_owed:
                    draft_top, draft_total, _ = row_totals(
                        draft_best_ptr, draft_mass_ptr, at, pieces, scale, PADDED
                    )
                    factor = (debt * kept / draft_total).to(tl.float32)
            stop_row_ptr = draft_row_ptr + stop.to(tl.int64) * step_stride
            given_columns = tl.where(debt > 0, draft_columns, 0)
            least = tl.where(debt > 0, kept * ROUNDING, 0.0)
            if IS_LIMITED:  # noqa: SIM102 - decided when it is compiled
                if listed >= 0:
                    list_at = req.to(tl.int64) * SHORT
                    last_token = sample_left_of_list(
                        short_ptr + list_at, short_ids_ptr + list_at, listed, top, scale, threshold, sample,
                        drafts_ptr + start, parents_ptr + start, stop, end, stop_row_ptr, given_columns,
                        draft_top, factor, least, HAS_DRAFTS, SHORT,
                    )  # fmt: skip
            if listed < 0:
                last_token = sample_left(
                    logits_ptr + at * logits_stride, columns, best_ptr + at * pieces, mass_ptr + at * pieces,
                    pieces, top, scale, threshold, sample, drafts_ptr + start, parents_ptr + start, stop, end,
                    stop_row_ptr, given_columns, draft_top, factor, least,
                    HAS_DRAFTS, IS_LIMITED, PIECE, PADDED,
                )  # fmt: skip
    elif rows > 0:
        stop, last_token = _walk_greedy(best_ptr, at_ptr, pieces, start, row, token, parent, ROWS, PADDED)
    if first_child_ptr is None:
        of_none = tl.where(is_bad != 0, NOT_FINITE, 0)
        write_path(
            tokens_ptr, paths_ptr, counts_ptr, req, width, row, token, parent, stop, last_token, of_none,
            NO_TOKEN,
        )  # fmt: skip
    else:
        write_rows(
            tokens_ptr, paths_ptr, counts_ptr, req, start, rows, depth, row, token, parent, stop, last_token,
            ROWS,
        )  # fmt: skip
