"""From a context to a draft: gather its occurrences in each source, vote token by token, keep the best.

The rule, per request and per source (its own tokens; the live corpus of its namespace; a frozen corpus):

1. Occurrences of the context are sampled as ``gather`` says, and ordered by match, then by recency.
2. Every match m that occurs defines a set: the occurrences that match at least m tokens. Each set drafts the
   token that most of its occurrences continue with (ties: the first in the order), and those that agree go
   on. The token's probability, given the ones before it, comes from ``calibration`` by the match m + j at
   depth j, its votes and the voters, and from ``token_odds`` by what it is. A draft ends where the product,
   the expected gain of one more token, falls below the least that the caller asks for, or at
   min(budget, floor(max_spec_factor * m + max_spec_offset)).
3. Behind an edit the source goes on as ``resume`` says: one more draft, of no voters.
4. The draft with the highest sum of probabilities, the expected accepted tokens, wins; ties go to the longer
   match, then to the earlier source.

Suffix decoding's score (Oliaro et al., arXiv 2411.04975, section 3) with calibrated probabilities.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from specctl.draft.calibration import entry_of
from specctl.draft.chains import (
    CAP,
    HEAD,
    KNOWN,
    fetch_buckets,
    fetch_cells,
    fetch_ends,
    index_of,
    stack_hashes,
    token_at,
)
from specctl.draft.gather import gather, limits_of, order, read_on, room_of
from specctl.draft.lessons import AT, CLASS, LONG_MATCH_WORDS, LONG_MATCHES, SOURCE, learn, remember
from specctl.draft.resume import MATCH, draft_on, resume_place
from specctl.draft.status import REFUSED, RESIZE
from specctl.draft.tables import (
    AHEAD,
    corpora_of,
    have_room,
    lessons_of,
    outputs_of,
    requests_of,
    rule_of,
    scratch_of,
)
from specctl.draft.token_odds import chance_of

__all__ = [
    "BEHIND_AN_EDIT",
    "BLOCK_TOKENS",
    "COUNTERS",
    "SOURCE_FROZEN",
    "SOURCE_GLOBAL",
    "SOURCE_NONE",
    "SOURCE_REQUEST",
    "propose_one",
    "propose_rows",
]

BLOCK_TOKENS = 64
"""Hits of a corpus are counted by blocks of this many tokens."""
SOURCE_NONE, SOURCE_REQUEST, SOURCE_GLOBAL, SOURCE_FROZEN = range(4)
BEHIND_AN_EDIT = 3
"""Added to the source of a draft that goes on behind one."""
_TEXTS = ("request", "global", "frozen")
_SOURCES = (*_TEXTS, *(f"{text}_behind_edits" for text in _TEXTS))
COUNTERS = (
    "proposals",
    "match_tokens",
    *(f"hits_{s}" for s in _SOURCES),
    *(f"drafted_{s}" for s in _SOURCES),
)


@njit(cache=True, nogil=True)
def _vote(heads, kept, voters):
    """(winning token, its votes) among heads[kept[:voters]]. Ties: who came first."""
    best, won = heads[kept[0]], 0
    for a in range(voters):
        token = heads[kept[a]]
        votes = 0
        for b in range(voters):
            if heads[kept[b]] == token:
                if b < a:
                    break
                votes += 1
        if votes > won:
            best, won = token, votes
        if won >= voters - a - 1:
            break
    return best, won


@njit(cache=True, nogil=True)
def _draft(after, ends, size, match, budget, table, before, min_prob, beat, kept, out, probs, entries):
    """The draft of the first ``size`` occurrences: (length, score, entries looked at), 0 once it cannot score
    above beat. The token that ended it as too improbable is the last one looked at."""
    for i in range(size):
        kept[i] = i
    prob = 1.0
    score = 0.0
    for j in range(budget):
        voters = 0
        for a in range(size):
            if ends[kept[a]] > j:
                kept[voters] = kept[a]
                voters += 1
        if voters == 0:
            return j, score, j
        token, won = _vote(after[j], kept, voters)
        entry = entry_of(match + j, won, voters)
        prob *= chance_of(table, entry, token, before)
        before = np.uint32(token)
        out[j], entries[j] = np.int32(token), np.int32(entry)
        if prob < min_prob:
            return j, score, j + 1
        if score + prob * (budget - j) <= beat:
            return 0, 0.0, 0
        probs[j] = prob
        score += prob
        size = 0
        for a in range(voters):
            if after[j, kept[a]] == token:
                kept[size] = kept[a]
                size += 1
    return budget, score, budget


@njit(cache=True, nogil=True)
def _search(text, context, is_own, limits, budget, scratch):
    """Step 1 for one source, read on as far as drafts may go; how many occurrences."""
    mem, row = text
    rungs, hashes, usable, arena, own = context
    numbers = scratch[0]
    places, matches = numbers[0], numbers[1]
    count = gather(mem, row, rungs, hashes, usable, arena, own, is_own, limits, places, matches)
    order(places, matches, count)
    read_on(mem, row, places, matches, count, limits, budget, numbers[4:], numbers[2])
    return count


@njit(cache=True, nogil=True)
def _best_draft(count, limits, table, before, budget, min_prob, scratch, out, probs, lesson, beat):
    """Steps 2 and 4 for what _search has found: (length, match, score).

    Writes out, probs and lesson only when the score is above ``beat``.
    """
    numbers, drafted, path, _, _, entries = scratch
    matches, ends, kept, after = numbers[1], numbers[2], numbers[3], numbers[4:]
    best_length, best_match = 0, 0
    for size in range(1, count + 1):
        match = matches[size - 1]
        if size < count and matches[size] == match:
            continue
        room = room_of(limits, match, budget)
        if room <= beat:
            continue
        length, score, seen = _draft(
            after, ends, size, match, room, table, before, min_prob, beat, kept, drafted, path, entries
        )
        if length > 0 and score > beat:
            beat, best_length, best_match = score, length, match
            for j in range(length):
                out[j], probs[j] = drafted[j], path[j]
            remember(lesson, drafted, entries, seen)
    return best_length, best_match, beat


@njit(cache=True, nogil=True)
def _of_source(source, text, context, limits, table, budget, min_prob, scratch, out, probs, lesson, best):
    """Steps 1 to 4 for one source: the best so far, (length, match, source, score, place of the first
    occurrence of this source in its text, 0 where it is not of this one)."""
    length, match, winner, score = best
    mem, row = text
    arena, own = context[3], context[4]
    before = token_at(arena, own, own[KNOWN] - 1)
    is_own = source == SOURCE_REQUEST
    count = _search(text, context, is_own, limits, budget, scratch)
    drafted, drafted_match, score = _best_draft(
        count, limits, table, before, budget, min_prob, scratch, out, probs, lesson, score
    )
    first = np.int64(0)
    if drafted:
        length, match, winner, first = drafted, drafted_match, source, scratch[0][0, 0]
    at = LONG_MATCHES + LONG_MATCH_WORDS * (source - 1)
    last = lesson[at : at + LONG_MATCH_WORDS]
    place, doubts = resume_place(last, mem, row, arena, own, scratch[0][0], scratch[0][1], count)
    if place > 0:
        _, tokens, path, _, _, entries = scratch
        room = room_of(limits, last[MATCH], budget)
        drafted, gain, seen = draft_on(
            mem, row, place, doubts, room, table, before, min_prob, tokens, path, entries
        )
        if drafted > 0 and gain > score:
            length, match, winner, score, first = drafted, last[MATCH], source + BEHIND_AN_EDIT, gain, place
            for j in range(length):
                out[j], probs[j] = tokens[j], path[j]
            remember(lesson, tokens, entries, seen)
    return (length, match, winner, score), first


@njit(cache=True, nogil=True)
def _checked_width(rows, slots, budgets, min_probs):
    """The largest budget, or REFUSED where an argument is not legal."""
    if budgets.size != slots.size or (min_probs.size > 0 and min_probs.size != slots.size):
        return REFUSED
    width = np.int64(0)
    for i in range(slots.size):
        if min_probs.size > 0 and not 0.0 <= min_probs[i] <= 1.0:
            return REFUSED
        if not 0 <= slots[i] < rows.shape[0] or rows[slots[i], CAP] == 0 or budgets[i] < 0:
            return REFUSED
        if budgets[i] > width:
            width = np.int64(budgets[i])
    return width


@njit(cache=True, nogil=True)
def _fetch_buckets(requests, corpora, slot, hashes):
    """Hash the request's context and bring what its search begins with into the cache; usable hashes."""
    arena, rows, rungs = requests
    live_mem, live_rows, _, spaces, frozen_mem, frozen_row, reads_frozen = corpora
    own = rows[slot]
    if own[KNOWN] == 0:
        return 0
    usable = stack_hashes(arena, own, own[KNOWN] - 1, rungs, hashes)
    if spaces[slot] >= 0:
        fetch_buckets(live_mem, live_rows[spaces[slot]], hashes, usable)
    if reads_frozen[slot]:
        fetch_buckets(frozen_mem, frozen_row, hashes, usable)
    return usable


@njit(cache=True, nogil=True)
def _fetch_cells(corpora, slot, hashes, usable):
    live_mem, live_rows, _, spaces, frozen_mem, frozen_row, reads_frozen = corpora
    if spaces[slot] >= 0:
        fetch_cells(live_mem, live_rows[spaces[slot]], hashes, usable)
    if reads_frozen[slot]:
        fetch_cells(frozen_mem, frozen_row, hashes, usable)


@njit(cache=True, nogil=True)
def _best_of_all(context, slot, corpora, rule, budget, min_prob, scratch, out, probs, lesson):
    """The rule for one request; (length, match, source). Columns after the draft become 0."""
    live_mem, live_rows, hits, spaces, frozen_mem, frozen_row, reads_frozen = corpora
    limits, chances, odds = rule
    of_own = chances[2 * lesson[CLASS]], odds
    of_corpus = chances[2 * lesson[CLASS] + 1], odds
    arena, own = context[3], context[4]
    best = np.int64(0), np.int64(0), np.int64(SOURCE_NONE), 0.0
    best, _ = _of_source(
        SOURCE_REQUEST, (arena, own), context, limits, of_own, budget, min_prob, scratch, out, probs, lesson,
        best,
    )  # fmt: skip
    space = spaces[slot]
    if space >= 0 and live_rows[space, HEAD] > 0:
        text = live_mem, live_rows[space]
        best, first = _of_source(
            SOURCE_GLOBAL, text, context, limits, of_corpus, budget, min_prob, scratch, out, probs, lesson,
            best,
        )  # fmt: skip
        if first > 0:
            at = index_of(live_rows[space], first) // BLOCK_TOKENS
            hits[space, at] = min(hits[space, at] + 1, 255)
    if reads_frozen[slot] and frozen_row[HEAD] > 0:
        text = frozen_mem, frozen_row
        best, _ = _of_source(
            SOURCE_FROZEN, text, context, limits, of_corpus, budget, min_prob, scratch, out, probs, lesson,
            best,
        )  # fmt: skip
    length, match, source, _ = best
    for j in range(length, out.size):
        out[j] = 0
        probs[j] = 0
    is_own = source in (SOURCE_REQUEST, SOURCE_REQUEST + BEHIND_AN_EDIT)
    lesson[AT], lesson[SOURCE] = own[KNOWN], 0 if is_own else 1
    return length, match, source


@njit(cache=True, nogil=True)
def _propose(
    requests, corpora, rule, slot, hashes, usable, budget, least, scratch, tallies, out, probs
):  # fmt: skip
    """One request's draft, into out and probs; (length, match, source)."""
    arena, rows, rungs = requests
    settings, chances, odds = rule
    counters, lesson, outcomes = tallies
    table = chances[2 * lesson[CLASS] + lesson[SOURCE]], odds
    learn(lesson, arena, rows[slot], table, outcomes)
    if budget == 0 or usable == 0:
        for j in range(out.size):
            out[j] = 0
            probs[j] = 0
        return 0, 0, SOURCE_NONE
    context = rungs, hashes, usable, arena, rows[slot]
    length, match, source = _best_of_all(
        context, slot, corpora, (limits_of(settings), chances, odds), budget, least, scratch, out, probs,
        lesson,
    )  # fmt: skip
    counters[0] += 1
    if length:
        counters[1] += match
        counters[1 + source] += 1
        counters[1 + len(_SOURCES) + source] += length
    return length, match, source


@njit(cache=True)
def propose_one(address, slot, budget, min_prob):
    """As propose_rows for one request, into row 0 of a batch of width ``budget``; the draft's length.

    It keeps the GIL: letting it go and taking it back costs a twentieth of the call.
    """
    requests, corpora = requests_of(address), corpora_of(address)
    settings, chances, odds, counters = rule_of(address)
    lessons, outcomes = lessons_of(address)
    rows = requests[1]
    is_free = not 0 <= slot < rows.shape[0] or rows[slot, CAP] == 0
    if is_free or budget < 0 or not 0.0 <= min_prob <= 1.0:
        return REFUSED
    if not have_room(address, 1, budget):
        return RESIZE
    tokens, probs, heads = outputs_of(address, 1, budget)
    scratch = scratch_of(address, 0, budget)
    hashes = scratch[3][0]
    usable = _fetch_buckets(requests, corpora, slot, hashes)
    # What the buckets name arrives while the request's own text is searched.
    _fetch_cells(corpora, slot, hashes, usable)
    heads[0, 0], heads[1, 0], heads[2, 0] = _propose(
        requests, corpora, (settings, chances, odds), slot, hashes, usable, budget, min_prob, scratch,
        (counters[0], lessons[slot], outcomes[0]), tokens[0], probs[0],
    )  # fmt: skip
    return np.int64(heads[0, 0])


@njit(cache=True, nogil=True)
def propose_rows(address, slots, budgets, min_probs, first, last, thread):
    """A draft for each of rows first to last - 1, written where the ``tables`` at address say.

    slots, budgets int32[n]; min_probs float64[n], or [0] where that of the settings counts. Returns the
    batch's width, the largest budget; else nothing was written: REFUSED, for a slot is free, a budget below 0
    or a least probability outside 0 to 1; RESIZE, for there is no room for the batch.
    """
    requests, corpora = requests_of(address), corpora_of(address)
    settings, chances, odds, counters = rule_of(address)
    lessons, outcomes = lessons_of(address)
    arena, rows, _ = requests
    width = _checked_width(rows, slots, budgets, min_probs)
    if width < 0:
        return width
    if not have_room(address, slots.size, width):
        return RESIZE
    tokens, probs, heads = outputs_of(address, slots.size, width)
    scratch = scratch_of(address, thread, width)
    hashes, usable = scratch[3], scratch[4]
    for start in range(first, last, AHEAD):
        end = min(start + AHEAD, last)
        fetch_ends(arena, rows, slots, start, end)
        for i in range(start, end):
            usable[i - start] = _fetch_buckets(requests, corpora, slots[i], hashes[i - start])
        for i in range(start, end):
            _fetch_cells(corpora, slots[i], hashes[i - start], usable[i - start])
        for i in range(start, end):
            least = min_probs[i] if min_probs.size else settings[6]
            heads[0, i], heads[1, i], heads[2, i] = _propose(
                requests, corpora, (settings, chances, odds), slots[i], hashes[i - start], usable[i - start],
                np.int64(budgets[i]), least, scratch, (counters[thread], lessons[slots[i]], outcomes[thread]),
                tokens[i], probs[i],
            )  # fmt: skip
    return width
