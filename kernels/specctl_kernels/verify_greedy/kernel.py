"""Greedy verification: a draft is kept while it is the target's own choice (Leviathan et al. 2023, T = 0)."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_argmax.kernel import best_of_pieces

__all__ = ["accept_kernel"]


@triton.jit
def accept_kernel(
    best_ptr, at_ptr, pieces, drafts_ptr, starts_ptr, tokens_ptr, tokens_stride, num_tokens_ptr,
    width, NO_TOKEN: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """One program for each request."""
    req = tl.program_id(0)
    start = tl.load(starts_ptr + req)
    rows = tl.load(starts_ptr + req + 1) - start
    goal = tokens_ptr + req.to(tl.int64) * tokens_stride
    kept = rows * 0
    last = rows
    for row in range(rows):
        if row < last:
            token = best_of_pieces(best_ptr, at_ptr, start + row, pieces, PADDED)
            tl.store(goal + row, token.to(tl.int64))
            kept += 1
            draft = tl.load(drafts_ptr + start + row + 1, mask=row + 1 < rows, other=-1).to(tl.int32)
            last = tl.where(draft == token, last, 0)
    for row in range(kept, width):
        tl.store(goal + row, NO_TOKEN)
    tl.store(num_tokens_ptr + req, kept)
