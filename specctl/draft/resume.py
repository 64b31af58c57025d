"""A draft that goes on behind an edit: text that is copied with changes.

Where a match is broken by a token, what follows the match is still likely to follow here, at the same
distance or a few tokens off: a name was replaced, a line was added. The context right after such an edit is
short, so that its other occurrences say little, or are none at all.

Of each source the last match of at least LONG_MATCH tokens is remembered: where it went on, how many tokens
the request had then, and its length. Up to EDIT_TOKENS tokens later, while no long match is found, the text
at that distance, or up to SHIFT tokens before or behind it, is drafted from where its token before is the
request's last one; the nearest shift first. Doubts say how sure that is: 0 where two tokens before it agree,
else 1 without a shift, 2 to 3 with one of 1 to SHIFT. A corpus that is exchanged meanwhile costs a wrong
draft.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from specctl.draft.calibration import entry_of
from specctl.draft.chains import BASE, KNOWN, SEPARATOR, TAIL, token_at
from specctl.draft.token_odds import chance_of

__all__ = ["EDIT_TOKENS", "LONG_MATCH", "SHIFT", "draft_on", "resume_place"]

LONG_MATCH = 6
EDIT_TOKENS = 12
SHIFT = 4
PLACE, AT, MATCH = range(3)

_SEPARATOR = np.uint32(SEPARATOR)


@njit(cache=True, nogil=True)
def resume_place(last, mem, row, arena, own, places, matches, count):
    """(where a text goes on behind an edit, its doubts); -1 where nothing says so.

    last int64[LONG_MATCH_WORDS] of this text; mem and row are the text, arena and own the request's tokens.
    places, matches: of the context's ``count`` occurrences in the text, the longest match first; a long one
    is remembered.
    """
    known = own[KNOWN]
    if count > 0 and matches[0] >= LONG_MATCH:
        last[PLACE], last[AT], last[MATCH] = places[0], known, matches[0]
        return np.int64(-1), 0
    behind = known - last[AT]
    if last[PLACE] == 0 or behind > EDIT_TOKENS:
        return np.int64(-1), 0
    aligned = last[PLACE] + behind
    end = own[BASE] + 2 * (known - 1)
    for i in range(2 * SHIFT + 1):
        place = aligned + (i + 1) // 2 * (1 if i % 2 else -1)
        if row[TAIL] < place < row[KNOWN] and token_at(mem, row, place - 1) == arena[end]:
            has_two = place - 1 > row[TAIL] and known > 1
            if has_two and token_at(mem, row, place - 2) == arena[end - 2]:
                return place, 0
            return place, 1 + (i + 3) // 4
    return np.int64(-1), 0


@njit(cache=True, nogil=True)
def draft_on(mem, row, place, doubts, budget, table, before, min_prob, out, probs, entries):
    """The text from ``place`` on: (length, score, entries looked at), as a draft of occurrences."""
    prob = 1.0
    score = 0.0
    size = min(budget, row[KNOWN] - place)
    for j in range(size):
        token = token_at(mem, row, place + j)
        if token == _SEPARATOR:
            return j, score, j
        entry = entry_of(j + 1, 0, doubts)
        prob *= chance_of(table, entry, token, before)
        before = token
        out[j] = np.int32(token)
        entries[j] = np.int32(entry)
        if prob < min_prob:
            return j, score, j + 1
        probs[j] = prob
        score += prob
    return size, score, size
