"""From a context to a draft, over the chains of a text: gather occurrences, vote token by token.

The rule, per request and per source (its own tokens; the live corpus of its namespace; a frozen corpus):

1. Occurrences of the context are sampled rung by rung, the longest rung first: from the n-gram's latest
   occurrence along its chain (see ``chains``), at most VISITS of a rung, until one matches less than the
   rung. CANDIDATES are kept in all: those that have a next token, each compared backwards to its true match,
   up to max_match_tokens. After a rung that brings them to ENOUGH no shorter one is looked at. In its own
   tokens the context itself is the last occurrence, and one walk along its chain is all.
2. They are ordered by match, then by recency. Every match m that occurs defines a set: the occurrences that
   match at least m tokens. Each set drafts the token that most of its occurrences continue with (ties: the
   first in the order), and those that agree go on. The token's probability, given the ones before it, comes
   from ``calibration`` by the match m + j at depth j, its votes and the voters. A draft ends where the
   product, the expected gain of one more token, falls below the least that the caller asks for, or at
   min(budget, floor(max_spec_factor * m + max_spec_offset)).
3. The set with the highest sum of probabilities, the expected accepted tokens, wins; ties go to the longer
   match, then to the earlier source.

Suffix decoding's score (Oliaro et al., arXiv 2411.04975, section 3) with calibrated probabilities.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from specctl.draft.calibration import MOST_MATCH
from specctl.draft.chains import BASE, CAP, HEAD, KNOWN, SEPARATOR, TAIL, find, index_of, stack_hashes

__all__ = [
    "BLOCK_TOKENS",
    "CANDIDATES",
    "COUNTERS",
    "ENOUGH",
    "SOURCE_FROZEN",
    "SOURCE_GLOBAL",
    "SOURCE_NONE",
    "SOURCE_REQUEST",
    "VISITS",
    "gather",
    "limits_of",
    "next_token",
    "order",
    "propose_rows",
]

CANDIDATES = 8
VISITS = 12
ENOUGH = 4
BLOCK_TOKENS = 64
"""Hits of a corpus are counted by blocks of this many tokens."""
SOURCE_NONE, SOURCE_REQUEST, SOURCE_GLOBAL, SOURCE_FROZEN = range(4)
_SOURCES = ("request", "global", "frozen")
COUNTERS = (
    "proposals",
    "match_tokens",
    *(f"hits_{s}" for s in _SOURCES),
    *(f"drafted_{s}" for s in _SOURCES),
)

_SEPARATOR = np.uint32(SEPARATOR)


@njit(cache=True, nogil=True)
def _match_tokens(mem, row, pos, arena, own, most):
    """How many tokens that end at pos equal the request's last ones, at most ``most``."""
    most = min(most, pos - row[TAIL] + 1, own[KNOWN])
    at = index_of(row, pos)
    base = row[BASE]
    end = own[BASE] + own[KNOWN] - 1
    for j in range(most):
        if mem[base + at] != arena[end - j]:
            return j
        at -= 1
        if at < 0:
            at += row[CAP]
    return most


@njit(cache=True, nogil=True)
def next_token(mem, row, pos):
    """The token at pos, SEPARATOR where the text or the document has ended."""
    if pos >= row[KNOWN]:
        return _SEPARATOR
    return mem[row[BASE] + index_of(row, pos)]


@njit(cache=True, nogil=True)
def _older(mem, row, pos):
    """The occurrence that ``pos`` links to, -1 where there is none alive."""
    distance = np.int64(mem[row[BASE] + row[CAP] + index_of(row, pos)])
    if distance == 0 or pos - distance < row[TAIL]:
        return np.int64(-1)
    return pos - distance


@njit(cache=True, nogil=True)
def _latest(mem, row, rungs, rung, h, arena, own, last):
    """The latest occurrence of the context's n-gram, -1 where there is none."""
    idx = find(mem, row, rungs, rung, h, arena, own, last)[1]
    if idx < 0:
        return np.int64(-1)
    newest = row[HEAD] - 1
    behind = index_of(row, newest) - idx
    return newest - (behind if behind >= 0 else behind + row[CAP])


@njit(cache=True, nogil=True)
def gather(mem, row, rungs, arena, own, is_own, limits, places, matches):
    """Step 1. Fills places (position of the next token) and matches; returns how many."""
    least, most = limits[0], limits[1]
    visits, enough = limits[4], limits[5]
    last = own[KNOWN] - 1
    # The context itself is the last thing indexed: its link is where its own text goes on.
    is_linked = is_own and own[HEAD] == own[KNOWN]
    hashes = np.empty(rungs.size, np.uint64)
    usable = 1 if is_linked else stack_hashes(arena, own, last, rungs, hashes)
    count = 0
    seen_from = most + 1
    for rung in range(usable - 1, -1, -1):
        if is_linked:
            pos = _older(mem, row, last)
        else:
            pos = _latest(mem, row, rungs, rung, hashes[rung], arena, own, last)
        for _ in range(visits):
            if pos < 0 or count == CANDIDATES:
                break
            match = _match_tokens(mem, row, pos, arena, own, most)
            if match < rungs[rung]:
                break
            is_new = least <= match < seen_from
            if is_new and next_token(mem, row, pos + 1) != _SEPARATOR:
                places[count] = pos + 1
                matches[count] = match
                count += 1
            pos = _older(mem, row, pos)
        if count >= enough:
            break
        seen_from = rungs[rung]
    return count


@njit(cache=True, nogil=True)
def order(places, matches, count):
    """Step 2's order, by insertion: longest match first, then the most recent."""
    for i in range(1, count):
        place, match = places[i], matches[i]
        j = i - 1
        while j >= 0 and (matches[j] < match or (matches[j] == match and places[j] < place)):
            places[j + 1], matches[j + 1] = places[j], matches[j]
            j -= 1
        places[j + 1], matches[j + 1] = place, match


@njit(cache=True, nogil=True)
def _vote(mem, row, places, size, tokens, votes):
    """Drops voters that have ended; (voters left, winning token, its votes). Ties: who came first."""
    alive = 0
    distinct = 0
    for i in range(size):
        token = next_token(mem, row, places[i])
        if token == _SEPARATOR:
            continue
        places[alive] = places[i]
        alive += 1
        at = 0
        while at < distinct and tokens[at] != token:
            at += 1
        if at == distinct:
            tokens[at] = token
            votes[at] = 0
            distinct += 1
        votes[at] += 1
    best = 0
    for at in range(1, distinct):
        if votes[at] > votes[best]:
            best = at
    return alive, tokens[best], votes[best] if distinct else 0


@njit(cache=True, nogil=True)
def _draft(mem, row, places, size, match, budget, chance, min_prob, beat, scratch, out, probs):
    """One set's draft; (length, score), a score of 0 once it cannot be above beat. Consumes places."""
    tokens, votes = scratch
    prob = 1.0
    score = 0.0
    for j in range(budget):
        voters, token, won = _vote(mem, row, places, size, tokens, votes)
        if voters == 0:
            return j, score
        prob *= chance[min(match + j, MOST_MATCH), won, voters]
        if prob < min_prob:
            return j, score
        if score + prob * (budget - j) <= beat:
            return 0, 0.0
        out[j] = np.int32(token)
        probs[j] = prob
        score += prob
        size = 0
        for i in range(voters):
            if next_token(mem, row, places[i]) == token:
                places[size] = places[i] + 1
                size += 1
    return budget, score


@njit(cache=True, nogil=True)
def _copy(source, target, size):
    """A loop: numba takes seconds to compile the assignment of a slice."""
    for i in range(size):
        target[i] = source[i]


@njit(cache=True, nogil=True)
def _best_of_source(
    mem, row, rungs, arena, own, is_own, limits, chance, budget, min_prob, scratch, out, probs, beat
):
    """Steps 1 to 3 for one source: (length, match, score, position of the first occurrence).

    Writes out and probs only when the score is above ``beat``.
    """
    places, matches, voters, drafted, path, tokens, votes = scratch
    count = gather(mem, row, rungs, arena, own, is_own, limits, places, matches)
    order(places, matches, count)
    best_length, best_match = 0, 0
    for size in range(1, count + 1):
        match = matches[size - 1]
        if size < count and matches[size] == match:
            continue
        room = min(budget, np.int64(limits[2] * match + limits[3] + 1e-6))
        if room <= beat:
            continue
        _copy(places, voters, size)
        length, score = _draft(
            mem, row, voters, size, match, room, chance, min_prob, beat, (tokens, votes), drafted, path
        )
        if length > 0 and score > beat:
            beat, best_length, best_match = score, length, match
            _copy(drafted, out, length)
            _copy(path, probs, length)
    return best_length, best_match, beat, places[0] if count else np.int64(0)


@njit(cache=True, nogil=True)
def _are_legal(rows, slots, budgets, min_probs):
    for i in range(slots.size):
        if not 0.0 <= min_probs[i] <= 1.0:
            return False
        if not 0 <= slots[i] < rows.shape[0] or rows[slots[i], CAP] == 0 or budgets[i] < 0:
            return False
    return True


@njit(cache=True, nogil=True)
def _best_of_all(requests, live, frozen, slot, limits, chances, budget, min_prob, scratch, out, probs):
    """The rule for one request; (length, match, source)."""
    arena, rows, own_rungs = requests
    mem, corpus_rows, hits, rungs, spaces = live
    frozen_mem, frozen_row, reads_frozen = frozen
    own = rows[slot]
    chance = chances[0]
    length, match, score, _ = _best_of_source(
        arena, own, own_rungs, arena, own, True, limits, chance, budget, min_prob, scratch, out, probs, 0.0
    )
    source = SOURCE_REQUEST if length else SOURCE_NONE
    space = spaces[slot]
    if space >= 0 and corpus_rows[space, HEAD] > 0:
        row = corpus_rows[space]
        drafted, drafted_match, score, place = _best_of_source(
            mem,
            row,
            rungs,
            arena,
            own,
            False,
            limits,
            chances[1],
            budget,
            min_prob,
            scratch,
            out,
            probs,
            score,
        )
        if drafted:
            length, match, source = drafted, drafted_match, SOURCE_GLOBAL
            at = index_of(row, place) // BLOCK_TOKENS
            hits[space, at] = min(hits[space, at] + 1, 255)
    if reads_frozen[slot] and frozen_row[HEAD] > 0:
        drafted, drafted_match, score, _ = _best_of_source(
            frozen_mem, frozen_row, rungs, arena, own, False, limits, chances[1], budget, min_prob, scratch,
            out, probs, score,
        )  # fmt: skip
        if drafted:
            length, match, source = drafted, drafted_match, SOURCE_FROZEN
    for j in range(length, out.size):
        out[j] = 0
        probs[j] = 0
    return length, match, source


@njit(cache=True, nogil=True)
def limits_of(settings):
    """Settings as numbers of their kinds: counts are integers."""
    return (
        np.int64(settings[0]), np.int64(settings[1]), settings[2], settings[3], np.int64(settings[4]),
        np.int64(settings[5]),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def propose_rows(
    arena,  # uint32[...] texts of the requests
    rows,  # int64[max_requests, ROW_WORDS]
    corpora,  # uint32[...]
    corpus_rows,  # int64[namespaces, ROW_WORDS]
    hits,  # uint8[namespaces, blocks] added to
    spaces,  # int32[max_requests] namespace of a slot, -1: no corpus
    frozen_mem,  # uint32[...] corpus from a file, not writable
    frozen_row,  # int64[ROW_WORDS]
    reads_frozen,  # bool[max_requests] whether a slot is of its namespace
    rungs,  # int64[R] ascending, of every text
    settings,  # float64[6]: least and most match, spec factor and offset, visits, enough
    chances,  # float32[2, match, votes, voters] of calibration
    slots,  # int32[n]
    budgets,  # int32[n]
    min_probs,  # float64[n]
    first,  # rows first to last - 1 are done
    last,
    tokens,  # int32[n, max_budget] out
    probs,  # float32[n, max_budget] out
    heads,  # int32[3, n] out: lengths, match tokens, source
    counters,  # int64[len(COUNTERS)] added to
):
    """A draft for every row. False, and nothing written, if a slot is free, a budget below 0 or a least
    probability outside 0 to 1.

    Flat arguments: numba takes microseconds to look at a tuple of arrays.
    """
    if not _are_legal(rows, slots, budgets, min_probs):
        return False
    requests = arena, rows, rungs
    live = corpora, corpus_rows, hits, rungs, spaces
    frozen = frozen_mem, frozen_row, reads_frozen
    limits = limits_of(settings)
    width = tokens.shape[1]
    scratch = (
        np.empty(CANDIDATES, np.int64), np.empty(CANDIDATES, np.int64), np.empty(CANDIDATES, np.int64),
        np.empty(width, np.int32), np.empty(width, np.float32),
        np.empty(CANDIDATES, np.uint32), np.empty(CANDIDATES, np.int64),
    )  # fmt: skip
    for i in range(first, last):
        budget = np.int64(budgets[i])
        heads[0, i], heads[1, i], heads[2, i] = 0, 0, 0
        if budget == 0 or rows[slots[i], KNOWN] == 0:
            for j in range(width):
                tokens[i, j] = 0
                probs[i, j] = 0
            continue
        length, match, source = _best_of_all(
            requests, live, frozen, slots[i], limits, chances, budget, min_probs[i], scratch, tokens[i],
            probs[i],
        )  # fmt: skip
        heads[0, i], heads[1, i], heads[2, i] = length, match, source
        counters[0] += 1
        if length:
            counters[1] += match
            counters[1 + source] += 1
            counters[4 + source] += length
    return True
