"""What became of drafts: counted by traffic class, source, match and votes, for ``calibration`` to correct.

A request's last draft waits in its lesson until the next proposal for it. By then its text has gone on, and
shows which drafted tokens came true, whether they were verified or not. A draft that ended because its next
token was too improbable counts with that token, so that a probability that is too low is found out, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.draft.calibration import ENTRIES
from specctl.draft.chains import KNOWN, token_at
from specctl.draft.token_odds import PLACES, note

__all__ = [
    "AT",
    "CLASS",
    "CLASSES",
    "ENTRY_WORDS",
    "LESSON_WORDS",
    "LONG_MATCHES",
    "LONG_MATCH_WORDS",
    "OUTCOME_WORDS",
    "SOURCE",
    "learn",
    "new_lesson",
    "remember",
]

CLASSES = 8
"""Traffic classes with a table of their own, the first of them for all others."""
TOKENS_MOST = 32
"""Tokens of a draft from which something is learnt."""
CLASS, AT, SIZE, SOURCE, LONG_MATCHES = range(5)
LONG_MATCH_WORDS = 3
FIRST = LONG_MATCHES + 3 * LONG_MATCH_WORDS
LESSON_WORDS = FIRST + 2 * TOKENS_MOST
"""int64, of a request: class, position behind which it was drafted, tokens, 0 = own text or 1 = corpus; its
last long match in its own text, in the live and in the frozen corpus (``resume``); then the draft's tokens
and their entries in ``calibration.chances``."""
ENTRY_WORDS = CLASSES * 2 * ENTRIES * 2
"""Drafted and accepted, of each entry of each row of the tables."""
OUTCOME_WORDS = ENTRY_WORDS + 3 * PLACES
"""Behind them what ``token_odds.note`` counts."""


def new_lesson(row: int) -> npt.NDArray[np.int64]:
    """int64[LESSON_WORDS] of a request of the class in this row, without a draft."""
    lesson = np.zeros(LESSON_WORDS, np.int64)
    lesson[CLASS] = row
    return lesson


@njit(cache=True, nogil=True)
def learn(lesson, arena, own, table, outcomes):
    """Compare the draft that waits with the request's text; table as in ``token_odds.chance_of``, of the
    class and the draft's source; outcomes int32[OUTCOME_WORDS]."""
    at = lesson[AT]
    size = min(lesson[SIZE], own[KNOWN] - at)
    first = (2 * lesson[CLASS] + lesson[SOURCE]) * ENTRIES
    lesson[SIZE] = 0
    of_tokens = outcomes[ENTRY_WORDS:]
    for j in range(size):
        entry, token = lesson[FIRST + TOKENS_MOST + j], np.uint32(lesson[FIRST + j])
        before = token_at(arena, own, at + j - 1)
        came_true = token_at(arena, own, at + j) == token
        place = 2 * (first + entry)
        outcomes[place] += 1
        outcomes[place + 1] += came_true
        note(table, entry, token, before, came_true, of_tokens)
        if not came_true:
            return


@njit(cache=True, nogil=True)
def remember(lesson, tokens, entries, size):
    """The best draft so far, with int32 entries, waits."""
    size = min(size, TOKENS_MOST)
    lesson[SIZE] = size
    for j in range(size):
        lesson[FIRST + j], lesson[FIRST + TOKENS_MOST + j] = tokens[j], entries[j]
