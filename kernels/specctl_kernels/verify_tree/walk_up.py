"""Traversal verification: from the leaves, each with the chance of its whole path, to the row that stops."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.verify_rejection.judge import has_cuts, of_row
from specctl_kernels.verify_rejection.kept import kept_set_of
from specctl_kernels.verify_tree.residual import left_behind
from specctl_kernels.verify_tree.rows import row_totals, uniforms_of

__all__ = ["walk_up"]


@triton.jit
def _after_rejection(
    row_ptr, columns, draft_row_ptr, draft_columns, pieces, drafts_ptr, parents_ptr, at, tried,
    top, draft_top, draft_total, scale, threshold, kept, chance, debt, left, of_draft, PIECE: tl.constexpr,
):  # fmt: skip
    """(chance, debt, left, of_draft) of a row once the child ``tried`` and all below it are rejected."""
    debt += left / (chance * of_draft)
    now, of_draft = left_behind(
        row_ptr, columns, pieces, top, scale, threshold, drafts_ptr, parents_ptr, at, tried + 1,
        draft_row_ptr, draft_columns, draft_top, (debt * kept / draft_total).to(tl.float32), PIECE,
    )  # fmt: skip
    now = now / kept
    mass = chance * now / left
    after = mass / tl.maximum(mass + 1.0 - chance, 1e-300)
    return tl.where(chance == 1.0, 1.0, after), debt, now, of_draft / draft_total


@triton.jit
def walk_up(
    logits_ptr, logits_stride, columns, draft_row_ptr, step_stride, draft_columns,
    best_ptr, mass_ptr, draft_best_ptr, draft_mass_ptr, pieces, drafts_ptr, parents_ptr,
    uniforms_ptr, seeds_ptr, positions_ptr,
    parts_ptr, parts, taken_ptr, short_ptr, short_ids_ptr, lists_ptr, req, start, row, parent,
    value, draft_value, scale, top_k, top_p, min_p,
    IS_LIMITED: tl.constexpr, ROUNDING: tl.constexpr, ROWS: tl.constexpr,
    PADDED: tl.constexpr, PIECE: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
    SHORT: tl.constexpr, LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """As ``walk_down``, for drafts that were sampled. Each row is entered from its parent once, and come back
    to from each child that was rejected; of the rows between the root and here, one entry each:"""
    chances = tl.where(row == 0, 1.0, 0.0).to(tl.float64)  # of what hangs on the row to be accepted
    debts = chances * 0.0
    lefts = debts + 1.0  # mass of p - debt q
    of_drafts = debts + 1.0  # mass of q without the children tried
    thresholds = (row * 0).to(tl.float32) + float("-inf")
    kepts = (row * 0).to(tl.float32)
    tried = row
    listed = start * 0 - 1  # entries that the short list has, and the row that they are of
    listed_at = start * 0 - 1
    at = start * 0
    is_back = start * 0
    is_bad = start * 0
    is_open = start * 0 + 1
    while is_open != 0:
        place = start + at
        row_ptr = logits_ptr + place.to(tl.int64) * logits_stride
        last = of_row(tried, row, at)
        child = tl.min(tl.where((parent == at) & (row > last), row, ROWS), axis=0)
        top, total, is_bad = row_totals(best_ptr, mass_ptr, place, pieces, scale, PADDED)
        draft_top = top
        draft_total = total
        if (child < ROWS) | (is_back != 0):
            draft_top, draft_total, is_bad_draft = row_totals(
                draft_best_ptr, draft_mass_ptr, place, pieces, scale, PADDED
            )
            is_bad = is_bad | is_bad_draft
        if is_bad != 0:
            is_open = is_open * 0
        else:
            threshold = scale * 0.0 + float("-inf")
            kept = total
            chance = of_row(chances, row, at)
            debt = of_row(debts, row, at)
            left = of_row(lefts, row, at)
            of_draft = of_row(of_drafts, row, at)
            if is_back != 0:
                threshold = of_row(thresholds, row, at)
                kept = of_row(kepts, row, at)
                chance, debt, left, of_draft = _after_rejection(
                    row_ptr, columns, draft_row_ptr + at.to(tl.int64) * step_stride, draft_columns, pieces,
                    drafts_ptr + start, parents_ptr + start, at, last, top, draft_top, draft_total, scale,
                    threshold, kept, chance, debt, left, of_draft, PIECE,
                )  # fmt: skip
            elif IS_LIMITED:
                is_cut = has_cuts(top_k, top_p, min_p, columns)
                if is_cut:
                    threshold, kept, listed = kept_set_of(
                        logits_ptr, logits_stride, columns, parts_ptr, parts, taken_ptr, short_ptr,
                        short_ids_ptr, lists_ptr, place.to(tl.int64), req.to(tl.int64), top, scale, total,
                        top_k, top_p, min_p, PARTS, PART, SHORT, LIST, MOST_PASSES,
                    )  # fmt: skip
                    listed_at = at
            is_here = row == at
            thresholds = tl.where(is_here, threshold, thresholds)
            kepts = tl.where(is_here, kept, kepts)
            chances = tl.where(is_here, chance, chances)
            debts = tl.where(is_here, debt, debts)
            lefts = tl.where(is_here, left, lefts)
            of_drafts = tl.where(is_here, of_draft, of_drafts)
            if (child < ROWS) & (left > ROUNDING) & (of_draft > 0):
                tried = tl.where(is_here, child, tried)
                weight = tl.exp2((of_row(value, row, child) - top) * scale)
                is_kept = of_row((value >= threshold).to(tl.int32), row, child) != 0
                q = of_row(draft_value, row, child)
                q = tl.exp2((q - draft_top) * scale).to(tl.float64) / draft_total
                p = tl.where(is_kept, weight, 0.0).to(tl.float64) / kept
                worth = tl.maximum(p - debt * q, 0.0) * of_draft * chance
                price = q * left
                of_child = tl.where(worth >= price, 1.0, worth / tl.maximum(price, 1e-300))
                is_back = (worth <= 0).to(tl.int32)
                if worth > 0:
                    chances = tl.where(row == child, of_child, chances)
                    at = child
            else:
                accept, _ = uniforms_of(uniforms_ptr, seeds_ptr, positions_ptr, req, start, at, True)
                if (at == 0) | (accept < chance):
                    is_open = is_open * 0
                else:
                    at = of_row(parent, row, at)
                    is_back = is_back * 0 + 1
    _, sample = uniforms_of(uniforms_ptr, seeds_ptr, positions_ptr, req, start, at, True)
    threshold = of_row(thresholds, row, at)
    end = of_row(tried, row, at) + 1
    listed = tl.where(listed_at == at, listed, -1)
    return at, end, threshold, of_row(kepts, row, at), listed, of_row(debts, row, at), sample, is_bad
