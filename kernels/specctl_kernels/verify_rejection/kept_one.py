"""Whether one entry of a row is kept by top-k, top-p and min-p, by what lies above it alone."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_law.judge import surely_kept
from specctl_kernels.row_law.runs import RUN_BITS, loaded_runs
from specctl_kernels.row_law.threshold import bound_of_min_p

__all__ = ["is_kept"]

_RUNS = tl.constexpr(1024)
"""Runs of 16 bytes that are read together."""


@triton.jit
def _read_over(row_ptr, columns, best, pivot, top, scale, taken_ptr, PARTS: tl.constexpr, PART: tl.constexpr):
    """(how many entries of a row are over the pivot, their mass), from the parts that have one."""
    RUN: tl.constexpr = RUN_BITS // row_ptr.dtype.element_ty.primitive_bitwidth
    AT_ONCE: tl.constexpr = _RUNS * RUN // PART
    index = tl.arange(0, PARTS)
    is_taken = (best > pivot).to(tl.int32)
    taken = tl.sum(is_taken, axis=0)
    tl.debug_barrier()  # an earlier call may still read what is written now
    tl.store(taken_ptr + tl.cumsum(is_taken, axis=0) - 1, index, mask=is_taken != 0)
    tl.debug_barrier()
    run = tl.arange(0, _RUNS)
    place, behind = run * RUN // PART, run * RUN % PART
    count = tl.zeros((_RUNS,), tl.int32)
    mass = tl.zeros((_RUNS,), tl.float32)
    for begin in range(0, taken, AT_ONCE):
        is_one = begin + place < taken
        part = tl.load(taken_ptr + begin + place, mask=is_one, other=0)
        value = loaded_runs(row_ptr, columns, part * PART + behind, is_one, RUN)
        value = tl.where(value > pivot, value, float("-inf"))
        count += tl.sum((value > float("-inf")).to(tl.int32), axis=1)
        mass += tl.sum(tl.exp2((value - top) * scale), axis=1)
    return tl.sum(count, axis=0), tl.sum(mass.to(tl.float64), axis=0)


@triton.jit
def is_kept(
    row_ptr, columns, parts_ptr, parts, over_ptr, value, top, scale, total, top_k, top_p, min_p,
    PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """1 where an entry of a row is kept, else 0; for cuts of which top-p is the only one or none. Kept are
    all over whom fewer than k lie, and less than top-p of the mass. parts_ptr float32[parts], the largest of
    each ``PART`` columns; over_ptr int32[PARTS], to work with."""
    is_top_k = ((top_k > 0) & (top_k < columns)).to(tl.int32)
    is_top_p = (top_p < 1).to(tl.int32)
    weight = tl.exp2((value - top) * scale)
    kept = surely_kept(value, top, weight, total, top_k, top_p, min_p, columns)
    is_open = 1 - kept
    if min_p > 0:
        is_in = (value >= bound_of_min_p(top, scale, min_p)).to(tl.int32)
        kept = tl.where((is_top_k == 0) & (is_top_p == 0), is_in, kept & is_in)
        is_open = is_open & is_in & is_top_k
    if is_open != 0:
        index = tl.arange(0, PARTS)
        best = tl.load(parts_ptr + index, mask=index < parts, other=float("-inf"))
        # What the parts' largest alone tell; the margin is for rounding.
        is_over = best > value
        count = tl.sum(is_over.to(tl.int32), axis=0)
        mass = tl.sum(tl.where(is_over, tl.exp2((best - top) * scale), 0.0), axis=0)
        is_cut = (is_top_k != 0) & (count >= top_k)
        is_cut = is_cut | ((is_top_p != 0) & (mass * 0.9999 > top_p * total))
        if is_cut == 0:
            number, over = _read_over(row_ptr, columns, best, value, top, scale, over_ptr, PARTS, PART)
            goal = tl.maximum(top_p.to(tl.float64) * total.to(tl.float64), 1e-30)
            is_in_k = (is_top_k == 0) | (number < top_k)
            kept = (is_in_k & ((is_top_p == 0) | (over < goal))).to(tl.int32)
    return kept
