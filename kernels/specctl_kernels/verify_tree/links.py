"""Parents of a tree that is given by its links, as SGLang's engine gives it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from specctl_kernels.verify_rejection.checks import expect
from specctl_kernels.verify_rejection.judge import of_row

__all__ = ["parents_of_links"]


@triton.jit
def _parents_kernel(
    first_child_ptr,  # integer[R, rows]
    next_sibling_ptr,  # integer[R, rows]
    parents_ptr,  # int32[R, rows]
    rows, ROWS: tl.constexpr,
):  # fmt: skip
    """One program for each request. Links lead to later rows, so each parent is known when it is read."""
    first = tl.program_id(0).to(tl.int64) * rows
    row = tl.arange(0, ROWS)
    parent = row * 0 - 1
    for at in range(rows):
        child = tl.load(first_child_ptr + first + at).to(tl.int32)
        sibling = tl.load(next_sibling_ptr + first + at).to(tl.int32)
        own = of_row(parent, row, at)
        parent = tl.where((row == child) & (row > at), at, parent)
        parent = tl.where((row == sibling) & (row > at), own, parent)
    tl.store(parents_ptr + first + row, parent, mask=row < rows)


def parents_of_links(first_child: torch.Tensor, next_sibling: torch.Tensor) -> torch.Tensor:
    """int32[R * rows]: of each row its parent's, counted within the request, for ``verify_tree``.

    first_child   integer[R, rows]: of each row its first child's, -1 for none (SGLang's retrieve_next_token)
    next_sibling  integer[R, rows]: of each row its parent's next child's, -1 for none
    A row that no earlier row leads to has parent -1. ValueError: another shape or dtype.
    """
    if first_child.ndim != 2:
        raise ValueError(f"first_child: expected [requests, rows], got {list(first_child.shape)}")
    requests, rows = first_child.shape
    integers = (torch.int32, torch.int64)
    expect("first_child", first_child, (requests, rows), integers)
    expect("next_sibling", next_sibling, (requests, rows), integers)
    parents = first_child.new_empty(requests * rows, dtype=torch.int32)
    if requests and rows:
        _parents_kernel[(requests,)](
            first_child, next_sibling, parents, rows, ROWS=max(2, triton.next_power_of_2(rows)), num_warps=1
        )
    return parents
