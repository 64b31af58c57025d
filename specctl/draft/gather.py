"""Where else a context occurs: its occurrences in one text, sampled along the chains of ``chains``.

They are sampled rung by rung, the longest rung first: from the n-gram's latest occurrence along its chain, at
most VISITS of a rung, until one matches less than the rung. CANDIDATES are kept in all: those that have a
next token, each compared backwards to its true match, up to max_match_tokens. After a rung that brings them
to ENOUGH no shorter one is looked at. In its own tokens the context itself is the last occurrence, and one
walk of OWN_VISITS along its chain is all: there, what is recent counts.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from specctl.draft.chains import BASE, CAP, HEAD, KNOWN, SEPARATOR, TAIL, find, index_of, token_at
from specctl.draft.memory import prefetch

__all__ = [
    "CANDIDATES",
    "ENOUGH",
    "OWN_VISITS",
    "VISITS",
    "gather",
    "limits_of",
    "order",
    "read_on",
    "room_of",
]

CANDIDATES = 8
VISITS = 6
OWN_VISITS = 2
ENOUGH = 3

_SEPARATOR = np.uint32(SEPARATOR)


@njit(cache=True, nogil=True)
def limits_of(settings):
    """Settings as numbers of their kinds: least and most match, spec factor and offset, visits, enough."""
    return (
        np.int64(settings[0]), np.int64(settings[1]), settings[2], settings[3], np.int64(settings[4]),
        np.int64(settings[5]),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def room_of(limits, match, budget):
    """The most tokens that a match of this length may draft."""
    return min(budget, np.int64(limits[2] * match + limits[3] + 1e-6))


@njit(cache=True, nogil=True)
def _match_tokens(mem, row, pos, arena, own, most):
    """How many tokens that end at pos equal the request's last ones, at most ``most``."""
    most = min(most, pos - row[TAIL] + 1, own[KNOWN])
    base = row[BASE]
    first, after = base, base + 2 * row[CAP]
    at = base + 2 * index_of(row, pos)
    end = own[BASE] + 2 * (own[KNOWN] - 1)
    for j in range(most):
        if mem[at] != arena[end - 2 * j]:
            return j
        at -= 2
        if at < first:
            at = after - 2
    return most


@njit(cache=True, nogil=True)
def _older(mem, row, pos):
    """The occurrence that ``pos`` links to, -1 where there is none alive."""
    distance = np.int64(mem[row[BASE] + 2 * index_of(row, pos) + 1])
    older = pos - distance
    if distance == 0 or older < row[TAIL]:
        return np.int64(-1)
    prefetch(mem, row[BASE] + 2 * index_of(row, older))
    return older


@njit(cache=True, nogil=True)
def _latest(mem, row, rungs, rung, h, arena, own):
    """The latest occurrence of the context's n-gram, -1 where there is none."""
    idx = find(mem, row, rungs, rung, h, arena, own, own[KNOWN] - 1)[1]
    if idx < 0:
        return np.int64(-1)
    newest = row[HEAD] - 1
    behind = index_of(row, newest) - idx
    return newest - (behind if behind >= 0 else behind + row[CAP])


@njit(cache=True, nogil=True)
def _goes_on(mem, row, pos):
    """Whether a token of the same document stands at pos."""
    return pos < row[KNOWN] and token_at(mem, row, pos) != _SEPARATOR


@njit(cache=True, nogil=True)
def gather(mem, row, rungs, hashes, usable, arena, own, is_own, limits, places, matches):
    """Fills places (position of the next token) and matches, both int64[CANDIDATES]; returns how many.

    mem and row are the text that is searched; arena and own hold the context, the last tokens of a request.
    hashes[:usable] are those of its n-grams.
    """
    least, most = limits[0], limits[1]
    last = own[KNOWN] - 1
    # The context itself is the last thing indexed: its link is where its own text goes on.
    is_linked = is_own and own[HEAD] == own[KNOWN]
    visits = OWN_VISITS if is_own else limits[4]
    count = 0
    seen_from = most + 1
    for rung in range(0 if is_linked else usable - 1, -1, -1):
        if is_linked:
            pos = _older(mem, row, last)
        else:
            pos = _latest(mem, row, rungs, rung, hashes[rung], arena, own)
        for _ in range(visits):
            if pos < 0 or count == CANDIDATES:
                break
            # Ahead of the match, so that its cell arrives meanwhile.
            older = _older(mem, row, pos)
            match = _match_tokens(mem, row, pos, arena, own, most)
            if match < rungs[rung]:
                break
            if least <= match < seen_from and _goes_on(mem, row, pos + 1):
                places[count] = pos + 1
                matches[count] = match
                count += 1
            pos = older
        if count >= limits[5]:
            break
        seen_from = rungs[rung]
    return count


@njit(cache=True, nogil=True)
def order(places, matches, count):
    """Longest match first, then the most recent; by insertion."""
    for i in range(1, count):
        place, match = places[i], matches[i]
        j = i - 1
        while j >= 0 and (matches[j] < match or (matches[j] == match and places[j] < place)):
            places[j + 1], matches[j + 1] = places[j], matches[j]
            j -= 1
        places[j + 1], matches[j + 1] = place, match


@njit(cache=True, nogil=True)
def read_on(mem, row, places, matches, count, limits, budget, after, ends):
    """after[j, i] is the j-th token from places[i] on, for j < ends[i]; no more than its match may draft."""
    for i in range(count):
        at = index_of(row, places[i])
        j = 0
        most = min(room_of(limits, matches[i], budget), row[KNOWN] - places[i])
        while j < most:
            token = mem[row[BASE] + 2 * at]
            if token == _SEPARATOR:
                break
            after[j, i] = np.int64(token)
            j += 1
            at += 1
            if at == row[CAP]:
                at = 0
        ends[i] = j
