"""One token from what a rejected draft leaves of the target's distribution, or from all of it."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "first_over", "list_weights_of", "masses_known",
    "sample_list", "sample_of_list", "sample_of_masses", "sample_row",
    "weights_of",
]  # fmt: skip


@triton.jit
def weights_of(
    row_ptr, columns, column, top, scale, threshold, without,
    draft_row_ptr, draft_columns, draft_top, draft_factor, HAS_DRAFTS: tl.constexpr,
):  # fmt: skip
    """max(p - q, 0) times the target's kept mass, 0 in the column ``without``."""
    value = tl.load(row_ptr + column, mask=column < columns, other=float("-inf")).to(tl.float32)
    weight = tl.where(value >= threshold, tl.exp2((value - top) * scale), 0.0)
    if HAS_DRAFTS:
        drafted = tl.load(draft_row_ptr + column, mask=column < draft_columns, other=float("-inf"))
        drafted = tl.exp2((drafted.to(tl.float32) - draft_top) * scale) * draft_factor
        weight = tl.maximum(weight - drafted, 0.0)
    return tl.where(column == without, 0.0, weight)


@triton.jit
def _masses_read(
    row_ptr, columns, best_ptr, pieces, top, scale, threshold, without,
    draft_row_ptr, draft_columns, draft_top, draft_factor,
    HAS_DRAFTS: tl.constexpr, PIECE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """float32[PADDED], the mass of each piece, from reading those that have a kept value."""
    index = tl.arange(0, PADDED)
    masses = tl.zeros((PADDED,), tl.float32)
    for piece in tl.range(0, pieces, num_stages=3):
        is_kept = tl.load(best_ptr + piece) >= threshold
        weight = weights_of(
            row_ptr, tl.where(is_kept, columns, 0), piece * PIECE + tl.arange(0, PIECE), top, scale,
            threshold, without, draft_row_ptr, tl.where(is_kept, draft_columns, 0), draft_top, draft_factor,
            HAS_DRAFTS,
        )  # fmt: skip
        masses = tl.where(index == piece, tl.sum(weight, axis=0), masses)
    return masses


@triton.jit
def masses_known(
    row_ptr, columns, best_ptr, mass_ptr, pieces, top, scale, without,
    PIECE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """As ``_masses_read`` where nothing is cut off and no distribution is subtracted: of the pieces, only the
    one that has the column ``without`` is read, and that one only where little but this column weighs."""
    index = tl.arange(0, PADDED)
    best = tl.load(best_ptr + index, mask=index < pieces, other=float("-inf"))
    mass = tl.load(mass_ptr + index, mask=index < pieces, other=0.0)
    masses = mass * tl.exp2((best - top) * scale)
    if without >= 0:
        piece = without // PIECE
        own = tl.exp2((tl.load(row_ptr + without).to(tl.float32) - top) * scale)
        rest = tl.sum(tl.where(index == piece, masses, 0.0), axis=0) - own
        if rest < own:  # a difference of near equals is rounding
            weight = weights_of(
                row_ptr, columns, piece * PIECE + tl.arange(0, PIECE), top, scale, float("-inf"), without,
                row_ptr, 0, 0.0, 0.0, False,
            )  # fmt: skip
            rest = tl.sum(weight, axis=0)
        masses = tl.where(index == piece, rest, masses)
    return masses


@triton.jit
def first_over(masses, index, goal, NONE: tl.constexpr):
    """The first index up to which more than the goal lies, else the last that has any mass."""
    reached = tl.cumsum(masses, axis=0)
    first = tl.min(tl.where((reached > goal) & (masses > 0), index, NONE), axis=0)
    return tl.minimum(first, tl.max(tl.where(masses > 0, index, 0), axis=0))


@triton.jit
def sample_of_masses(
    row_ptr, columns, masses, top, scale, threshold, uniform, without,
    draft_row_ptr, draft_columns, draft_top, draft_factor,
    HAS_DRAFTS: tl.constexpr, PIECE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """As ``sample_row``, from the masses of the pieces (float64[PADDED], not all 0): one piece is read."""
    index = tl.arange(0, PADDED)
    total = tl.sum(masses, axis=0)
    piece = first_over(masses, index, uniform * total, PADDED)
    rest = uniform * total - tl.sum(tl.where(index < piece, masses, 0.0), axis=0)
    offset = tl.arange(0, PIECE)
    weight = weights_of(
        row_ptr, columns, piece * PIECE + offset, top, scale, threshold, without,
        draft_row_ptr, draft_columns, draft_top, draft_factor, HAS_DRAFTS,
    )  # fmt: skip
    return (piece * PIECE + first_over(weight.to(tl.float64), offset, rest, PIECE)).to(tl.int32)


@triton.jit
def sample_row(
    row_ptr, columns, best_ptr, mass_ptr, pieces, top, scale, threshold, uniform, without,
    draft_row_ptr, draft_columns, draft_top, draft_factor, least,
    HAS_DRAFTS: tl.constexpr, IS_LIMITED: tl.constexpr, PIECE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """int32: the first column, in order, up to which more than ``uniform`` (float64) of the mass lies.

    draft_columns 0: no distribution to subtract. If no more mass than ``least`` is left, nothing is.
    """
    masses = tl.zeros((PADDED,), tl.float64)
    total = tl.sum(masses, axis=0)
    tries = 0
    while tries < 2:
        is_known = (threshold == float("-inf")) & (draft_columns == 0)
        if (not HAS_DRAFTS and not IS_LIMITED) or is_known:
            masses = masses_known(
                row_ptr, columns, best_ptr, mass_ptr, pieces, top, scale, without, PIECE, PADDED
            ).to(tl.float64)
        else:
            masses = _masses_read(
                row_ptr, columns, best_ptr, pieces, top, scale, threshold, without,
                draft_row_ptr, draft_columns, draft_top, draft_factor, HAS_DRAFTS, PIECE, PADDED,
            ).to(tl.float64)  # fmt: skip
        total = tl.sum(masses, axis=0)
        tries += 1
        if total > least:
            tries = 2
        elif tries < 2:
            without = without * 0 - 1
            draft_columns = draft_columns * 0
    return sample_of_masses(
        row_ptr, columns, masses, top, scale, threshold, uniform, without,
        draft_row_ptr, draft_columns, draft_top, draft_factor, HAS_DRAFTS, PIECE, PADDED,
    )  # fmt: skip


@triton.jit
def list_weights_of(
    list_ptr, ids_ptr, listed, top, scale, threshold,
    draft_row_ptr, draft_columns, draft_top, draft_factor, HAS_DRAFTS: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """(column, max(p - q, 0), p) of the entries of a list, the last two times the target's kept mass."""
    place = tl.arange(0, LIST)
    value = tl.load(list_ptr + place, mask=place < listed, other=float("-inf"))
    is_kept = value >= threshold
    column = tl.load(ids_ptr + place, mask=is_kept, other=-1)
    target = tl.where(is_kept, tl.exp2((value - top) * scale), 0.0)
    weight = target
    if HAS_DRAFTS:
        drafted = tl.load(
            draft_row_ptr + column, mask=is_kept & (column < draft_columns), other=float("-inf")
        )
        drafted = tl.exp2((drafted.to(tl.float32) - draft_top) * scale) * draft_factor
        weight = tl.maximum(weight - drafted, 0.0)
    return column, weight, target


@triton.jit
def sample_of_list(column, weight, target, uniform, least, LIST: tl.constexpr):
    """As ``sample_row``, of entries in the order of their columns: by their weight, or, if no more than
    ``least`` is left, by the target's."""
    place = tl.arange(0, LIST)
    weight = tl.where(tl.sum(weight.to(tl.float64), axis=0) > least, weight, target).to(tl.float64)
    chosen = first_over(weight, place, uniform * tl.sum(weight, axis=0), LIST)
    return tl.sum(tl.where(place == chosen, column, 0), axis=0).to(tl.int32)


@triton.jit
def sample_list(
    list_ptr, ids_ptr, listed, top, scale, threshold, uniform, without,
    draft_row_ptr, draft_columns, draft_top, draft_factor, least,
    HAS_DRAFTS: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """As ``sample_row``, of entries in a list, in the order of their columns."""
    column, weight, target = list_weights_of(
        list_ptr, ids_ptr, listed, top, scale, threshold,
        draft_row_ptr, draft_columns, draft_top, draft_factor, HAS_DRAFTS, LIST,
    )  # fmt: skip
    weight = tl.where(column == without, 0.0, weight)
    return sample_of_list(column, weight, target, uniform, least, LIST)
