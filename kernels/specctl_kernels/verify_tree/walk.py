"""Multi-candidate rejection sampling (SpecInfer): from the root, child after child, to the row that stops."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_law.judge import has_cuts, of_row, surely_kept
from specctl_kernels.verify_rejection.kept import truncation_of
from specctl_kernels.verify_tree.rows import row_totals, uniforms_of

__all__ = ["walk"]


@triton.jit
def _child_over(weight, is_child, row, goal, ROWS: tl.constexpr):
    """(the first child up to which more than ``goal`` of the children's weights lies, else ROWS; what lies
    before it)."""
    own = tl.where(is_child, weight, 0.0).to(tl.float64)
    reached = tl.cumsum(own, axis=0)
    child = tl.min(tl.where(is_child & (reached > goal), row, ROWS), axis=0)
    return child, of_row(reached - own, row, child)


@triton.jit
def _in_doubt(
    weight, is_child, row, value, accept, top, total, top_k, top_p, min_p, columns, ROWS: tl.constexpr
):  # fmt: skip
    """Whether the kept set may say which child is accepted. Without it: the kept mass is from top_p of all to
    all, and both ends say the same child."""
    child, before = _child_over(weight, is_child, row, accept * total, ROWS)
    is_kept = surely_kept(value, top, weight, total, top_k, top_p, min_p, columns) != 0
    least = tl.where(has_cuts(top_k, 1.0, min_p, columns), 0.0, top_p * 0.999 * total)
    in_doubt = tl.max((is_child & (row <= child) & (is_kept == 0)).to(tl.int32), axis=0)
    return (child == ROWS) | (in_doubt != 0) | (before > accept * least)


@triton.jit
def walk(
    logits_ptr, logits_stride, columns, best_ptr, mass_ptr, pieces, uniforms_ptr, seeds_ptr, positions_ptr,
    parts_ptr, parts, taken_ptr, short_ptr, short_ids_ptr, lists_ptr, req, start, row, parent,
    value, scale, top_k, top_p, min_p,
    IS_LIMITED: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr,
    PART: tl.constexpr, SHORT: tl.constexpr, LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """(row where the request stops; its largest entry, threshold, how many entries the short list has of it,
    -1 without one, and uniform number to sample with; 1 where a row on the path has no distribution)."""
    at = start * 0
    is_bad = start * 0
    listed = start * 0 - 1
    top = scale * 0.0
    threshold = top + float("-inf")
    sample = top.to(tl.float64)
    is_open = start * 0 + 1
    while is_open != 0:
        place = start + at
        is_child = parent == at
        top, total, is_bad = row_totals(best_ptr, mass_ptr, place, pieces, scale, PADDED)
        accept, sample = uniforms_of(uniforms_ptr, seeds_ptr, positions_ptr, req, place)
        child = start * 0 + ROWS
        if is_bad == 0:
            child_value = tl.where(is_child, value, float("-inf"))
            weight = tl.exp2((child_value - top) * scale)
            threshold = scale * 0.0 + float("-inf")
            kept = total
            listed = start * 0 - 1
            if IS_LIMITED:
                is_cut = has_cuts(top_k, top_p, min_p, columns)
                if is_cut:
                    in_doubt = _in_doubt(
                        weight, is_child, row, child_value, accept, top, total, top_k, top_p, min_p, columns,
                        ROWS,
                    )  # fmt: skip
                    if in_doubt:
                        threshold, kept, listed = truncation_of(
                            logits_ptr, logits_stride, columns, parts_ptr, parts, taken_ptr, short_ptr,
                            short_ids_ptr, lists_ptr, place.to(tl.int64), req.to(tl.int64), top, scale, total,
                            top_k, top_p, min_p, PARTS, PART, SHORT, LIST, MOST_PASSES,
                        )  # fmt: skip
                        weight = tl.where(child_value >= threshold, weight, 0.0)
            # To try each child with its share of what is left is to find where one uniform number falls among
            # their masses.
            child, _before = _child_over(weight, is_child, row, accept * kept, ROWS)
        is_open = (child < ROWS).to(tl.int32)
        at = tl.where(child < ROWS, child, at)
    return at, top, threshold, listed, sample, is_bad
