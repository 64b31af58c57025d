"""Rows of one request as a tree: its nodes, a row's totals and random numbers, and what is written."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_law.draws import uniforms_at
from specctl_kernels.row_law.judge import of_row

__all__ = ["nodes_of", "parents_in_links", "row_totals", "uniforms_of", "write_rows"]


@triton.jit
def parents_in_links(first_child_ptr, next_sibling_ptr, start, rows, row):
    """int32[ROWS]: of each row its parent's, -1 for none. Links lead to later rows, so each parent is known
    when it is asked for."""
    is_in = row < rows
    at = start.to(tl.int64) + row
    child = tl.load(first_child_ptr + at, mask=is_in, other=-1).to(tl.int32)
    sibling = tl.load(next_sibling_ptr + at, mask=is_in, other=-1).to(tl.int32)
    parent = row * 0 - 1
    for at_row in range(rows):
        own = of_row(parent, row, at_row)
        parent = tl.where((row == of_row(child, row, at_row)) & (row > at_row), at_row, parent)
        parent = tl.where((row == of_row(sibling, row, at_row)) & (row > at_row), own, parent)
    return parent


@triton.jit
def nodes_of(drafts_ptr, start, rows, columns, row, parent, IS_ONCE: tl.constexpr):
    """(token, parent) int32[ROWS]; the parent of what is no node is -1: the root, a token outside the
    vocabulary. IS_ONCE: nor is a token that an earlier child has."""
    # A draft's range is checked before it is narrowed.
    draft = tl.load(drafts_ptr + start + row, mask=(row > 0) & (row < rows), other=-1)
    is_node = (draft >= 0) & (draft < columns) & (parent >= 0)
    token = tl.where(is_node, draft, -1).to(tl.int32)
    parent = tl.where(is_node, parent, -1)
    if IS_ONCE:
        is_same = (parent[:, None] == parent[None, :]) & (token[:, None] == token[None, :])
        is_again = tl.max((is_same & (row[None, :] < row[:, None])).to(tl.int32), axis=1)
        parent = tl.where(is_again != 0, -1, parent)
    return token, parent


@triton.jit
def row_totals(best_ptr, mass_ptr, at, pieces, scale, PADDED: tl.constexpr):
    """(largest entry or 0 for none, softmax mass against it, 1 for no distribution) of row ``at``."""
    piece = tl.arange(0, PADDED)
    place = at.to(tl.int64) * pieces + piece
    best = tl.load(best_ptr + place, mask=piece < pieces, other=float("-inf"))
    mass = tl.load(mass_ptr + place, mask=piece < pieces, other=0.0)
    top = tl.max(best, axis=0)
    is_bad = tl.max((mass != mass).to(tl.int32), axis=0) | (top == float("-inf")).to(tl.int32)
    top = tl.where(is_bad != 0, 0.0, top)
    return top, tl.sum(mass * tl.exp2((best - top) * scale), axis=0), is_bad


@triton.jit
def uniforms_of(uniforms_ptr, seeds_ptr, positions_ptr, req, at):
    """(accept, sample) float64 of row ``at`` of the batch, the injected ones if there are any."""
    if uniforms_ptr is not None:
        place = uniforms_ptr + at.to(tl.int64) * 2
        accept = tl.load(place)
        sample = tl.load(place + 1)
    else:
        accept, sample = uniforms_at(tl.load(seeds_ptr + req), tl.load(positions_ptr + at))
    return accept, sample


@triton.jit
def _path(row, parent, stop):
    """(whether a row is on the path to ``stop``, its place there, how many are). stop under 0: none."""
    is_on = row == stop
    at = stop
    while at > 0:
        at = of_row(parent, row, at)
        is_on = is_on | (row == at)
    # Parents stand before their children, so the order of the rows is that of the path.
    return is_on, tl.cumsum(is_on.to(tl.int32), axis=0) - 1, tl.sum(is_on.to(tl.int32), axis=0)


@triton.jit
def write_rows(
    emitted_ptr, index_ptr, counts_ptr, req, start, rows, depth, row, token, parent, stop, last_token,
    ROWS: tl.constexpr,
):  # fmt: skip
    """What one request returns row by row. stop under 0: as if the first row had emitted token 0."""
    is_on, rank, count = _path(row, parent, stop)
    emitted_ptr += start.to(tl.int64)
    tl.store(emitted_ptr + row, row * 0, mask=(row < rows) & (is_on == 0))
    tl.store(emitted_ptr + parent, token, mask=is_on & (row > 0))
    tl.store(emitted_ptr + row, row * 0 + last_token, mask=row == stop)
    index_ptr += req.to(tl.int64) * depth
    tl.store(index_ptr + rank, start + row, mask=is_on & (rank < depth))
    tl.store(index_ptr + row, start + row, mask=row == 0)
    count = tl.minimum(tl.maximum(count, 1), depth)
    for begin in range(0, depth, ROWS):
        place = begin + row
        tl.store(index_ptr + place, row * 0 - 1, mask=(place >= count) & (place < depth))
    tl.store(counts_ptr + req, count)
