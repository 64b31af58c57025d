"""Multi-candidate rejection sampling (SpecInfer): from the root, child after child, to the row that stops."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.verify_rejection.judge import has_cuts, of_row, surely_kept
from specctl_kernels.verify_rejection.kept import kept_set_of
from specctl_kernels.verify_tree.residual import left_behind
from specctl_kernels.verify_tree.rows import row_totals, uniforms_of

__all__ = ["walk_down"]


@triton.jit
def _child_over(weight, is_child, row, goal, ROWS: tl.constexpr):
    """(the first child up to which more than ``goal`` of the children's weights lies, else ROWS; what lies
    before it)."""
    own = tl.where(is_child, weight, 0.0).to(tl.float64)
    reached = tl.cumsum(own, axis=0)
    child = tl.min(tl.where(is_child & (reached > goal), row, ROWS), axis=0)
    return child, of_row(reached - own, row, child)


@triton.jit
def _given_in_doubt(
    weight, is_child, row, value, accept, top, total, top_k, top_p, min_p, columns, ROWS: tl.constexpr
):  # fmt: skip
    """Whether the kept set may say which child is accepted, where they were not sampled. Without it: the kept
    mass is from top_p of all to all, and both ends say the same child."""
    child, before = _child_over(weight, is_child, row, accept * total, ROWS)
    is_kept = surely_kept(value, top, weight, total, top_k, top_p, min_p, columns) != 0
    least = tl.where(has_cuts(top_k, 1.0, min_p, columns), 0.0, top_p * 0.999 * total)
    in_doubt = tl.max((is_child & (row <= child) & (is_kept == 0)).to(tl.int32), axis=0)
    return (child == ROWS) | (in_doubt != 0) | (before > accept * least)


@triton.jit
def _sampled_in_doubt(
    weight, share, row, first, value, accept, top, total, top_k, top_p, min_p, columns
):  # fmt: skip
    """As ``_given_in_doubt``, where children were sampled: whether the first of them is not surely kept."""
    is_kept = of_row(surely_kept(value, top, weight, total, top_k, top_p, min_p, columns), row, first)
    is_worth = accept * of_row(share, row, first) < of_row(weight, row, first).to(tl.float64) / total
    return (is_kept == 0) | (is_worth == 0)


@triton.jit
def _one_of_sampled(
    row_ptr, columns, draft_row_ptr, draft_columns, pieces, drafts_ptr, parents_ptr, at, row,
    is_child, weight, share, accept, top, draft_top, draft_total, scale, threshold, kept,
    ROUNDING: tl.constexpr, ROWS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """(accepted child or ROWS, debt, row behind the last child tried) where children were sampled without
    replacement. A uniform number that rejects is stretched to one again."""
    child = tl.min(tl.where(is_child, row, ROWS), axis=0)
    is_trying = at * 0 + 1
    debt = accept * 0.0
    left = debt + 1.0
    of_draft = debt + 1.0
    end = at + 1
    while is_trying != 0:
        q = of_row(share, row, child)
        p = tl.maximum(of_row(weight, row, child).to(tl.float64) / kept - debt * q, 0.0)
        worth = p * of_draft
        price = q * left
        if accept * price < worth:
            is_trying = is_trying * 0
        else:
            chance = worth / tl.maximum(price, 1e-300)
            accept = tl.maximum(accept - chance, 0.0) / tl.maximum(1.0 - chance, 1e-300)
            debt += left / of_draft
            end = child + 1
            child = tl.min(tl.where(is_child & (row > child), row, ROWS), axis=0)
            if child < ROWS:
                left, of_draft = left_behind(
                    row_ptr, columns, pieces, top, scale, threshold, drafts_ptr, parents_ptr, at, end,
                    draft_row_ptr, draft_columns, draft_top, (debt * kept / draft_total).to(tl.float32),
                    PIECE,
                )  # fmt: skip
                left = left / kept
                of_draft = of_draft / draft_total
                if (left <= ROUNDING) | (of_draft <= 0):
                    child = child * 0 + ROWS
            if child == ROWS:
                is_trying = is_trying * 0
    return child, debt, end


@triton.jit
def walk_down(
    logits_ptr, logits_stride, columns, draft_row_ptr, step_stride, draft_columns, has_law,
    best_ptr, mass_ptr, draft_best_ptr, draft_mass_ptr, pieces, drafts_ptr, parents_ptr,
    uniforms_ptr, seeds_ptr, positions_ptr,
    parts_ptr, parts, taken_ptr, short_ptr, short_ids_ptr, lists_ptr, req, start, rows, row, parent,
    value, draft_value, scale, top_k, top_p, min_p,
    HAS_DRAFTS: tl.constexpr, IS_LIMITED: tl.constexpr, ROUNDING: tl.constexpr, ROWS: tl.constexpr,
    PADDED: tl.constexpr, PIECE: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
    SHORT: tl.constexpr, LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """(row where the request stops; row behind the last of its children tried; its threshold, kept mass, how
    many entries the short list has of it, -1 without one, debt of the draft's law, and uniform number to
    sample with; 1 where a row on the path has no distribution)."""
    at = rows * 0
    end = rows
    is_bad = rows * 0
    threshold = scale * 0.0 + float("-inf")
    kept = scale * 0.0
    listed = rows * 0 - 1
    debt = kept.to(tl.float64)
    sample = debt
    is_open = rows * 0 + 1
    while is_open != 0:
        place = start + at
        is_child = parent == at
        first = tl.min(tl.where(is_child, row, ROWS), axis=0)
        top, total, is_bad = row_totals(best_ptr, mass_ptr, place, pieces, scale, PADDED)
        accept, sample = uniforms_of(uniforms_ptr, seeds_ptr, positions_ptr, req, start, at, False)
        is_sampled = rows * 0
        draft_top = top
        draft_total = total
        if HAS_DRAFTS:
            is_sampled = ((has_law != 0) & (first < ROWS)).to(tl.int32)
            if is_sampled != 0:
                draft_top, draft_total, is_bad_draft = row_totals(
                    draft_best_ptr, draft_mass_ptr, place, pieces, scale, PADDED
                )
                is_bad = is_bad | is_bad_draft
        child = first * 0 + ROWS
        if is_bad == 0:
            child_value = tl.where(is_child, value, float("-inf"))
            weight = tl.exp2((child_value - top) * scale)
            share = weight.to(tl.float64)
            if HAS_DRAFTS:
                own = tl.where(is_child, draft_value, float("-inf"))
                share = tl.exp2((own - draft_top) * scale).to(tl.float64) / draft_total
            threshold = scale * 0.0 + float("-inf")
            kept = total
            listed = rows * 0 - 1
            if IS_LIMITED:
                is_cut = has_cuts(top_k, top_p, min_p, columns)
                if is_cut:
                    in_doubt = _given_in_doubt(
                        weight, is_child, row, child_value, accept, top, total, top_k, top_p, min_p, columns,
                        ROWS,
                    )  # fmt: skip
                    if HAS_DRAFTS:
                        of_sampled = _sampled_in_doubt(
                            weight, share, row, first, child_value, accept, top, total, top_k, top_p, min_p,
                            columns,
                        )  # fmt: skip
                        in_doubt = tl.where(is_sampled != 0, of_sampled, in_doubt)
                    if in_doubt:
                        threshold, kept, listed = kept_set_of(
                            logits_ptr, logits_stride, columns, parts_ptr, parts, taken_ptr, short_ptr,
                            short_ids_ptr, lists_ptr, place.to(tl.int64), req.to(tl.int64), top, scale, total,
                            top_k, top_p, min_p, PARTS, PART, SHORT, LIST, MOST_PASSES,
                        )  # fmt: skip
                        weight = tl.where(child_value >= threshold, weight, 0.0)
            if is_sampled != 0:
                if HAS_DRAFTS:
                    child, debt, end = _one_of_sampled(
                        logits_ptr + place.to(tl.int64) * logits_stride, columns,
                        draft_row_ptr + at.to(tl.int64) * step_stride, draft_columns,
                        pieces, drafts_ptr + start, parents_ptr + start, at, row, is_child, weight, share,
                        accept, top, draft_top, draft_total, scale, threshold, kept, ROUNDING, ROWS, PIECE,
                    )  # fmt: skip
            else:
                # To try each child with its share of what is left is to find where one uniform number falls
                # among their masses.
                child, _before = _child_over(weight, is_child, row, accept * kept, ROWS)
                debt = debt * 0.0
                end = rows
        is_open = (child < ROWS).to(tl.int32)
        at = tl.where(child < ROWS, child, at)
    return at, end, threshold, kept, listed, debt, sample, is_bad
