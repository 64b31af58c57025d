"""What became of drafts, counted where they are made: ``specctl.draft.lessons`` on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.suffix_draft.token_odds import note

__all__ = ["LESSON_HEAD", "LONG_IN_CORPUS", "LONG_IN_OWN", "learn", "remember"]

# Words of a lesson: the position behind which was drafted, tokens, source (0 own text, 1 corpus), the
# request's prefill, the token before; its last long match in its own text and in the corpus (``resume``);
# then the draft's tokens and their entries in the table.
_AT: tl.constexpr = tl.constexpr(0)
_SIZE: tl.constexpr = tl.constexpr(1)
_SOURCE: tl.constexpr = tl.constexpr(2)
_PREFILL: tl.constexpr = tl.constexpr(3)
_BEFORE: tl.constexpr = tl.constexpr(4)
LONG_IN_OWN: tl.constexpr = tl.constexpr(5)
LONG_IN_CORPUS: tl.constexpr = tl.constexpr(8)
LESSON_HEAD: tl.constexpr = tl.constexpr(11)


@triton.jit
def learn(
    lesson_ptr, own_ptr, known, prefill, chances_ptr, chances_stride, odds_ptr, counted_ptr, of_tokens_ptr,
    ENTRIES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compare the draft that waits with the request's text: ``lessons.learn``. Whether the lesson is of this
    request.

    A lesson of the slot's last request is none of this one: its prefill or its text is another.
    """
    at, size = tl.load(lesson_ptr + _AT).to(tl.int64), tl.load(lesson_ptr + _SIZE).to(tl.int64)
    before = tl.load(own_ptr + tl.maximum(at - 1, 0))
    is_own = (at > prefill) & (at <= known) & (tl.load(lesson_ptr + _PREFILL) == prefill)
    is_own = is_own & (before == tl.load(lesson_ptr + _BEFORE))
    size = tl.where(is_own, tl.minimum(size, known - at), 0)
    columns = tl.arange(0, WIDTH)
    inside = columns < size
    drafted = tl.load(lesson_ptr + LESSON_HEAD + columns, mask=inside, other=0)
    entries = tl.load(lesson_ptr + LESSON_HEAD + WIDTH + columns, mask=inside, other=0)
    came = tl.load(own_ptr + at + columns, mask=inside, other=0)
    wrong = tl.min(tl.where(inside & (drafted == came), WIDTH, columns))
    is_known, came_true = inside & (columns <= wrong), columns < wrong
    source = tl.load(lesson_ptr + _SOURCE)
    place = counted_ptr + 2 * (source * ENTRIES + entries)
    tl.atomic_add(place, 1, mask=is_known)
    tl.atomic_add(place + 1, 1, mask=is_known & came_true)
    follows = tl.load(own_ptr + at + columns - 1, mask=inside, other=0)
    note(
        chances_ptr + source * chances_stride, odds_ptr, entries, drafted, follows, is_known, came_true,
        of_tokens_ptr,
    )  # fmt: skip
    tl.store(lesson_ptr + _SIZE, 0)
    return is_own


@triton.jit
def remember(lesson_ptr, own_ptr, known, prefill, source, tokens, entries, size, WIDTH: tl.constexpr):
    """The draft waits: ``lessons.remember``. ``known``: tokens of the request, over 0; ``source``: as in
    heads."""
    columns = tl.arange(0, WIDTH)
    tl.store(lesson_ptr + _AT, known.to(tl.int32))
    tl.store(lesson_ptr + _SIZE, size)
    tl.store(lesson_ptr + _SOURCE, tl.where((source == 1) | (source == 4), 0, 1))
    tl.store(lesson_ptr + _PREFILL, prefill)
    tl.store(lesson_ptr + _BEFORE, tl.load(own_ptr + known - 1))
    tl.store(lesson_ptr + LESSON_HEAD + columns, tokens, mask=columns < size)
    tl.store(lesson_ptr + LESSON_HEAD + WIDTH + columns, entries, mask=columns < size)
