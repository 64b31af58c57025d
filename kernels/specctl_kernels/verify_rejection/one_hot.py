"""Rejection sampling along a chain of drafts without a distribution: samples of the whole law are drawn until
one is kept by the cuts, so that no kept set is looked for."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.row_law.draws import uniforms_at
from specctl_kernels.row_law.judge import (
    greedy_stop,
    has_cuts,
    judged_rows,
    of_row,
    options_of,
    surely_kept,
    totals_of,
    write_chain,
)
from specctl_kernels.row_law.stats import scale_of
from specctl_kernels.row_law.threshold import bound_of_min_p
from specctl_kernels.verify_rejection.kept import truncation_of
from specctl_kernels.verify_rejection.kept_one import is_kept
from specctl_kernels.verify_rejection.kernel import first_best
from specctl_kernels.verify_rejection.residual import (
    masses_known,
    sample_list,
    sample_of_masses,
    sample_row,
)

__all__ = ["ROUNDS", "one_hot_kernel"]

ROUNDS = tl.constexpr(8)
"""Samples of a row's whole law, before what is kept is looked for and sampled from by itself."""


@triton.jit
def _rounds_of(columns, top_k, top_p, min_p):
    """Where top-p follows another cut, a sample is kept by the mass that the other leaves: none can be
    judged without the kept set. With min-p nearly all of the first samples are kept."""
    is_top_k = (top_k > 0) & (top_k < columns)
    rounds = tl.where(min_p > 0, 1, top_k * 0 + ROUNDS)
    return tl.where((top_p < 1) & (is_top_k | (min_p > 0)), 0, rounds)


@triton.jit
def _one_of_the_whole(
    row_ptr, columns, best_ptr, mass_ptr, pieces, bound, top, scale, sample, without,
    PIECE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """int32: a sample, other than ``without``, of the pieces of a row that reach the bound."""
    nothing, none = scale * 0.0, without * 0
    index = tl.arange(0, PADDED)
    is_in = tl.load(best_ptr + index, mask=index < pieces, other=float("-inf")) >= bound
    masses = masses_known(
        row_ptr, columns, best_ptr, mass_ptr, pieces, top, scale, without, PIECE, PADDED
    ).to(tl.float64)
    masses = tl.where(is_in, masses, 0.0)
    if tl.sum(masses, axis=0) <= 0:
        without = none - 1
        masses = masses_known(
            row_ptr, columns, best_ptr, mass_ptr, pieces, top, scale, without, PIECE, PADDED
        ).to(tl.float64)
    return sample_of_masses(
        row_ptr, columns, masses, top, scale, nothing + float("-inf"), sample, without, row_ptr, none,
        nothing, nothing, False, PIECE, PADDED,
    )  # fmt: skip


@triton.jit
def _kept_token(
    logits_ptr, logits_stride, columns, best_ptr, mass_ptr, pieces, parts_ptr, parts, over_ptr, taken_ptr,
    short_ptr, short_ids_ptr, lists_ptr, req, at, bound, top, scale, total, draft, weight, value, seed,
    position, accept, sample, top_k, top_p, min_p,
    PIECE: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
    SHORT: tl.constexpr, LIST: tl.constexpr, MOST_PASSES: tl.constexpr,
):  # fmt: skip
    """int32: a sample of what the cuts keep of row ``at``. A sample of a law is the draft if accept is under
    its probability, else one of the others. Of samples of the whole law the first that is kept has the kept
    law; after some rounds without one what is kept is looked for, and sampled from by itself. The whole law
    is that of the pieces with an entry from ``bound`` on, which is the least that min-p keeps."""
    row_ptr = logits_ptr + at * logits_stride
    place = req.to(tl.int64)
    nothing, none = scale * 0.0, draft * 0
    rounds = _rounds_of(columns, top_k, top_p, min_p)
    is_found = draft * 0
    token = draft * 0 - 1
    begun = draft * 0
    while (is_found == 0) & (begun < rounds):
        token = draft
        entry = value
        if (draft < 0) | (accept * total.to(tl.float64) >= weight.to(tl.float64)):
            token = _one_of_the_whole(
                row_ptr, columns, best_ptr + at * pieces, mass_ptr + at * pieces, pieces, bound, top, scale,
                sample, draft, PIECE, PADDED,
            )  # fmt: skip
            entry = tl.load(row_ptr + token).to(tl.float32)
        is_found = is_kept(
            row_ptr, columns, parts_ptr + at * parts, parts, over_ptr + place * PARTS, entry, top, scale,
            total, top_k, top_p, min_p, PARTS, PART,
        )  # fmt: skip
        begun += 1
        if is_found == 0:
            accept, sample = uniforms_at(seed, position, begun)
    if is_found == 0:
        threshold, kept, listed = truncation_of(
            logits_ptr, logits_stride, columns, parts_ptr, parts, taken_ptr, short_ptr, short_ids_ptr,
            lists_ptr, at, place, top, scale, total, top_k, top_p, min_p,
            PARTS, PART, SHORT, LIST, MOST_PASSES,
        )  # fmt: skip
        is_draft = (draft >= 0) & (value >= threshold)
        if is_draft & (accept * kept.to(tl.float64) < weight.to(tl.float64)):
            token = draft
        elif listed >= 0:
            token = sample_list(
                short_ptr + place * SHORT, short_ids_ptr + place * SHORT, listed, top, scale, threshold,
                sample, draft, row_ptr, none, nothing, nothing, nothing, False, SHORT,
            )  # fmt: skip
        else:
            token = sample_row(
                row_ptr, columns, best_ptr + at * pieces, mass_ptr + at * pieces, pieces, top, scale,
                threshold, sample, draft, row_ptr, none, nothing, nothing, nothing,
                False, True, PIECE, PADDED,
            )  # fmt: skip
    return token


@triton.jit
def one_hot_kernel(
    logits_ptr, logits_stride, columns, best_ptr, mass_ptr, at_ptr, pieces,
    drafts_ptr, starts_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seeds_ptr, positions_ptr,
    uniforms_ptr,  # all as in verify_kernel
    parts_ptr,  # float32[N, parts] or None
    parts,
    over_ptr,  # int32[R, PARTS] or None
    taken_ptr,  # int32[R, SHORT] or None
    short_ptr,  # float32[R, SHORT] or None
    short_ids_ptr,  # int32[R, SHORT] or None
    lists_ptr,  # float32[R, LIST] or None
    tokens_ptr, tokens_stride, counts_ptr, not_finite_ptr, width,  # as in verify_kernel
    NO_TOKEN: tl.constexpr, ROWS: tl.constexpr, PADDED: tl.constexpr,
    PIECE: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr, SHORT: tl.constexpr, LIST: tl.constexpr,
    MOST_PASSES: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """One program for each request. Draft i of a request is judged by its row i, the last row has none."""
    IS_LIMITED: tl.constexpr = parts_ptr is not None
    req = tl.program_id(0)
    (
        start, rows, row, draft, is_draft, own_logit, temperature, _piece_at, _is_in, best, mass, accept,
        sample,
    ) = judged_rows(
        logits_ptr, logits_stride, columns, best_ptr, mass_ptr, pieces, drafts_ptr, starts_ptr,
        temperature_ptr, top_k_ptr, seeds_ptr, positions_ptr, uniforms_ptr, req, width, ROWS, PADDED,
        IS_EARLY,
    )  # fmt: skip
    token = rows * 0
    if temperature > 0:
        scale = scale_of(temperature)
        top, total, is_bad = totals_of(best, mass, scale)
        value = tl.where(is_bad == 0, own_logit, float("-inf"))
        weight = tl.exp2((value - top) * scale)
        is_taken = is_draft & (is_bad == 0)
        is_taken = is_taken & (accept * total.to(tl.float64) < weight.to(tl.float64))
        is_accepted = is_taken.to(tl.int32)
        is_cut = rows < 0
        bound = tl.full((ROWS,), float("-inf"), tl.float32)
        if IS_LIMITED:
            top_k, top_p, min_p = options_of(top_k_ptr, top_p_ptr, min_p_ptr, req)
            is_cut = has_cuts(top_k, top_p, min_p, columns)
            if is_cut:
                bound = tl.where(
                    min_p > 0, bound_of_min_p(top, scale, tl.where(min_p > 0, min_p, 1.0)), float("-inf")
                )
                weights = tl.where(best >= bound[:, None], mass * tl.exp2((best - top[:, None]) * scale), 0.0)
                total = tl.where(is_bad == 0, tl.sum(weights, axis=1), 0.0)
                is_taken = is_draft & (is_bad == 0)
                is_taken = is_taken & (accept * total.to(tl.float64) < weight.to(tl.float64))
                is_accepted = is_taken.to(tl.int32) & surely_kept(
                    value, top, weight, total, top_k, top_p, min_p, columns
                )
        stop = tl.min(tl.where(is_accepted == 0, row, ROWS), axis=0)
        is_open = (stop < rows).to(tl.int32)
        while is_open != 0:
            is_open = is_open * 0
            at = (start + stop).to(tl.int64)
            stop_draft = of_row(tl.where(is_draft, draft + 1, 0), row, stop) - 1
            if of_row(is_bad, row, stop) != 0:
                tl.atomic_add(not_finite_ptr, 1)
                token = first_best(logits_ptr + at * logits_stride, columns, pieces, PIECE)
            else:
                stop_top, stop_total = of_row(top, row, stop), of_row(total, row, stop)
                if IS_LIMITED:
                    token = stop_draft * 0 - 1
                    if is_cut:
                        token = _kept_token(
                            logits_ptr, logits_stride, columns, best_ptr, mass_ptr, pieces, parts_ptr, parts,
                            over_ptr, taken_ptr, short_ptr, short_ids_ptr, lists_ptr, req, at,
                            of_row(bound, row, stop), stop_top, scale, stop_total, stop_draft,
                            of_row(weight, row, stop), of_row(own_logit, row, stop),
                            tl.load(seeds_ptr + req), tl.load(positions_ptr + at), of_row(accept, row, stop),
                            of_row(sample, row, stop), top_k, top_p, min_p,
                            PIECE, PADDED, PARTS, PART, SHORT, LIST, MOST_PASSES,
                        )  # fmt: skip
                        if (token == stop_draft) & (stop_draft >= 0):
                            is_accepted = is_accepted | (row == stop).to(tl.int32)
                            stop = tl.min(tl.where(is_accepted == 0, row, ROWS), axis=0)
                            is_open = (stop < rows).to(tl.int32)
                if is_cut == 0:
                    row_ptr = logits_ptr + at * logits_stride
                    nothing = scale * 0.0
                    token = sample_row(
                        row_ptr, columns, best_ptr + at * pieces, mass_ptr + at * pieces, pieces, stop_top,
                        scale, nothing + float("-inf"), of_row(sample, row, stop), stop_draft, row_ptr,
                        stop * 0, nothing, nothing, nothing, False, False, PIECE, PADDED,
                    )  # fmt: skip
    else:
        stop, token = greedy_stop(at_ptr, best, pieces, start, rows, row, draft, ROWS)
    write_chain(tokens_ptr, tokens_stride, counts_ptr, req, rows, row, draft, stop, token, width, NO_TOKEN)
