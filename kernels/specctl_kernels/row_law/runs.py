"""Entries of a row, read by runs of 16 bytes: a thread loads one at once and sums it up by itself."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["RUNS", "RUN_BITS", "listed_runs", "loaded_runs"]

RUN_BITS = tl.constexpr(128)
RUNS = tl.constexpr(256)
"""Runs that are read together, one of each thread of 8 warps: the sums of more would take the registers."""


@triton.jit
def loaded_runs(row_ptr, columns, first_column, is_run, RUN: tl.constexpr):
    """float32[RUNS, RUN], the entries from each of these columns on, -inf where there is none."""
    column = first_column[:, None] + tl.arange(0, RUN)[None, :]
    is_in = is_run[:, None] & (column < columns)
    return tl.load(row_ptr + column, mask=is_in, other=float("-inf")).to(tl.float32)


@triton.jit
def listed_runs(value, first_column, found, room, values_ptr, ids_ptr, RUN: tl.constexpr):
    """Writes the entries of runs that are over -inf, and their columns, in the order of the runs, from the
    place ``found`` on, as far as there is room. Returns ``found`` and how many they are."""
    offset = tl.arange(0, RUN)[None, :]
    here = tl.sum((value > float("-inf")).to(tl.int32), axis=1)
    goal = found + tl.cumsum(here, axis=0) - here
    most = tl.where(found < room, tl.max(here, axis=0), 0)
    number = found * 0
    # Most runs have one or none.
    while number < most:
        first = tl.min(tl.where(value > float("-inf"), offset, RUN), axis=1)
        is_first = offset == first[:, None]
        entry = tl.max(tl.where(is_first, value, float("-inf")), axis=1)
        value = tl.where(is_first, float("-inf"), value)
        is_one = (number < here) & (goal + number < room)
        tl.store(values_ptr + goal + number, entry, mask=is_one)
        if ids_ptr is not None:
            tl.store(ids_ptr + goal + number, first_column + first, mask=is_one)
        number += 1
    return found + tl.sum(here, axis=0)
