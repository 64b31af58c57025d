"""A sample of a row without its children, which were all rejected."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.verify_rejection.residual import (
    first_over,
    list_weights_of,
    sample_of_list,
    weights_of,
)

__all__ = ["sample_left", "sample_left_of_list"]


@triton.jit
def _without(weight, column, drafts_ptr, parents_ptr, row, end):
    """0 at the tokens of the row's children before row ``end``."""
    for child in range(row + 1, end):
        is_child = tl.load(parents_ptr + child) == row
        token = tl.where(is_child, tl.load(drafts_ptr + child), -1)
        weight = tl.where(column == token, 0.0, weight)
    return weight


@triton.jit
def _weights_left(row_ptr, columns, column, top, scale, threshold, drafts_ptr, parents_ptr, row, end):
    weight = weights_of(row_ptr, columns, column, top, scale, threshold, -1, row_ptr, 0, 0.0, 0.0, False)
    return _without(weight, column, drafts_ptr, parents_ptr, row, end)


@triton.jit
def _masses_read(
    row_ptr, columns, best_ptr, pieces, top, scale, threshold, drafts_ptr, parents_ptr, row, end,
    PIECE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """float32[PADDED], the mass left of each piece, from reading those that have a kept value."""
    index = tl.arange(0, PADDED)
    masses = tl.zeros((PADDED,), tl.float32)
    for piece in tl.range(0, pieces, num_stages=3):
        is_kept = tl.load(best_ptr + piece) >= threshold
        weight = _weights_left(
            row_ptr, tl.where(is_kept, columns, 0), piece * PIECE + tl.arange(0, PIECE), top, scale,
            threshold, drafts_ptr, parents_ptr, row, tl.where(is_kept, end, 0),
        )  # fmt: skip
        masses = tl.where(index == piece, tl.sum(weight, axis=0), masses)
    return masses


@triton.jit
def _masses_known(
    row_ptr, columns, best_ptr, mass_ptr, pieces, top, scale, drafts_ptr, parents_ptr, row, end,
    PIECE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """As ``_masses_read`` where nothing is cut off: of the pieces, only those are read that have a child's
    token."""
    index = tl.arange(0, PADDED)
    best = tl.load(best_ptr + index, mask=index < pieces, other=float("-inf"))
    mass = tl.load(mass_ptr + index, mask=index < pieces, other=0.0)
    masses = mass * tl.exp2((best - top) * scale)
    for child in range(row + 1, end):
        token = tl.load(drafts_ptr + child)
        if (tl.load(parents_ptr + child) == row) & (token >= 0) & (token < columns):
            piece = token.to(tl.int32) // PIECE
            weight = _weights_left(
                row_ptr, columns, piece * PIECE + tl.arange(0, PIECE), top, scale, float("-inf"),
                drafts_ptr, parents_ptr, row, end,
            )  # fmt: skip
            masses = tl.where(index == piece, tl.sum(weight, axis=0), masses)
    return masses


@triton.jit
def sample_left(
    row_ptr, columns, best_ptr, mass_ptr, pieces, top, scale, threshold, uniform,
    drafts_ptr, parents_ptr, row, rows,
    IS_LIMITED: tl.constexpr, PIECE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """int32: the first column, in order, up to which more than ``uniform`` (float64) of what is left lies.
    If nothing is left, the row is sampled as it was."""
    index = tl.arange(0, PADDED)
    masses = tl.zeros((PADDED,), tl.float64)
    total = tl.sum(masses, axis=0)
    end = rows
    tries = 0
    while tries < 2:
        is_known = threshold == float("-inf")
        if (not IS_LIMITED) or is_known:
            masses = _masses_known(
                row_ptr, columns, best_ptr, mass_ptr, pieces, top, scale, drafts_ptr, parents_ptr, row, end,
                PIECE, PADDED,
            ).to(tl.float64)  # fmt: skip
        else:
            masses = _masses_read(
                row_ptr, columns, best_ptr, pieces, top, scale, threshold, drafts_ptr, parents_ptr, row, end,
                PIECE, PADDED,
            ).to(tl.float64)  # fmt: skip
        total = tl.sum(masses, axis=0)
        tries += 1
        if total > 0:
            tries = 2
        elif tries < 2:
            end = end * 0
    piece = first_over(masses, index, uniform * total, PADDED)
    rest = uniform * total - tl.sum(tl.where(index < piece, masses, 0.0), axis=0)
    offset = tl.arange(0, PIECE)
    weight = _weights_left(
        row_ptr, columns, piece * PIECE + offset, top, scale, threshold, drafts_ptr, parents_ptr, row, end
    )
    return (piece * PIECE + first_over(weight.to(tl.float64), offset, rest, PIECE)).to(tl.int32)


@triton.jit
def sample_left_of_list(
    list_ptr, ids_ptr, listed, top, scale, threshold, uniform, drafts_ptr, parents_ptr, row, rows,
    LIST: tl.constexpr,
):  # fmt: skip
    """As ``sample_left``, of entries in a list that has all that are kept, in the order of their columns."""
    column, weight, target = list_weights_of(
        list_ptr, ids_ptr, listed, top, scale, threshold, list_ptr, 0, 0.0, 0.0, False, LIST
    )
    weight = _without(weight, column, drafts_ptr, parents_ptr, row, rows)
    return sample_of_list(column, weight, target, uniform, 0.0, LIST)
