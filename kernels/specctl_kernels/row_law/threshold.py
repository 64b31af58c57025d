"""The smallest logit that top-k, top-p and min-p keep, without sorting."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_law.judge import of_row
from specctl_kernels.row_law.runs import RUN_BITS, RUNS, listed_runs, loaded_runs

__all__ = ["LOWEST", "bound_of_min_p", "bound_of_top_p", "kept_by_reading"]

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest finite float32: -inf is in no set."""


@triton.jit
def bound_of_min_p(top, scale, min_p):
    """The least value that a min_p over 0 keeps."""
    return top + tl.log2(tl.minimum(min_p, 1.0)) / scale


@triton.jit
def bound_of_top_p(top, scale, columns, top_p):
    """A value under which all together weigh less than 1 - top_p of the largest alone; a bit to spare."""
    return top - (tl.log2(columns / (1.0 - top_p)) + 1.0) / scale


@triton.jit
def _from_on(value, weight, pivot, BY_MASS: tl.constexpr):
    """(how many values of each run are at the pivot or above, 0 if BY_MASS; their mass), float32[RUNS]."""
    is_above = value >= pivot
    mass = tl.sum(tl.where(is_above, weight, 0.0), axis=1)
    count = mass * 0.0
    if not BY_MASS:
        count = tl.sum(is_above.to(tl.float32), axis=1)
    return count, mass


@triton.jit
def _four(first, second, third, fourth):
    """The sums of four vectors."""
    step = tl.arange(0, 4)
    lower = tl.where(step == 0, tl.sum(first, axis=0), tl.sum(second, axis=0))
    return tl.where(step < 2, lower, tl.where(step == 2, tl.sum(third, axis=0), tl.sum(fourth, axis=0)))


@triton.jit
def _scan_row(row_ptr, columns, low, high, pivots, top, scale, BY_MASS: tl.constexpr):
    """Of the values in [low, high): how many are at each pivot or above and their mass (float32[4] each), how
    many and how much there are of all, the least and the greatest. BY_MASS: without the counts at pivots,
    which stay 0. Sums are kept by run: threads wait for each other once."""
    RUN: tl.constexpr = RUN_BITS // row_ptr.dtype.element_ty.primitive_bitwidth
    run = tl.arange(0, RUNS)
    step = tl.arange(0, 4)
    pivots = tl.maximum(pivots, low)
    pivot_0, pivot_1 = of_row(pivots, step, 0), of_row(pivots, step, 1)
    pivot_2, pivot_3 = of_row(pivots, step, 2), of_row(pivots, step, 3)
    count_0 = tl.zeros((RUNS,), tl.float32)
    count_1, count_2, count_3 = count_0, count_0, count_0
    mass_0, mass_1, mass_2, mass_3 = count_0, count_0, count_0, count_0
    number, every = count_0, count_0
    least = tl.full((RUNS,), float("inf"), tl.float32)
    greatest = tl.full((RUNS,), float("-inf"), tl.float32)
    for begin in tl.range(0, columns, RUNS * RUN, num_stages=4):
        value = loaded_runs(row_ptr, columns, begin + run * RUN, run >= 0, RUN)
        is_in = (value >= low) & (value < high)
        least = tl.minimum(least, tl.min(tl.where(is_in, value, float("inf")), axis=1))
        value = tl.where(is_in, value, float("-inf"))
        greatest = tl.maximum(greatest, tl.max(value, axis=1))
        weight = tl.exp2((value - top) * scale)
        here, mass = _from_on(value, weight, low, False)
        number, every = number + here, every + mass
        here, mass = _from_on(value, weight, pivot_0, BY_MASS)
        count_0, mass_0 = count_0 + here, mass_0 + mass
        here, mass = _from_on(value, weight, pivot_1, BY_MASS)
        count_1, mass_1 = count_1 + here, mass_1 + mass
        here, mass = _from_on(value, weight, pivot_2, BY_MASS)
        count_2, mass_2 = count_2 + here, mass_2 + mass
        here, mass = _from_on(value, weight, pivot_3, BY_MASS)
        count_3, mass_3 = count_3 + here, mass_3 + mass
    return (
        _four(count_0, count_1, count_2, count_3), _four(mass_0, mass_1, mass_2, mass_3),
        tl.sum(number, axis=0).to(tl.int32), tl.sum(every, axis=0), tl.min(least, axis=0),
        tl.max(greatest, axis=0),
    )  # fmt: skip


@triton.jit
def _list_row(row_ptr, columns, list_ptr, low, high, LIST: tl.constexpr):
    """Writes the values in [low, high) to a list that has room for them, in the order of their columns."""
    RUN: tl.constexpr = RUN_BITS // row_ptr.dtype.element_ty.primitive_bitwidth
    run = tl.arange(0, RUNS)
    found = columns * 0
    for begin in range(0, columns, RUNS * RUN):
        value = loaded_runs(row_ptr, columns, begin + run * RUN, run >= 0, RUN)
        value = tl.where((value >= low) & (value < high), value, float("-inf"))
        found = listed_runs(value, run, found, LIST, list_ptr, None, RUN)


@triton.jit
def _scan_list(list_ptr, listed, low, high, pivots, top, scale, LIST: tl.constexpr):
    """As ``_scan_row``, of the values in the list."""
    place = tl.arange(0, LIST)
    value = tl.load(list_ptr + place, mask=place < listed, other=float("-inf"))
    is_in = (value >= low) & (value < high)
    weight = tl.where(is_in, tl.exp2((value - top) * scale), 0.0)
    is_above = is_in[None, :] & (value[None, :] >= pivots[:, None])
    return (
        tl.sum(is_above.to(tl.float32), axis=1), tl.sum(tl.where(is_above, weight[None, :], 0.0), axis=1),
        tl.sum(is_in.to(tl.int32), axis=0), tl.sum(weight, axis=0),
        tl.min(tl.where(is_in, value, float("inf")), axis=0),
        tl.max(tl.where(is_in, value, float("-inf")), axis=0),
    )  # fmt: skip


@triton.jit
def _smallest_kept(
    row_ptr, columns, list_ptr, whole, low, top, scale, goal,
    BY_MASS: tl.constexpr, LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """(a bound that keeps all values down to the largest at which the count, or mass, of it and all above
    reaches the goal; the mass it keeps; how many values the list holds if it has all from ``low``, else -1).

    An interval [low, high) is cut by four pivots until one value is left in it; as soon as its values fit the
    list, the row is no longer read. ``whole`` is the third result of an earlier call with a smaller ``low``.
    If all from ``low`` do not reach the goal, all are kept.
    """
    step = tl.arange(0, 4)
    bits_below = tl.where(step == 0, 14.0, tl.where(step == 1, 9.0, tl.where(step == 2, 5.0, 2.0)))
    pivots = top - bits_below / scale
    high = top * 0.0 + float("inf")
    count_above = top * 0.0
    mass_above = top * 0.0
    kept = top * 0.0
    listed = whole
    passes = 0
    while passes < MOST_PASSES:
        if listed >= 0:
            counts, masses, found, every, least, greatest = _scan_list(
                list_ptr, listed, low, high, pivots, top, scale, LIST
            )
        else:
            counts, masses, found, every, least, greatest = _scan_row(
                row_ptr, columns, low, high, pivots, top, scale, BY_MASS
            )
            if found <= LIST:
                _list_row(row_ptr, columns, list_ptr, low, high, LIST)
                tl.debug_barrier()
                listed = found
                whole = tl.where(high == float("inf"), found, -1)
        if BY_MASS:
            is_reached = mass_above + masses >= goal
            is_short = mass_above + every < goal
        else:
            is_reached = count_above + counts >= goal
            is_short = count_above + found.to(tl.float32) < goal
        kept = mass_above + every
        passes += 1
        if is_short | (least >= greatest):
            passes = MOST_PASSES
        else:
            low = tl.maximum(low, tl.max(tl.where(is_reached, pivots, float("-inf")), axis=0))
            high = tl.minimum(high, tl.min(tl.where(is_reached, float("inf"), pivots), axis=0))
            count_above += tl.max(tl.where(is_reached, 0.0, counts), axis=0)
            mass_above += tl.max(tl.where(is_reached, 0.0, masses), axis=0)
            bottom = tl.maximum(low, least)
            pivots = bottom + (tl.minimum(high, greatest) - bottom) * ((step + 1) * 0.2)
    return low, kept, whole


@triton.jit
def kept_by_reading(
    row_ptr, columns, list_ptr, top, scale, total, top_k, top_p, min_p,
    LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """(threshold, mass of the values at it or above) of a row. top_k under 1, top_p from 1 and min_p 0 are
    off."""
    low = tl.minimum(top, LOWEST)
    kept = total
    whole = (top * 0.0).to(tl.int32) - 1
    is_top_k = (top_k > 0) & (top_k < columns)
    if min_p > 0:
        low = tl.maximum(low, bound_of_min_p(top, scale, min_p))
    if is_top_k | (min_p > 0):
        goal = tl.where(is_top_k, top_k.to(tl.float32), float("inf"))
        low, kept, whole = _smallest_kept(
            row_ptr, columns, list_ptr, whole, low, top, scale, goal, False, LIST, MOST_PASSES
        )
    if top_p < 1:
        low = tl.maximum(low, bound_of_top_p(top, scale, columns, top_p))
        low, kept, whole = _smallest_kept(
            row_ptr, columns, list_ptr, whole, low, top, scale, top_p * kept, True, LIST, MOST_PASSES
        )
    return low, kept
