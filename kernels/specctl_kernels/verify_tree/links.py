"""Parents of a tree that is given by its links, as SGLang's engine gives it."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.verify_rejection.judge import of_row

__all__ = ["parents_in_links"]


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
