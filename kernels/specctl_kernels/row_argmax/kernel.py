"""A row's largest entry: pieces of it first, then the best piece."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.dependent_launch import let_next_begin

__all__ = ["best_of_pieces", "entries_of", "finish_kernel", "first_best_of", "pieces_kernel"]


@triton.jit
def entries_of(row_ptr, first, end, SIZE: tl.constexpr):
    """(column, entry) of ``SIZE`` columns of a row, -inf from ``end`` on."""
    column = first + tl.arange(0, SIZE)
    return column, tl.load(row_ptr + column, mask=column < end, other=float("-inf"))


@triton.jit
def first_best_of(column, value, first, end):
    """(largest entry, its column) of the columns from ``first`` to ``end``. NaN counts as the smallest value;
    of equals the first is taken."""
    value = value.to(tl.float32)
    lowest = float("-inf")
    best = tl.max(value, axis=0)  # of a NaN and a number the number
    best = tl.where(best == best, best, lowest)
    # Two plain reductions: one that carries the column along takes longer than the read.
    at = tl.min(tl.where(value == best, column, end), axis=0)
    # By a minimum: chosen between, the two cost a stats_kernel of 16-bit logits 4 registers.
    return best, tl.minimum(at, tl.where(best == lowest, first, end))


@triton.jit(do_not_specialize=["rows"])
def pieces_kernel(
    values_ptr, stride, rows, width, best_ptr, at_ptr, pieces, PIECE: tl.constexpr, IS_EARLY: tl.constexpr
):  # fmt: skip
    """Program (piece, row, times as many rows before it): neighbours read what lies side by side."""
    let_next_begin(IS_EARLY)
    piece = tl.program_id(0)
    row = tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)
    end = tl.where(row < rows, width, 0)
    column, value = entries_of(values_ptr + row.to(tl.int64) * stride, piece * PIECE, end, PIECE)
    best, at = first_best_of(column, value, piece * PIECE, piece * PIECE + PIECE)
    place = row.to(tl.int64) * pieces + piece
    tl.store(best_ptr + place, best, mask=row < rows)
    tl.store(at_ptr + place, at.to(tl.int32), mask=row < rows)


@triton.jit
def best_of_pieces(best_ptr, at_ptr, row, pieces, PADDED: tl.constexpr):
    """int32: the column of a row's largest entry."""
    piece = tl.arange(0, PADDED)
    best = tl.load(best_ptr + row * pieces + piece, mask=piece < pieces, other=float("-inf"))
    winner = tl.argmax(best, axis=0, tie_break_left=True)
    return tl.load(at_ptr + row * pieces + winner)


@triton.jit
def finish_kernel(best_ptr, at_ptr, out_ptr, pieces, PADDED: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out_ptr + row, best_of_pieces(best_ptr, at_ptr, row, pieces, PADDED).to(tl.int64))
