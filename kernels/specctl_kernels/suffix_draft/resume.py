"""A draft that goes on behind an edit: ``specctl.draft.resume`` on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.suffix_draft.lessons import RESUME_AT, RESUME_MATCH, RESUME_PLACE

__all__ = ["draft_on", "resume_place"]


@triton.jit
def resume_place(
    lesson_ptr, is_known, own_ptr, known, places, matches, count,
    LONG_MATCH: tl.constexpr, EDIT_TOKENS: tl.constexpr, SHIFT: tl.constexpr, SHIFTS_2: tl.constexpr,
    CANDIDATES: tl.constexpr,
):  # fmt: skip
    """(place, 0 where nothing says so; its doubts; the match that it continues).

    is_known: whether the lesson is of this request. places, matches int64[CANDIDATES]: of the context's
    ``count`` occurrences in the request's own text, in any order.
    """
    candidates = tl.arange(0, CANDIDATES)
    best = tl.max(tl.where(candidates < count, (matches << 32) | places, 0))
    went_on = tl.load(lesson_ptr + RESUME_PLACE).to(tl.int64)
    at = tl.load(lesson_ptr + RESUME_AT).to(tl.int64)
    match = tl.load(lesson_ptr + RESUME_MATCH).to(tl.int64)
    behind = known - at
    is_long = (best >> 32) >= LONG_MATCH
    is_edit = is_known & (went_on > 0) & (behind <= EDIT_TOKENS) & (best >> 32 < LONG_MATCH)
    iota = tl.arange(0, SHIFTS_2)
    tried = went_on + behind + (iota + 1) // 2 * tl.where(iota % 2 == 1, 1, -1)
    last = tl.load(own_ptr + known - 1)
    inside = is_edit & (iota <= 2 * SHIFT) & (tried >= 1) & (tried < known)
    is_place = inside & (tl.load(own_ptr + tried - 1, mask=inside, other=-3) == last)
    first = tl.min(tl.where(is_place, iota, SHIFTS_2))
    place = tl.sum(tl.where(is_place & (iota == first), tried, 0))
    has_two = place > 1
    before = tl.load(own_ptr + known - 2, mask=has_two, other=-2)
    is_sure = has_two & (tl.load(own_ptr + place - 2, mask=has_two, other=-3) == before)
    doubts = tl.where(is_sure, 0, 1 + (first + 3) // 4)
    # What the last request of this slot has left is no match of this one.
    went_on = tl.where(is_long, best & 0xFFFFFFFF, tl.where(is_known, went_on, 0))
    tl.store(lesson_ptr + RESUME_PLACE, went_on.to(tl.int32))
    tl.store(lesson_ptr + RESUME_AT, tl.where(is_long, known, at).to(tl.int32))
    tl.store(lesson_ptr + RESUME_MATCH, tl.where(is_long, best >> 32, match).to(tl.int32))
    return place, doubts, match


@triton.jit
def draft_on(
    own_ptr, known, place, doubts, room, chance_ptr, min_prob,
    MOST_MATCH: tl.constexpr, CANDIDATES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The own text from ``place`` on; what ``kernel._voted`` gives."""
    columns = tl.arange(0, WIDTH)
    size = tl.minimum(room, known - place)
    tokens = tl.load(own_ptr + place + columns, mask=columns < size, other=0)
    matched = tl.minimum(columns + 1, MOST_MATCH)
    entries = matched * ((CANDIDATES + 1) * (CANDIDATES + 1)) + doubts
    probs = tl.zeros([WIDTH], tl.float32)
    prob = tl.full((), 1.0, tl.float64)
    score = tl.full((), 0.0, tl.float64)
    j, seen = 0, 0
    is_open = size > 0
    while is_open:
        entry = tl.sum(tl.where(columns == j, entries, 0))
        prob = prob * tl.load(chance_ptr + entry).to(tl.float64)
        seen = j + 1
        if prob < min_prob:
            is_open = False
        else:
            probs = tl.where(columns == j, prob.to(tl.float32), probs)
            score += prob
            j += 1
            is_open = j < size
    return tokens, entries.to(tl.int32), probs, score, j, seen
