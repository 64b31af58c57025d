"""How each row of a request judges its draft, from what the one read of the logits left."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.dependent_launch import wait_for_previous
from specctl_kernels.row_law.draws import uniforms_at
from specctl_kernels.row_law.stats import temperature_of

__all__ = [
    "acceptance_terms",
    "greedy_stop",
    "has_cuts",
    "judged_rows",
    "of_row",
    "options_of",
    "partials_at",
    "pieces_at",
    "rows_of",
    "surely_kept",
    "totals_of",
    "uniforms_of",
    "write_chain",
]  # fmt: skip


@triton.jit
def of_row(values, row, chosen):
    """The scalar of one row."""
    return tl.sum(tl.where(row == chosen, values, 0), axis=0)


@triton.jit
def partials_at(best_ptr, mass_ptr, at, is_in):
    """(largest entries, masses) of the pieces of rows, [rows, pieces]."""
    return (
        tl.load(best_ptr + at, mask=is_in, other=float("-inf")),
        tl.load(mass_ptr + at, mask=is_in, other=0.0),
    )


@triton.jit
def totals_of(best, mass, scale):
    """(largest entry or 0 for none, softmax mass against it, 1 where the row has no distribution) of rows."""
    is_bad = tl.max((mass != mass).to(tl.int32), axis=1)
    top = tl.max(best, axis=1)
    is_bad = is_bad | (top == float("-inf")).to(tl.int32)
    top = tl.where(is_bad != 0, 0.0, top)
    return top, tl.sum(mass * tl.exp2((best - top[:, None]) * scale), axis=1), is_bad


@triton.jit
def surely_kept(value, top, weight, total, top_k, top_p, min_p, columns):
    """1 where an entry is in the kept set whatever the rest of its row: it is the largest, or k larger ones,
    or a nucleus without it, would weigh more than is left. The margin is for rounding."""
    safe = weight * 0.999
    of_top_k = tl.where((top_k > 0) & (top_k < columns), 1.0 / (top_k + 1), 0.0)
    of_top_p = tl.where(top_p < 1, 1.0 - top_p, -1.0)
    is_kept = (safe >= of_top_k * total) & (safe > of_top_p * total) & (safe >= min_p)
    return (is_kept | (value >= top)).to(tl.int32)


@triton.jit
def uniforms_of(uniforms_ptr, seeds_ptr, positions_ptr, req, row_at, is_row):
    """(accept, sample) float64 of rows, the injected ones if there are any."""
    if uniforms_ptr is not None:
        accept = tl.load(uniforms_ptr + row_at * 2, mask=is_row, other=0.0)
        sample = tl.load(uniforms_ptr + row_at * 2 + 1, mask=is_row, other=0.0)
    else:
        position = tl.load(positions_ptr + row_at, mask=is_row, other=0)
        accept, sample = uniforms_at(tl.load(seeds_ptr + req), position)
    return accept, sample


@triton.jit
def options_of(top_k_ptr, top_p_ptr, min_p_ptr, req):
    """(top_k, top_p, min_p) of a request, with what is off for those that are not given."""
    top_k = req * 0
    top_p = top_k.to(tl.float32) + 1.0
    min_p = top_k.to(tl.float32)
    if top_k_ptr is not None:
        top_k = tl.load(top_k_ptr + req)
    if top_p_ptr is not None:
        top_p = tl.load(top_p_ptr + req)
    if min_p_ptr is not None:
        min_p = tl.load(min_p_ptr + req)
    return top_k, top_p, min_p


@triton.jit
def has_cuts(top_k, top_p, min_p, columns):
    return ((top_k > 0) & (top_k < columns)) | (top_p < 1) | (min_p > 0)


@triton.jit
def rows_of(starts_ptr, drafts_ptr, req, columns, width, ROWS: tl.constexpr):
    """(first row, number of rows, ROWS row numbers, the draft that each judges, whether there is one): of
    what a call is given, so it may be read before the kernels before are done."""
    start = tl.load(starts_ptr + req)
    rows = tl.minimum(tl.load(starts_ptr + req + 1) - start, width)
    row = tl.arange(0, ROWS)
    draft = tl.load(drafts_ptr + start + row + 1, mask=row + 1 < rows, other=-1)
    # A draft's range is checked before it is narrowed.
    is_draft = (draft >= 0) & (draft < columns)
    return start, rows, row, tl.where(is_draft, draft, -1).to(tl.int32), is_draft


@triton.jit
def pieces_at(start, rows, row, pieces, PADDED: tl.constexpr):
    """(places of what the read left of each piece, whether it is one) of a request's rows, [ROWS, PADDED]."""
    piece = tl.arange(0, PADDED)
    at = start.to(tl.int64) * pieces + row[:, None] * pieces + piece[None, :]
    return at, (row < rows)[:, None] & (piece < pieces)[None, :]


@triton.jit
def judged_rows(
    logits_ptr, logits_stride, columns, best_ptr, mass_ptr, pieces, drafts_ptr, starts_ptr, temperature_ptr,
    top_k_ptr, seeds_ptr, positions_ptr, uniforms_ptr, req, width,
    ROWS: tl.constexpr, PADDED: tl.constexpr, IS_EARLY: tl.constexpr,
):  # fmt: skip
    """What a request's rows judge their drafts by: ``rows_of``, the logit of each row's draft, temperature,
    places of the pieces, whether there is one, their largest entries, their masses, numbers to accept and to
    sample with. What a call is given is read before the kernels before are done, the rest is waited for
    together."""
    start, rows, row, draft, is_draft = rows_of(starts_ptr, drafts_ptr, req, columns, width, ROWS)
    own_ptr = logits_ptr + (start + row).to(tl.int64) * logits_stride + draft
    own_logit = tl.load(own_ptr, mask=is_draft, other=float("-inf")).to(tl.float32)
    wait_for_previous(IS_EARLY)
    temperature = temperature_of(temperature_ptr, top_k_ptr, req)
    at, is_in = pieces_at(start, rows, row, pieces, PADDED)
    best, mass = partials_at(best_ptr, mass_ptr, at, is_in)
    accept, sample = uniforms_of(
        uniforms_ptr, seeds_ptr, positions_ptr, req, (start + row).to(tl.int64), row < rows
    )
    return (
        start, rows, row, draft, is_draft, own_logit, temperature, at, is_in, best, mass, accept, sample,
    )  # fmt: skip


@triton.jit
def greedy_stop(at_ptr, best, pieces, start, rows, row, draft, ROWS: tl.constexpr):
    """(row where a greedy request stops, its choice)."""
    winner = tl.argmax(best, axis=1, tie_break_left=True)
    first_piece = (start + row).to(tl.int64) * pieces
    choice = tl.load(at_ptr + first_piece + winner, mask=row < rows, other=-2)
    stop = tl.min(tl.where(draft == choice, ROWS, row), axis=0)
    return stop, of_row(choice, row, stop)


@triton.jit
def write_chain(
    tokens_ptr, tokens_stride, counts_ptr, req, rows, row, draft, stop, token, width, NO_TOKEN: tl.constexpr
):  # fmt: skip
    """What one request returns: the drafts before ``stop``, and there the token."""
    emitted = tl.where(row < stop, draft, tl.where(row == stop, token, NO_TOKEN))
    emitted = tl.where((row <= stop) & (rows > 0), emitted, NO_TOKEN)
    goal_ptr = tokens_ptr + req.to(tl.int64) * tokens_stride
    tl.store(goal_ptr + row, emitted.to(tl.int64), mask=row < width)
    tl.store(counts_ptr + req, tl.where(rows > 0, stop + 1, 0))


@triton.jit
def acceptance_terms(
    draft_logits_ptr, slot_stride, step_stride, draft_columns, draft_slots_ptr,
    draft_best_ptr, draft_mass_ptr, req, rows, row, draft, is_draft, own_logit, accept, at, is_in, best, mass,
    scale,
):  # fmt: skip
    """Of each row: largest logit, softmax mass against it, 1 where it has no distribution, 1 where its
    draft's has none, the draft's logit and weight, the draft distribution's largest logit and mass, and: the
    draft is kept if price times the mass that is kept is under worth, where it is a candidate at all and
    inside the cuts."""
    top, total, is_bad = totals_of(best, mass, scale)
    value = tl.where(is_bad == 0, own_logit, float("-inf"))
    weight = tl.exp2((value - top) * scale)
    # Of the draft: its own probability is draft_weight / draft_total, 1 where no distribution is given.
    is_bad_draft = is_bad * 0
    draft_top = top * 0.0
    draft_total = top * 0.0 + 1.0
    draft_weight = draft_total
    if draft_logits_ptr is not None:
        slot = tl.load(draft_slots_ptr + req).to(tl.int64)
        if slot >= 0:
            is_given = is_in & (row + 1 < rows)[:, None]
            draft_best, draft_mass = partials_at(draft_best_ptr, draft_mass_ptr, at, is_given)
            draft_top, draft_total, is_bad_draft = totals_of(draft_best, draft_mass, scale)
            is_bad_draft = tl.where(is_draft, is_bad_draft, 0)
            own = tl.load(
                draft_logits_ptr + slot * slot_stride + row.to(tl.int64) * step_stride + draft,
                mask=is_draft & (is_bad_draft == 0) & (draft < draft_columns), other=float("-inf"),
            )  # fmt: skip
            draft_weight = tl.exp2((own.to(tl.float32) - draft_top) * scale)
    # The draft is kept if accept * q < p; q and p without their divisions.
    price = accept * draft_weight.to(tl.float64)
    worth = weight.to(tl.float64) * draft_total.to(tl.float64)
    is_candidate = is_draft & (is_bad == 0) & (is_bad_draft == 0)
    return (
        top, total, is_bad, is_bad_draft, value, weight, draft_top, draft_total, price, worth, is_candidate,
    )  # fmt: skip
