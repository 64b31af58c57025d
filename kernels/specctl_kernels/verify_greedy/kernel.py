"""Greedy verification: a draft is kept while it is the target's own choice (Leviathan et al. 2023, T = 0)."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.dependent_launch import wait_for_previous

__all__ = ["accept_kernel"]


@triton.jit
def accept_kernel(
    best_ptr, at_ptr,  # float32, int32 [N, pieces]
    pieces, drafts_ptr, starts_ptr, tokens_ptr, tokens_stride, num_tokens_ptr, width,
    NO_TOKEN: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """One program for each request; all of its rows at once, as what they read is waited for."""
    req = tl.program_id(0)
    start = tl.load(starts_ptr + req)
    rows = tl.minimum(tl.load(starts_ptr + req + 1) - start, width)
    row = tl.arange(0, ROWS)
    piece = tl.arange(0, PADDED)
    draft = tl.load(drafts_ptr + start + row + 1, mask=row + 1 < rows, other=-1)
    wait_for_previous(IS_EARLY)
    place = ((start + row) * pieces)[:, None] + piece[None, :]
    is_in = (row < rows)[:, None] & (piece < pieces)[None, :]
    best = tl.load(best_ptr + place, mask=is_in, other=float("-inf"))
    at = tl.load(at_ptr + place, mask=is_in, other=0)  # together with the best: one wait
    winner = tl.argmax(best, axis=1, tie_break_left=True)
    token = tl.sum(tl.where(piece[None, :] == winner[:, None], at, 0), axis=1)
    stop = tl.min(tl.where((draft == token) & (row + 1 < rows), ROWS, row), axis=0)
    kept = tl.where(rows > 0, stop + 1, 0)
    goal = tokens_ptr + req.to(tl.int64) * tokens_stride
    tl.store(goal + row, tl.where(row < kept, token, NO_TOKEN).to(tl.int64), mask=row < width)
    tl.store(num_tokens_ptr + req, kept)
