"""From a context to a draft, over the chains of a text: gather occurrences, vote token by token.

The rule, per request and per source (its own tokens; the corpus):

1. Occurrences of the context are sampled rung by rung, the longest rung first. The VISITS latest of a rung
   are looked at and CANDIDATES kept in all: those that have a next token, each compared backwards to its
   true match, up to max_match_tokens.
2. They are ordered by match, then by recency. Every match m that occurs defines a set: the occurrences that
   match at least m tokens. Each set drafts the token that most of its occurrences continue with (ties: the
   first in the order), and those that agree go on. The token's probability, given the ones before it, is
   votes / (voters + discount[m + j]) at depth j; a draft ends where the product falls below
   min_token_prob, or at min(budget, floor(max_spec_factor * m + max_spec_offset)).
3. The set with the highest sum of probabilities, the expected accepted tokens, wins; ties go to the longer
   match, then to the request's own tokens.

Suffix decoding's score (Oliaro et al., arXiv 2411.04975, section 3) with an escape term in the probability,
as in prediction by partial matching: one occurrence of a short context is weak evidence.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.draft.chains import BASE, CAP, HEAD, SEPARATOR, TAIL, find, index_of, stack_hashes

__all__ = [
    "CANDIDATES",
    "COUNTERS",
    "SOURCE_GLOBAL",
    "SOURCE_NONE",
    "SOURCE_REQUEST",
    "VISITS",
    "discounts_for",
    "propose_rows",
]

CANDIDATES = 12
VISITS = 24
SOURCE_NONE, SOURCE_REQUEST, SOURCE_GLOBAL = range(3)
COUNTERS = ("proposals", "hits_request", "hits_global", "match_tokens", "drafted_request", "drafted_global")

_SEPARATOR = np.uint32(SEPARATOR)
# discount[m] = scale * m ** -power, fitted on replays (benchmarks/suffix_index.py --calibration).
_DISCOUNT_REQUEST = (2.0, 1.0)
_DISCOUNT_GLOBAL = (4.0, 1.0)


@njit(cache=True, nogil=True)
def _match_tokens(mem, row, pos, arena, own, most):
    """How many tokens that end at pos equal the request's last ones, at most ``most``."""
    most = min(most, pos - row[TAIL] + 1, own[HEAD])
    at = index_of(row, pos)
    base = row[BASE]
    end = own[BASE] + own[HEAD] - 1
    for j in range(most):
        if mem[base + at] != arena[end - j]:
            return j
        at -= 1
        if at < 0:
            at += row[CAP]
    return most


@njit(cache=True, nogil=True)
def _next_token(mem, row, pos):
    """The token at pos, SEPARATOR where the text or the document has ended."""
    if pos >= row[HEAD]:
        return _SEPARATOR
    return mem[row[BASE] + index_of(row, pos)]


@njit(cache=True, nogil=True)
def _older(mem, row, pos, rung, num_rungs):
    """The previous occurrence of the n-gram that ends at pos, -1 where there is none alive."""
    distance = np.int64(mem[row[BASE] + row[CAP] + index_of(row, pos) * num_rungs + rung])
    if distance == 0 or pos - distance < row[TAIL]:
        return np.int64(-1)
    return pos - distance


@njit(cache=True, nogil=True)
def _gather(mem, row, arena, own, is_own, rungs, least, most, places, matches):
    """Step 1. Fills places (position of the next token) and matches; returns how many."""
    last = own[HEAD] - 1
    hashes = np.empty(rungs.size, np.uint64)
    usable = stack_hashes(arena, own, last, rungs, hashes)
    count = 0
    seen_from = most + 1
    for rung in range(usable - 1, -1, -1):
        if is_own:
            pos = _older(mem, row, last, rung, rungs.size)
        else:
            idx = find(mem, row, rungs, rung, hashes[rung], arena, own, last)[1]
            pos = np.int64(-1)
            if idx >= 0:
                newest = row[HEAD] - 1
                behind = index_of(row, newest) - idx
                pos = newest - (behind if behind >= 0 else behind + row[CAP])
        for _ in range(VISITS):
            if pos < 0 or count == CANDIDATES:
                break
            if _next_token(mem, row, pos + 1) != _SEPARATOR:
                match = _match_tokens(mem, row, pos, arena, own, most)
                if max(rungs[rung], least) <= match < seen_from:
                    places[count] = pos + 1
                    matches[count] = match
                    count += 1
            pos = _older(mem, row, pos, rung, rungs.size)
        if count == CANDIDATES:
            break
        seen_from = rungs[rung]
    return count


@njit(cache=True, nogil=True)
def _order(places, matches, count):
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
        token = _next_token(mem, row, places[i])
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
def _draft(mem, row, places, size, match, budget, discount, min_prob, beat, scratch, out, probs):
    """One set's draft; (length, score), a score of 0 once it cannot be above beat. Consumes places."""
    tokens, votes = scratch
    prob = 1.0
    score = 0.0
    for j in range(budget):
        voters, token, won = _vote(mem, row, places, size, tokens, votes)
        if voters == 0:
            return j, score
        prob *= won / (voters + discount[min(match + j, discount.size - 1)])
        if prob < min_prob:
            return j, score
        if score + prob * (budget - j) <= beat:
            return 0, 0.0
        out[j] = np.int32(token)
        probs[j] = prob
        score += prob
        size = 0
        for i in range(voters):
            if _next_token(mem, row, places[i]) == token:
                places[size] = places[i] + 1
                size += 1
    return budget, score


@njit(cache=True, nogil=True)
def _copy(source, target, size):
    """A loop: numba takes seconds to compile the assignment of a slice."""
    for i in range(size):
        target[i] = source[i]


@njit(cache=True, nogil=True)
def _best_of_source(mem, row, arena, own, is_own, rungs, limits, discount, budget, scratch, out, probs, beat):
    """Steps 1 to 3 for one source. Writes out and probs only when the score is above ``beat``."""
    least, most, factor, offset, min_prob = limits
    places = np.empty(CANDIDATES, np.int64)
    matches = np.empty(CANDIDATES, np.int64)
    count = _gather(mem, row, arena, own, is_own, rungs, np.int64(least), np.int64(most), places, matches)
    _order(places, matches, count)
    voters = np.empty(CANDIDATES, np.int64)
    drafted = np.empty(budget, np.int32)
    path = np.empty(budget, np.float32)
    best_length, best_match = 0, 0
    for size in range(1, count + 1):
        match = matches[size - 1]
        if size < count and matches[size] == match:
            continue
        room = min(budget, np.int64(factor * match + offset + 1e-6))
        _copy(places, voters, size)
        length, score = _draft(
            mem, row, voters, size, match, room, discount, min_prob, beat, scratch, drafted, path
        )
        if length > 0 and score > beat:
            beat, best_length, best_match = score, length, match
            _copy(drafted, out, length)
            _copy(path, probs, length)
    return best_length, best_match, beat


@njit(cache=True, nogil=True)
def _are_legal(rows, slots, budgets):
    for i in range(slots.size):
        if not 0 <= slots[i] < rows.shape[0] or rows[slots[i], CAP] == 0 or budgets[i] < 0:
            return False
    return True


@njit(cache=True, nogil=True)
def _best_of_both(arena, own, corpus, corpus_row, rungs, limits, discounts, budget, scratch, out, probs):
    """The rule for one request; (length, match, source)."""
    length, match, score, source = 0, 0, 0.0, SOURCE_NONE
    for candidate in range(SOURCE_REQUEST, SOURCE_GLOBAL + 1):
        is_own = candidate == SOURCE_REQUEST
        mem = arena if is_own else corpus
        row = own if is_own else corpus_row
        if row[HEAD] == 0:
            continue
        drafted, drafted_match, drafted_score = _best_of_source(
            mem, row, arena, own, is_own, rungs, limits, discounts[candidate - 1], budget, scratch,
            out, probs, score,
        )  # fmt: skip
        if drafted:
            length, match, score, source = drafted, drafted_match, drafted_score, candidate
    for j in range(length, out.size):
        out[j] = 0
        probs[j] = 0
    return length, match, source


@njit(cache=True, nogil=True)
def propose_rows(
    arena,  # uint32[...] texts of the requests
    rows,  # int64[max_requests, ROW_WORDS]
    corpus,  # uint32[...]
    corpus_row,  # int64[ROW_WORDS]
    rungs,  # int64[R] ascending
    limits,  # float64[5]: least and most match, spec factor, spec offset, least probability
    discounts,  # float64[2, D]: own tokens, corpus
    slots,  # int32[n]
    budgets,  # int32[n]
    tokens,  # int32[n, max_budget] out
    lengths,  # int32[n] out
    probs,  # float32[n, max_budget] out
    matches,  # int32[n] out
    sources,  # int8[n] out
    counters,  # int64[len(COUNTERS)] added to
):
    """A draft for every row. False, and nothing written, if a slot is free or a budget below 0."""
    if not _are_legal(rows, slots, budgets):
        return False
    scratch = (np.empty(CANDIDATES, np.uint32), np.empty(CANDIDATES, np.int64))
    unpacked = (limits[0], limits[1], limits[2], limits[3], limits[4])
    for i in range(slots.size):
        own = rows[slots[i]]
        budget = np.int64(budgets[i])
        if budget == 0 or own[HEAD] == 0:
            continue
        length, match, source = _best_of_both(
            arena, own, corpus, corpus_row, rungs, unpacked, discounts, budget, scratch, tokens[i], probs[i]
        )
        lengths[i], matches[i], sources[i] = length, match, source
        counters[0] += 1
        if length:
            counters[source] += 1
            counters[3] += match
            counters[3 + source] += length
    return True


def discounts_for(max_match_tokens: int) -> npt.NDArray[np.float64]:
    """float64[2, D]: the escape term by matched tokens, for the own tokens and for the corpus."""
    matched = np.arange(max_match_tokens + 65, dtype=np.float64)
    matched[0] = 1.0
    return np.stack([scale * matched**-power for scale, power in (_DISCOUNT_REQUEST, _DISCOUNT_GLOBAL)])
