"""A draft that goes on behind an edit: ``specctl.draft.resume`` on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.suffix_draft.token_odds import chance_of

__all__ = ["behind_an_edit", "room_of"]

_SEPARATOR: tl.constexpr = tl.constexpr(-1)  # 0xFFFFFFFF as int32
# Words of a long match: where it went on (0: there was none), how many tokens were known then, its length.
_PLACE: tl.constexpr = tl.constexpr(0)
_AT: tl.constexpr = tl.constexpr(1)
_MATCH: tl.constexpr = tl.constexpr(2)


@triton.jit
def room_of(match, budget, factor, offset):
    """The most tokens that a match of this length may draft."""
    return tl.minimum(budget.to(tl.int64), (factor * match.to(tl.float64) + offset + 1e-6).to(tl.int64))


@triton.jit
def _resume_place(
    last_ptr, is_known, text_ptr, end, own_ptr, known, places, matches, count,
    STRIDE: tl.constexpr, LONG_MATCH: tl.constexpr, EDIT_TOKENS: tl.constexpr, SHIFT: tl.constexpr,
    SHIFTS_2: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """(place, 0 where nothing says so; its doubts; the match that it continues).

    last_ptr: the long match in this text of ``end`` tokens, of which every STRIDE-th word is one; is_known:
    whether it is of this request. places, matches int64[CANDIDATES]: of the context's ``count`` occurrences
    in the text, in any order.
    """
    candidates = tl.arange(0, CANDIDATES)
    best = tl.max(tl.where(candidates < count, (matches << 32) | places, 0))
    went_on = tl.load(last_ptr + _PLACE).to(tl.int64)
    at = tl.load(last_ptr + _AT).to(tl.int64)
    match = tl.load(last_ptr + _MATCH).to(tl.int64)
    behind = known - at
    is_long = (best >> 32) >= LONG_MATCH
    is_edit = is_known & (went_on > 0) & (behind <= EDIT_TOKENS) & (best >> 32 < LONG_MATCH)
    iota = tl.arange(0, SHIFTS_2)
    tried = went_on + behind + (iota + 1) // 2 * tl.where(iota % 2 == 1, 1, -1)
    last = tl.load(own_ptr + known - 1)
    inside = is_edit & (iota <= 2 * SHIFT) & (tried >= 1) & (tried < end)
    is_place = inside & (tl.load(text_ptr + STRIDE * (tried - 1), mask=inside, other=-3) == last)
    first = tl.min(tl.where(is_place, iota, SHIFTS_2))
    place = tl.sum(tl.where(is_place & (iota == first), tried, 0))
    has_two = (place > 1) & (known > 1)
    before = tl.load(own_ptr + known - 2, mask=has_two, other=-2)
    is_sure = has_two & (tl.load(text_ptr + STRIDE * (place - 2), mask=has_two, other=-3) == before)
    doubts = tl.where(is_sure, 0, 1 + (first + 3) // 4)
    # What the last request of this slot has left is no match of this one.
    went_on = tl.where(is_long, best & 0xFFFFFFFF, tl.where(is_known, went_on, 0))
    tl.store(last_ptr + _PLACE, went_on.to(tl.int32))
    tl.store(last_ptr + _AT, tl.where(is_long, known, at).to(tl.int32))
    tl.store(last_ptr + _MATCH, tl.where(is_long, best >> 32, match).to(tl.int32))
    return place, doubts, match


@triton.jit
def _draft_on(
    text_ptr, end, place, doubts, room, chance_ptr, odds_ptr, before, min_prob,
    STRIDE: tl.constexpr, MOST_MATCH: tl.constexpr, CANDIDATES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The text from ``place`` on; what ``kernel._voted`` gives."""
    columns = tl.arange(0, WIDTH)
    inside = columns < tl.minimum(room, end - place)
    tokens = tl.load(text_ptr + STRIDE * (place + columns), mask=inside, other=_SEPARATOR)
    size = tl.min(tl.where(tokens == _SEPARATOR, columns, WIDTH))
    matched = tl.minimum(columns + 1, MOST_MATCH)
    entries = matched * ((CANDIDATES + 1) * (CANDIDATES + 1)) + doubts
    probs = tl.zeros([WIDTH], tl.float32)
    prob = tl.full((), 1.0, tl.float64)
    score = tl.full((), 0.0, tl.float64)
    j, seen = 0, 0
    is_open = size > 0
    while is_open:
        entry = tl.sum(tl.where(columns == j, entries, 0))
        token = tl.sum(tl.where(columns == j, tokens, 0))
        prob = prob * chance_of(chance_ptr, odds_ptr, entry, token, before)
        before = token
        seen = j + 1
        if prob < min_prob:
            is_open = False
        else:
            probs = tl.where(columns == j, prob.to(tl.float32), probs)
            score += prob
            j += 1
            is_open = j < size
    return tokens, entries.to(tl.int32), probs, score, j, seen


@triton.jit
def behind_an_edit(
    last_ptr, is_known, text_ptr, end, own_ptr, known, places, matches, count, chance_ptr, odds_ptr, budget,
    factor, offset, min_prob, best_tokens, best_entries, best_probs, best_length, best_seen, best_match,
    best_source, beat, source, STRIDE: tl.constexpr, LONG_MATCH: tl.constexpr, EDIT_TOKENS: tl.constexpr,
    SHIFT: tl.constexpr, SHIFTS_2: tl.constexpr, MOST_MATCH: tl.constexpr, CANDIDATES: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """As ``kernel._best_draft``, with what goes on behind an edit."""
    place, doubts, match = _resume_place(
        last_ptr, is_known, text_ptr, end, own_ptr, known, places, matches, count, STRIDE, LONG_MATCH,
        EDIT_TOKENS, SHIFT, SHIFTS_2, CANDIDATES,
    )  # fmt: skip
    if place > 0:
        tokens, entries, probs, score, j, seen = _draft_on(
            text_ptr, end, place, doubts, room_of(match, budget, factor, offset), chance_ptr, odds_ptr,
            tl.load(own_ptr + known - 1), min_prob,
            STRIDE, MOST_MATCH, CANDIDATES, WIDTH,
        )  # fmt: skip
        if (j > 0) & (score > beat):
            beat, best_length, best_match = score, j, match
            best_source, best_seen = source, seen
            best_tokens, best_entries, best_probs = tokens, entries, probs
    return best_tokens, best_entries, best_probs, best_length, best_seen, best_match, best_source, beat
