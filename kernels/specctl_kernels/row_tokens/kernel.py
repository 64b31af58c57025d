"""One program for each row: its largest entry, or a sample of its law. Then one for each chain of drafts."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.dependent_launch import let_next_begin, wait_for_previous
from specctl_kernels.row_tokens.cuts import first_kept
from specctl_kernels.row_tokens.lanes import best_of_row, drawn, lanes_of_row, masses_from
from specctl_kernels.row_law.draws import uniforms_at
from specctl_kernels.row_law.judge import has_cuts, options_of
from specctl_kernels.row_law.stats import scale_of, temperature_of
from specctl_kernels.row_law.threshold import LOWEST, kept_by_reading

__all__ = ["CANDIDATES", "ROUNDS", "chain_kernel", "row_tokens_kernel"]

CANDIDATES = tl.constexpr(8)
"""Samples of a row's whole law that are drawn together where it is cut."""
ROUNDS = tl.constexpr(3)
"""So often, before what is kept is looked for by reading, and sampled from alone."""


@triton.jit
def _uniforms(uniforms_ptr, seed, position, at, place, MOST: tl.constexpr):
    """float64 of each place; a row's numbers, if given, are float64[MOST]."""
    if uniforms_ptr is not None:
        uniform = tl.load(uniforms_ptr + at * MOST + place)
    else:
        _accept, uniform = uniforms_at(seed, position + place * 0, place)
    return uniform


@triton.jit
def _kept_sample(
    row_ptr, columns, best, mass, top, scale, total, top_k, top_p, min_p, uniforms_ptr, seed, position, at,
    taken_ptr, list_ptr, LANES: tl.constexpr, RUN: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
    LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """int32: a sample of what the cuts keep of a row. Of samples of the whole law the first that is kept has
    just the kept law; after ``ROUNDS`` without one, what is kept is sampled from by itself."""
    MOST: tl.constexpr = ROUNDS * CANDIDATES + 1
    number = tl.arange(0, CANDIDATES)
    token = columns * 0 - 1
    begun = columns * 0
    while (token < 0) & (begun < ROUNDS):
        uniform = _uniforms(uniforms_ptr, seed, position, at, begun * CANDIDATES + number, MOST)
        column, value = drawn(row_ptr, columns, mass, uniform, LOWEST, top, scale, LANES, RUN, TILES)
        found = first_kept(
            row_ptr, columns, value, best, top, scale, total, top_k, top_p, min_p, taken_ptr, list_ptr,
            CANDIDATES, LANES, RUN, TILES, LIST, MOST_PASSES,
        )  # fmt: skip
        token = tl.max(tl.where(number == found, column, -1), axis=0)
        begun += 1
    if token < 0:
        threshold, _kept = kept_by_reading(
            row_ptr, columns, list_ptr, top, scale, total, top_k, top_p, min_p, LIST, MOST_PASSES
        )
        only = masses_from(row_ptr, columns, threshold, top, scale, LANES, RUN, STAGES).to(tl.float64)
        uniform = _uniforms(uniforms_ptr, seed, position, at, tl.arange(0, 1) + (MOST - 1), MOST)
        column, _value = drawn(row_ptr, columns, only, uniform, threshold, top, scale, LANES, RUN, TILES)
        token = tl.max(column, axis=0)
    return token


@triton.jit
def _sample(
    row_ptr, columns, req, at, scale, top_k_ptr, top_p_ptr, min_p_ptr, seeds_ptr, positions_ptr, uniforms_ptr,
    taken_ptr, lists_ptr, LANES: tl.constexpr, RUN: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
    LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """As ``row_tokens_kernel``, of a row that is sampled."""
    MOST: tl.constexpr = ROUNDS * CANDIDATES + 1
    best, mass = lanes_of_row(row_ptr, columns, scale, LANES, RUN, STAGES)
    top = tl.max(best, axis=0)
    mass *= tl.exp2((best - top) * scale)
    total = tl.sum(mass, axis=0)
    token = columns * 0 - 1
    if total > 0:
        seed, position = tl.load(seeds_ptr + req), tl.load(positions_ptr + at)
        if taken_ptr is not None:
            top_k, top_p, min_p = options_of(top_k_ptr, top_p_ptr, min_p_ptr, req)
            if has_cuts(top_k, top_p, min_p, columns):
                token = _kept_sample(
                    row_ptr, columns, best, mass.to(tl.float64), top, scale, total, top_k, top_p, min_p,
                    uniforms_ptr, seed, position, at, taken_ptr + at * LANES, lists_ptr + at * LIST,
                    LANES, RUN, TILES, STAGES, LIST, MOST_PASSES,
                )  # fmt: skip
        if token < 0:
            uniform = _uniforms(uniforms_ptr, seed, position, at, tl.arange(0, 1), MOST)
            column, _value = drawn(
                row_ptr, columns, mass.to(tl.float64), uniform, LOWEST, top, scale, LANES, RUN, TILES
            )
            token = tl.max(column, axis=0)
    else:
        token = -2 - best_of_row(row_ptr, columns, LANES, RUN, STAGES)
    return token


@triton.jit(do_not_specialize=["width"])
def row_tokens_kernel(
    logits_ptr,  # [N, columns]
    logits_stride, columns,
    starts_ptr,  # int32[R + 1]
    temperature_ptr,  # float32[R], or None: all greedy
    top_k_ptr,  # int32[R] or None
    top_p_ptr, min_p_ptr,  # float32[R] or None
    seeds_ptr,  # int64[R]
    positions_ptr,  # int64[N]
    uniforms_ptr,  # float64[N, ROUNDS * CANDIDATES + 1] or None
    taken_ptr,  # int32[N, LANES] or None: no cuts
    lists_ptr,  # float32[N, LIST] or None
    tokens_ptr,  # int32[N]
    width,
    LANES: tl.constexpr, RUN: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
    LIST: tl.constexpr, MOST_PASSES: tl.constexpr, IS_EARLY: tl.constexpr, IS_FOLLOWED: tl.constexpr,
):  # fmt: skip
    """One program for each row of ``width`` of each request, those that it has. A row that has no
    distribution, where it is sampled, gets -2 and less the first column of its largest number."""
    let_next_begin(IS_FOLLOWED)
    req = tl.program_id(0) // width
    row = tl.program_id(0) % width
    start = tl.load(starts_ptr + req)
    at = (start + row).to(tl.int64)
    is_row = row < tl.load(starts_ptr + req + 1) - start
    row_ptr = logits_ptr + at * logits_stride
    wait_for_previous(IS_EARLY)
    if is_row:
        if temperature_ptr is None:
            token = best_of_row(row_ptr, columns, LANES, RUN, STAGES)
        else:
            temperature = temperature_of(temperature_ptr, top_k_ptr, req)
            if temperature > 0:
                token = _sample(
                    row_ptr, columns, req, at, scale_of(temperature), top_k_ptr, top_p_ptr, min_p_ptr,
                    seeds_ptr, positions_ptr, uniforms_ptr, taken_ptr, lists_ptr,
                    LANES, RUN, TILES, STAGES, LIST, MOST_PASSES,
                )  # fmt: skip
            else:
                token = best_of_row(row_ptr, columns, LANES, RUN, STAGES)
        tl.store(tokens_ptr + at, token)


@triton.jit
def chain_kernel(
    rows_ptr,  # int32[N], as row_tokens_kernel writes them
    drafts_ptr,  # integer[N]
    starts_ptr,  # int32[R + 1]
    tokens_ptr,  # int64[R, width]
    tokens_stride,
    counts_ptr,  # int32[R]
    not_finite_ptr,  # int64[1] or None
    width,
    NO_TOKEN: tl.constexpr, NOT_FINITE: tl.constexpr, ROWS: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """One program for each request: a draft is kept while it is its row's token."""
    req = tl.program_id(0)
    start = tl.load(starts_ptr + req)
    rows = tl.minimum(tl.load(starts_ptr + req + 1) - start, width)
    row = tl.arange(0, ROWS)
    draft = tl.load(drafts_ptr + start + row + 1, mask=row + 1 < rows, other=-1)
    wait_for_previous(IS_EARLY)
    token = tl.load(rows_ptr + start + row, mask=row < rows, other=0)
    stop = tl.min(tl.where((draft == token) & (token >= 0) & (row + 1 < rows), ROWS, row), axis=0)
    is_bad = tl.max(((row == stop) & (token < 0)).to(tl.int32), axis=0)
    token = tl.where(token < 0, -2 - token, token)
    count = tl.where(rows > 0, stop + 1, 0)
    if is_bad != 0:
        if not_finite_ptr is not None:
            tl.atomic_add(not_finite_ptr, 1)
        else:
            count = count * 0 + NOT_FINITE
    goal_ptr = tokens_ptr + req.to(tl.int64) * tokens_stride
    tl.store(goal_ptr + row, tl.where(row < count, token, NO_TOKEN).to(tl.int64), mask=row < width)
    tl.store(counts_ptr + req, count)
