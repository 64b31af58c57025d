"""A row read once by one program, in lanes: each thread sums up its own, and none waits for another.

A row is read by runs of 16 bytes. Lane i has the runs i, i + LANES, i + 2 * LANES and so on, which are read
one tile of LANES runs after the other. Column c is of lane c // RUN % LANES.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_law.threshold import LOWEST

__all__ = ["best_of_row", "drawn", "lanes_of_row", "masses_from", "read_over", "runs_of"]


@triton.jit
def runs_of(row_ptr, columns, first_column, is_run, RUN: tl.constexpr):
    """float32[runs, RUN], the entries from each of these columns on, -inf where there is none."""
    column = first_column[:, None] + tl.arange(0, RUN)[None, :]
    is_in = is_run[:, None] & (column < columns)
    return tl.load(row_ptr + column, mask=is_in, other=float("-inf")).to(tl.float32)


@triton.jit
def lanes_of_row(row_ptr, columns, scale, LANES: tl.constexpr, RUN: tl.constexpr, STAGES: tl.constexpr):
    """(largest entry, softmax mass against it) of each lane, float32[LANES]; ``LOWEST`` and 0 where it has
    nothing finite, a mass of NaN where it has a NaN or +inf."""
    first = tl.arange(0, LANES) * RUN
    best = tl.full((LANES,), LOWEST, tl.float32)
    mass = tl.zeros((LANES,), tl.float32)
    for begin in tl.range(0, columns, LANES * RUN, num_stages=STAGES):
        value = runs_of(row_ptr, columns, begin + first, first >= 0, RUN)
        higher = tl.maximum(best, tl.max(value, axis=1))
        mass *= tl.exp2((best - higher) * scale)
        mass += tl.sum(tl.exp2((value - higher[:, None]) * scale), axis=1)
        best = higher
    return best, mass


@triton.jit
def best_of_row(row_ptr, columns, LANES: tl.constexpr, RUN: tl.constexpr, STAGES: tl.constexpr):
    """int32: the first column of a row's largest number, 0 where it has none."""
    first = tl.arange(0, LANES) * RUN
    best = tl.full((LANES,), float("-inf"), tl.float32)
    tile = tl.zeros((LANES,), tl.int32)
    for begin in tl.range(0, columns, LANES * RUN, num_stages=STAGES):
        value = tl.max(runs_of(row_ptr, columns, begin + first, first >= 0, RUN), axis=1)
        is_more = value > best
        tile = tl.where(is_more, begin, tile)
        best = tl.where(is_more, value, best)
    top = tl.max(best, axis=0)
    run = tl.min(tl.where(best == top, tile + first, LANES * RUN + columns), axis=0)
    offset = tl.arange(0, RUN)
    value = tl.load(row_ptr + run + offset, mask=run + offset < columns, other=float("-inf")).to(tl.float32)
    value = tl.where(value == value, value, float("-inf"))
    return run + tl.min(tl.where(value == top, offset, RUN), axis=0) % RUN


@triton.jit
def masses_from(
    row_ptr, columns, threshold, top, scale, LANES: tl.constexpr, RUN: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """float32[LANES], the mass of each lane's entries from the threshold on, against ``top``."""
    first = tl.arange(0, LANES) * RUN
    mass = tl.zeros((LANES,), tl.float32)
    for begin in tl.range(0, columns, LANES * RUN, num_stages=STAGES):
        value = runs_of(row_ptr, columns, begin + first, first >= 0, RUN)
        weight = tl.where(value >= threshold, tl.exp2((value - top) * scale), 0.0)
        mass += tl.sum(weight, axis=1)
    return mass


@triton.jit
def drawn(
    row_ptr, columns, mass, uniform, threshold, top, scale,
    LANES: tl.constexpr, RUN: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """(column int32, entry float32) of each of the ``uniform`` numbers (float64[C]): the first entry, by lane
    and then by column, up to which more than that share of the mass lies. Entries under the threshold weigh
    nothing. mass: float64[LANES], not all 0."""
    lane = tl.arange(0, LANES)
    reached = tl.cumsum(mass, axis=0)
    goal = uniform * tl.max(reached, axis=0)
    is_past = (reached[:, None] > goal[None, :]) & (mass > 0)[:, None]
    chosen = tl.min(tl.where(is_past, lane[:, None], LANES), axis=0)
    chosen = tl.minimum(chosen, tl.max(tl.where(mass > 0, lane, 0), axis=0))
    before = tl.sum(tl.where(lane[:, None] == chosen[None, :], (reached - mass)[:, None], 0.0), axis=0)
    entry = tl.arange(0, TILES * RUN)
    column = entry // RUN * (LANES * RUN) + entry % RUN
    at = column[None, :] + (chosen * RUN)[:, None]
    value = tl.load(row_ptr + at, mask=at < columns, other=float("-inf")).to(tl.float32)
    weight = tl.where(value >= threshold, tl.exp2((value - top) * scale), 0.0).to(tl.float64)
    is_past = (tl.cumsum(weight, axis=1) > (goal - before)[:, None]) & (weight > 0)
    place = tl.min(tl.where(is_past, entry[None, :], TILES * RUN), axis=1)
    place = tl.minimum(place, tl.max(tl.where(weight > 0, entry[None, :], 0), axis=1))
    found = tl.max(tl.where(entry[None, :] == place[:, None], value, float("-inf")), axis=1)
    return place // RUN * (LANES * RUN) + place % RUN + chosen * RUN, found


@triton.jit
def read_over(
    row_ptr, columns, best, pivot, top, scale, taken_ptr,
    LANES: tl.constexpr, RUN: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """(how many entries are over the pivot int32, their mass float64), from the lanes that have one. best
    float32[LANES], their largest; taken_ptr int32[LANES], for the numbers of those lanes."""
    AT_ONCE: tl.constexpr = LANES // TILES
    lane = tl.arange(0, LANES)
    is_taken = (best > pivot).to(tl.int32)
    taken = tl.sum(is_taken, axis=0)
    tl.store(taken_ptr + tl.cumsum(is_taken, axis=0) - 1, lane, mask=is_taken != 0)
    tl.debug_barrier()
    place, tile = lane % AT_ONCE, lane // AT_ONCE
    count = tl.zeros((LANES,), tl.int32)
    mass = tl.zeros((LANES,), tl.float32)
    for begin in range(0, taken, AT_ONCE):
        is_one = begin + place < taken
        of_lane = tl.load(taken_ptr + begin + place, mask=is_one, other=0)
        value = runs_of(row_ptr, columns, tile * (LANES * RUN) + of_lane * RUN, is_one, RUN)
        value = tl.where(value > pivot, value, float("-inf"))
        count += tl.sum((value > float("-inf")).to(tl.int32), axis=1)
        mass += tl.sum(tl.exp2((value - top) * scale), axis=1)
    tl.debug_barrier()  # the next call writes where this one has read
    return tl.sum(count, axis=0), tl.sum(mass.to(tl.float64), axis=0)
