"""A draft that goes on behind an edit: text that is copied with changes.

Where a match in the request's own text is broken by a token, what follows the match is still likely to follow
here, at the same distance or a few tokens off: a name was replaced, a line was added. The context right after
such an edit is short, so that its other occurrences say little, or are none at all.

The last match of at least LONG_MATCH tokens is remembered with the place where it went on. Up to EDIT_TOKENS
tokens later, while no long match is found, the text at that distance, or up to SHIFT tokens before or behind
it, is drafted from where its token before is the request's last one; the nearest shift first. Doubts say how
sure that is: 0 where two tokens before it agree, else 1 without a shift, 2 to 3 with one of 1 to SHIFT.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from specctl.draft.calibration import entry_of
from specctl.draft.chains import BASE, KNOWN
from specctl.draft.lessons import RESUME_AT, RESUME_MATCH, RESUME_PLACE

__all__ = ["EDIT_TOKENS", "LONG_MATCH", "SHIFT", "draft_on", "resume_place"]

LONG_MATCH = 6
EDIT_TOKENS = 16
SHIFT = 4


@njit(cache=True, nogil=True)
def resume_place(lesson, arena, own, places, matches, count):
    """(where the request's own text goes on behind an edit, its doubts); -1 where nothing says so.

    places, matches: of the context's ``count`` occurrences there, the longest match first; a long one is
    remembered.
    """
    known = own[KNOWN]
    if count > 0 and matches[0] >= LONG_MATCH:
        lesson[RESUME_PLACE], lesson[RESUME_AT], lesson[RESUME_MATCH] = places[0], known, matches[0]
        return np.int64(-1), 0
    behind = known - lesson[RESUME_AT]
    if lesson[RESUME_PLACE] == 0 or behind > EDIT_TOKENS:
        return np.int64(-1), 0
    aligned = np.int64(lesson[RESUME_PLACE]) + behind
    end = own[BASE] + 2 * (known - 1)
    for i in range(2 * SHIFT + 1):
        place = aligned + (i + 1) // 2 * (1 if i % 2 else -1)
        if 1 <= place < known and arena[own[BASE] + 2 * (place - 1)] == arena[end]:
            if place > 1 and arena[own[BASE] + 2 * (place - 2)] == arena[end - 2]:
                return place, 0
            return place, 1 + (i + 3) // 4
    return np.int64(-1), 0


@njit(cache=True, nogil=True)
def draft_on(arena, own, place, doubts, budget, chance, min_prob, out, probs, entries):
    """The own text from ``place`` on: (length, score, entries looked at), as a draft of occurrences."""
    prob = 1.0
    score = 0.0
    size = min(budget, own[KNOWN] - place)
    for j in range(size):
        entry = entry_of(j + 1, 0, doubts)
        prob *= chance[entry]
        out[j] = np.int32(arena[own[BASE] + 2 * (place + j)])
        entries[j] = np.int32(entry)
        if prob < min_prob:
            return j, score, j + 1
        probs[j] = prob
        score += prob
    return size, score, size
