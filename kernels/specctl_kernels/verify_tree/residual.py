"""What is left of a row behind rejected children: p - debt q, without the children; its mass and a sample.

Rejecting a child of law q leaves max(p' - q', 0), both normalised. Of non-negative numbers max(max(x - a, 0)
- b, 0) is max(x - a - b, 0), so all of a row's rejections are one ``debt`` of q, and no row is written.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.verify_rejection.residual import (
    first_over,
    list_weights_of,
    sample_of_list,
    weights_of,
)

__all__ = ["left_behind", "sample_left", "sample_left_of_list"]


@triton.jit
def _without(weight, column, drafts_ptr, parents_ptr, row, end):
    """0 at the tokens of the row's children before row ``end``."""
    for child in range(row + 1, end):
        is_child = tl.load(parents_ptr + child) == row
        token = tl.where(is_child, tl.load(drafts_ptr + child).to(tl.int32), -1)
        weight = tl.where(column == token, 0.0, weight)
    return weight


@triton.jit
def left_behind(
    row_ptr, columns, pieces, top, scale, threshold, drafts_ptr, parents_ptr, row, end,
    draft_row_ptr, draft_columns, draft_top, factor, PIECE: tl.constexpr,
):  # fmt: skip
    """(mass of max(p - q, 0), mass of q), float64, both without the children before row ``end`` and in
    weights: p's times its kept mass, q's times its own. ``factor`` makes q's weight of that unit."""
    left = tl.zeros((PIECE,), tl.float32)
    of_draft = tl.zeros((PIECE,), tl.float32)
    for piece in tl.range(0, pieces, num_stages=3):
        column = piece * PIECE + tl.arange(0, PIECE)
        weight = weights_of(
            row_ptr, columns, column, top, scale, threshold, -1,
            draft_row_ptr, draft_columns, draft_top, factor, True,
        )  # fmt: skip
        drafted = weights_of(
            draft_row_ptr, draft_columns, column, draft_top, scale, float("-inf"), -1,
            draft_row_ptr, 0, draft_top, factor, False,
        )  # fmt: skip
        left += _without(weight, column, drafts_ptr, parents_ptr, row, end)
        of_draft += _without(drafted, column, drafts_ptr, parents_ptr, row, end)
    return tl.sum(left.to(tl.float64), axis=0), tl.sum(of_draft.to(tl.float64), axis=0)


@triton.jit
def _masses_read(
    row_ptr, columns, best_ptr, pieces, top, scale, threshold, drafts_ptr, parents_ptr, row, end,
    draft_row_ptr, draft_columns, draft_top, factor,
    HAS_DRAFTS: tl.constexpr, PIECE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """float32[PADDED], the mass left of each piece, from reading those that have a kept value."""
    index = tl.arange(0, PADDED)
    masses = tl.zeros((PADDED,), tl.float32)
    for piece in tl.range(0, pieces, num_stages=3):
        is_kept = tl.load(best_ptr + piece) >= threshold
        column = piece * PIECE + tl.arange(0, PIECE)
        weight = weights_of(
            row_ptr, tl.where(is_kept, columns, 0), column, top, scale, threshold, -1,
            draft_row_ptr, tl.where(is_kept, draft_columns, 0), draft_top, factor, HAS_DRAFTS,
        )  # fmt: skip
        weight = _without(weight, column, drafts_ptr, parents_ptr, row, tl.where(is_kept, end, 0))
        masses = tl.where(index == piece, tl.sum(weight, axis=0), masses)
    return masses


@triton.jit
def _masses_known(
    row_ptr, columns, best_ptr, mass_ptr, pieces, top, scale, drafts_ptr, parents_ptr, row, end,
    PIECE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """As ``_masses_read`` where nothing is cut off and no distribution is subtracted: of the pieces, only
    those are read that have a child's token."""
    index = tl.arange(0, PADDED)
    best = tl.load(best_ptr + index, mask=index < pieces, other=float("-inf"))
    mass = tl.load(mass_ptr + index, mask=index < pieces, other=0.0)
    masses = mass * tl.exp2((best - top) * scale)
    for child in range(row + 1, end):
        token = tl.load(drafts_ptr + child).to(tl.int32)
        if (tl.load(parents_ptr + child) == row) & (token >= 0) & (token < columns):
            piece = token // PIECE
            column = piece * PIECE + tl.arange(0, PIECE)
            weight = weights_of(
                row_ptr, columns, column, top, scale, float("-inf"), -1, row_ptr, 0, 0.0, 0.0, False
            )
            weight = _without(weight, column, drafts_ptr, parents_ptr, row, end)
            masses = tl.where(index == piece, tl.sum(weight, axis=0), masses)
    return masses


@triton.jit
def sample_left(
    row_ptr, columns, best_ptr, mass_ptr, pieces, top, scale, threshold, uniform,
    drafts_ptr, parents_ptr, row, end, draft_row_ptr, draft_columns, draft_top, factor, least,
    HAS_DRAFTS: tl.constexpr, IS_LIMITED: tl.constexpr, PIECE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """int32: the first column, in order, up to which more than ``uniform`` (float64) of what is left lies.

    draft_columns 0: no distribution to subtract. If no more mass than ``least`` is left, nothing is, and the
    row is sampled as it was.
    """
    index = tl.arange(0, PADDED)
    masses = tl.zeros((PADDED,), tl.float64)
    total = tl.sum(masses, axis=0)
    tries = 0
    while tries < 2:
        is_known = (threshold == float("-inf")) & (draft_columns == 0)
        if (not HAS_DRAFTS and not IS_LIMITED) or is_known:
            masses = _masses_known(
                row_ptr, columns, best_ptr, mass_ptr, pieces, top, scale, drafts_ptr, parents_ptr, row, end,
                PIECE, PADDED,
            ).to(tl.float64)  # fmt: skip
        else:
            masses = _masses_read(
                row_ptr, columns, best_ptr, pieces, top, scale, threshold, drafts_ptr, parents_ptr, row, end,
                draft_row_ptr, draft_columns, draft_top, factor, HAS_DRAFTS, PIECE, PADDED,
            ).to(tl.float64)  # fmt: skip
        total = tl.sum(masses, axis=0)
        tries += 1
        if total > least:
            tries = 2
        elif tries < 2:
            end = end * 0
            draft_columns = draft_columns * 0
    piece = first_over(masses, index, uniform * total, PADDED)
    rest = uniform * total - tl.sum(tl.where(index < piece, masses, 0.0), axis=0)
    offset = tl.arange(0, PIECE)
    column = piece * PIECE + offset
    weight = weights_of(
        row_ptr, columns, column, top, scale, threshold, -1,
        draft_row_ptr, draft_columns, draft_top, factor, HAS_DRAFTS,
    )  # fmt: skip
    weight = _without(weight, column, drafts_ptr, parents_ptr, row, end)
    return (piece * PIECE + first_over(weight.to(tl.float64), offset, rest, PIECE)).to(tl.int32)


@triton.jit
def sample_left_of_list(
    list_ptr, ids_ptr, listed, top, scale, threshold, uniform,
    drafts_ptr, parents_ptr, row, end, draft_row_ptr, draft_columns, draft_top, factor, least,
    HAS_DRAFTS: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """As ``sample_left``, of entries in a list that has all that are kept, in the order of their columns."""
    column, weight, target = list_weights_of(
        list_ptr, ids_ptr, listed, top, scale, threshold,
        draft_row_ptr, draft_columns, draft_top, factor, HAS_DRAFTS, LIST,
    )  # fmt: skip
    weight = _without(weight, column, drafts_ptr, parents_ptr, row, end)
    return sample_of_list(column, weight, target, uniform, least, LIST)
