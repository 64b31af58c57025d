"""What one read of the logits leaves: the largest entry and the softmax mass of each piece of a row."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.dependent_launch import let_next_begin, wait_for_previous
from specctl_kernels.row_argmax.kernel import entries_of, first_best_of
from specctl_kernels.row_law.runs import RUN_BITS
from specctl_kernels.sizes import GRID_MOST, parts_of

__all__ = ["first_best_of_piece", "gather_kernel", "scale_of", "stats_grid", "stats_kernel", "temperature_of"]


@triton.jit(do_not_specialize=["requests"])
def gather_kernel(
    slots_ptr,  # integer[R]
    temperature_ptr,  # float32[S]
    top_k_ptr,  # int32[S] or None
    top_p_ptr, min_p_ptr,  # float32[S] or None
    seeds_ptr,  # int64[S]
    temperature_out, top_k_out, top_p_out, min_p_out, seeds_out,  # the same of R
    requests, BLOCK: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """The options of the requests, in their order: engines keep them by slot, in host memory that a device
    can read, but not from every program."""
    let_next_begin(IS_EARLY)
    req = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_in = req < requests
    slot = tl.load(slots_ptr + req, mask=is_in, other=0).to(tl.int64)
    tl.store(temperature_out + req, tl.load(temperature_ptr + slot, mask=is_in, other=0.0), mask=is_in)
    tl.store(seeds_out + req, tl.load(seeds_ptr + slot, mask=is_in, other=0), mask=is_in)
    if top_k_ptr is not None:
        tl.store(top_k_out + req, tl.load(top_k_ptr + slot, mask=is_in, other=0), mask=is_in)
    if top_p_ptr is not None:
        tl.store(top_p_out + req, tl.load(top_p_ptr + slot, mask=is_in, other=1.0), mask=is_in)
    if min_p_ptr is not None:
        tl.store(min_p_out + req, tl.load(min_p_ptr + slot, mask=is_in, other=0.0), mask=is_in)


@triton.jit
def temperature_of(temperature_ptr, top_k_ptr, req):
    """A request's; 0, which is greedy, where top_k is 1: of equals the first is taken."""
    temperature = tl.load(temperature_ptr + req)
    if top_k_ptr is not None:
        temperature = tl.where(tl.load(top_k_ptr + req) == 1, 0.0, temperature)
    return temperature


@triton.jit
def scale_of(temperature):
    """What makes exp2 of a difference of logits a ratio of probabilities; bounded, so that 0 stays 0 for the
    lowest temperature and -inf stays -inf for the highest."""
    return tl.maximum(tl.minimum(tl.div_rn(1.4426950408889634, temperature), 1e30), 1e-30)


@triton.jit
def _mass_against(value, best, scale):
    """As the second of ``_mass_of``."""
    # Of +inf, inf - inf is NaN too: the sum tells of both, and no entry is asked by itself.
    against = tl.where(best > float("-inf"), best, 0.0)
    offset = against * scale
    if tl.abs(offset) < 65536.0:
        # One instruction an entry less than a difference and a product. What the offset is rounded by is in
        # every entry alike, and known: the largest entry's own exponent.
        rounded_by = tl.fma(against, scale, -offset)
        mass = tl.sum(tl.exp2(tl.fma(value, scale, -offset)), axis=0) * tl.exp2(-rounded_by)
    else:
        mass = tl.sum(tl.exp2((value - against) * scale), axis=0)
    return mass


@triton.jit
def _mass_of(value, scale):
    """(largest entry, sum of exp2((x - largest) * scale)); the sum is NaN where an entry is NaN or +inf."""
    value = value.to(tl.float32)
    best = tl.max(value, axis=0)
    return best, _mass_against(value, best, scale)


@triton.jit
def _as_ordered(bits):
    """The bits of float32 numbers as int32 in their order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _best_of_parts(value, PIECE: tl.constexpr, PART: tl.constexpr):
    """The largest entry of each part of a piece: of a thread's own, then of a warp's, which for integers is
    one instruction."""
    RUN: tl.constexpr = RUN_BITS // value.dtype.primitive_bitwidth
    runs = tl.reshape(value, (PIECE // PART, PART // RUN, RUN)).to(tl.float32)
    bits = tl.max(runs, axis=2).to(tl.int32, bitcast=True)
    return _as_ordered(tl.max(_as_ordered(bits), axis=1)).to(tl.float32, bitcast=True)


@triton.jit
def first_best_of_piece(row_ptr, columns, piece, PIECE: tl.constexpr):
    """As ``first_best_of``."""
    column, value = entries_of(row_ptr, piece * PIECE, columns, PIECE)
    return first_best_of(column, value, piece * PIECE, piece * PIECE + PIECE)


def stats_grid(pieces: int, width: int, requests: int, has_drafts: bool) -> tuple[int, int, int]:
    """Neighbours read what lies side by side, and no program divides to find its place, unless there are
    more requests than a grid's last dimension has."""
    return pieces, width * (1 + has_drafts) * parts_of(requests, GRID_MOST), min(requests, GRID_MOST)


@triton.jit(do_not_specialize=["width", "requests"])
def stats_kernel(
    logits_ptr,  # [N, columns]
    logits_stride, columns,
    draft_logits_ptr,  # [slots, K, draft_columns] or None
    slot_stride, step_stride, draft_columns,
    draft_slots_ptr,  # int32[R] or None
    starts_ptr,  # int32[R + 1], or None: each request has width rows
    temperature_ptr,  # float32[R]
    top_k_ptr,  # int32[R] or None
    best_ptr, mass_ptr,  # float32[N, pieces]
    at_ptr,  # int32[N, pieces]
    draft_best_ptr, draft_mass_ptr,  # float32[N, pieces] or None
    width, pieces, requests,
    PIECE: tl.constexpr, IS_EARLY: tl.constexpr,
    parts_ptr=None,  # float32[N, parts]
    parts=0,
    PART: tl.constexpr = 1,
):  # fmt: skip
    """Program (piece, row of a request, target's before draft's, request), the grid of ``stats_grid``. Greedy
    rows get columns instead of masses. With ``parts_ptr`` the others get the largest entry of each ``PART``
    columns too."""
    let_next_begin(IS_EARLY)
    piece = tl.program_id(0)
    row = tl.program_id(1)
    req = tl.program_id(2)
    if tl.num_programs(2) < requests:
        kinds = 1 if draft_logits_ptr is None else 2
        req += row // (width * kinds) * tl.num_programs(2)
        row = row % (width * kinds)
    is_request = req < requests
    req = tl.minimum(req, requests - 1)
    is_target = row < width
    row = tl.where(is_target, row, row - width)
    start = req * width
    rows = req * 0 + width
    if starts_ptr is not None:
        start = tl.load(starts_ptr + req)
        rows = tl.load(starts_ptr + req + 1) - start
    rows = tl.where(is_request, rows, 0)
    at = (start + row).to(tl.int64) * pieces + piece
    if is_target:
        # The logits were there before the kernel that gathered the temperatures.
        row_ptr = logits_ptr + (start + row).to(tl.int64) * logits_stride
        column, value = entries_of(row_ptr, piece * PIECE, tl.where(row < rows, columns, 0), PIECE)
        wait_for_previous(IS_EARLY)
        if row < rows:
            temperature = temperature_of(temperature_ptr, top_k_ptr, req)
            if temperature > 0:
                if parts_ptr is None:
                    best, mass = _mass_of(value, scale_of(temperature))
                else:
                    best_of_parts = _best_of_parts(value, PIECE, PART)
                    part = piece * (PIECE // PART) + tl.arange(0, PIECE // PART)
                    part_at = (start + row).to(tl.int64) * parts + part
                    tl.store(parts_ptr + part_at, best_of_parts, mask=part < parts)
                    best = tl.max(best_of_parts, axis=0)
                    mass = _mass_against(value.to(tl.float32), best, scale_of(temperature))
                tl.store(best_ptr + at, best)
                tl.store(mass_ptr + at, mass)
            else:
                best, first = first_best_of(column, value, piece * PIECE, piece * PIECE + PIECE)
                tl.store(best_ptr + at, best)
                tl.store(at_ptr + at, first.to(tl.int32))
    else:
        wait_for_previous(IS_EARLY)
        if draft_logits_ptr is not None:
            slot = tl.load(draft_slots_ptr + req).to(tl.int64)
            temperature = temperature_of(temperature_ptr, top_k_ptr, req)
            if (slot >= 0) & (row + 1 < rows) & (temperature > 0):
                row_ptr = draft_logits_ptr + slot * slot_stride + row.to(tl.int64) * step_stride
                _column, value = entries_of(row_ptr, piece * PIECE, draft_columns, PIECE)
                best, mass = _mass_of(value, scale_of(temperature))
                tl.store(draft_best_ptr + at, best)
                tl.store(draft_mass_ptr + at, mass)
