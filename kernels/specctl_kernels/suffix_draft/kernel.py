"""The suffix index's rule on the device: one program drafts for one request.

It drafts as ``specctl.draft.proposal`` does from a request's own tokens and one frozen corpus: the same
occurrences, votes, probabilities and tokens. A corpus is searched as on the host, by its hash buckets and
chains (``specctl.draft.chains``). A request's own text has no buckets here: what a chain would link to is
found by scanning the tokens backwards, so that nothing has to be kept up to date between steps. What became
of a request's last draft is counted as ``specctl.draft.lessons`` does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specctl_kernels.suffix_draft.lessons import LESSON_HEAD, LONG_IN_CORPUS, LONG_IN_OWN, learn, remember
from specctl_kernels.suffix_draft.resume import behind_an_edit, room_of
from specctl_kernels.suffix_draft.token_odds import chance_of

__all__ = ["suffix_draft_kernel"]

_SEED: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
_STEP: tl.constexpr = tl.constexpr(0xD6E8FEB86659FD93)
_MIX: tl.constexpr = tl.constexpr(0xFF51AFD7ED558CCD)
_SEPARATOR: tl.constexpr = tl.constexpr(-1)  # 0xFFFFFFFF as int32


@triton.jit
def _pick(values, iota, at):
    """values[at] of a vector in registers."""
    return tl.sum(tl.where(iota == at, values, 0))


@triton.jit
def _own_link(own_ptr, pos, RUNG_MASK: tl.constexpr, LONGEST: tl.constexpr, BLOCK: tl.constexpr):
    """The last position before pos with the same n-gram, of the longest rung that has one; or -1."""
    best = tl.full((), -1, tl.int64)
    top = tl.full((), 0, tl.int64)
    for j in tl.static_range(LONGEST):
        top += (RUNG_MASK >> j) & 1
    iota = tl.arange(0, BLOCK)
    end = pos.to(tl.int64)
    while (end > 0) & ((best >> 32) < top):
        at = end - BLOCK + iota
        equal = at >= 0
        level = tl.zeros([BLOCK], tl.int64)
        for j in tl.static_range(LONGEST):
            here = tl.load(own_ptr + pos - j, mask=pos >= j, other=-2)
            there = tl.load(own_ptr + at - j, mask=equal & (at >= j), other=-3)
            equal = equal & (there == here)
            if (RUNG_MASK >> j) & 1:
                level += equal.to(tl.int64)
        found = tl.max(tl.where(level > 0, (level << 32) | at, -1))
        # The nearest of the longest rung: what lies further back must be longer.
        best = tl.where((found >> 32) > (best >> 32), found, best)
        end -= BLOCK
    return tl.where(best >= 0, best & 0xFFFFFFFF, -1)


@triton.jit
def _match(own_ptr, last, text_ptr, pos, most, STRIDE: tl.constexpr, MATCH: tl.constexpr):
    """How many tokens that end at pos of a text equal the last ones of the request, at most ``most``."""
    iota = tl.arange(0, MATCH)
    inside = iota < most
    here = tl.load(own_ptr + last - iota, mask=inside, other=-2)
    there = tl.load(text_ptr + STRIDE * (pos - iota), mask=inside, other=-3)
    return tl.min(tl.where(inside & (here == there), MATCH, iota))


@triton.jit
def _find(mem_ptr, cap, nb1, nb, pos_bits, own_ptr, last, h, rung, length, LONGEST_2: tl.constexpr):
    """The latest occurrence of the context's n-gram in a frozen corpus, or -1: ``chains.find``."""
    start = 2 * cap + tl.where(rung == 0, 0, nb1 + (rung - 1) * nb)
    buckets = tl.where(rung == 0, nb1, nb)
    low = tl.full((), 0xFFFFFFFF, tl.uint64)
    bits = pos_bits.to(tl.uint64)
    mask = (tl.full((), 1, tl.uint64) << bits) - 1
    tag = ((h & low) << bits) & low
    bucket = (((h >> 32) * buckets.to(tl.uint64)) >> 32).to(tl.int64)
    iota = tl.arange(0, LONGEST_2)
    inside = iota < length
    here = tl.load(own_ptr + last - iota, mask=inside, other=-2)
    found = tl.full((), -1, tl.int64)
    is_open = True
    while is_open:
        word = tl.load(mem_ptr + start + bucket).to(tl.uint32, bitcast=True).to(tl.uint64)
        if word == 0:
            is_open = False
        else:
            if (word & ~mask & low) == tag:
                idx = (word & mask).to(tl.int64) - 1
                there = tl.load(mem_ptr + 2 * (idx - iota), mask=inside & (idx >= iota), other=-3)
                if tl.sum((inside & (here != there)).to(tl.int32)) == 0:
                    found = idx
                    is_open = False
            bucket += 1
            bucket = tl.where(bucket == buckets, 0, bucket)
    return found


@triton.jit
def _own_places(
    own_ptr, last, LEAST_MATCH: tl.constexpr, MATCH: tl.constexpr, MATCH_2: tl.constexpr,
    VISITS: tl.constexpr, RUNG_MASK: tl.constexpr, LONGEST: tl.constexpr, CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Step 1 of ``specctl.draft.proposal`` in the request's own tokens: (places behind a match, lengths of
    the matches, how many)."""
    iota = tl.arange(0, CANDIDATES)
    places = tl.zeros([CANDIDATES], tl.int64)
    matches = tl.zeros([CANDIDATES], tl.int64)
    count = 0
    pos = last
    for _ in tl.static_range(VISITS):
        if pos >= 0:
            pos = _own_link(own_ptr, pos, RUNG_MASK, LONGEST, BLOCK)
            if pos >= 0:
                most = tl.minimum(pos + 1, MATCH)
                match = _match(own_ptr, last, own_ptr, pos, most, 1, MATCH_2).to(tl.int64)
                if match >= LEAST_MATCH:
                    places = tl.where(iota == count, pos + 1, places)
                    matches = tl.where(iota == count, match, matches)
                    count += 1
    return places, matches, count


@triton.jit
def _hash(own_ptr, last, LENGTH: tl.constexpr):
    """Of the last ``LENGTH`` tokens: ``chains._gram_hash``."""
    h = tl.full((), _SEED, tl.uint64)
    for j in tl.static_range(LENGTH):
        token = tl.load(own_ptr + last - j).to(tl.uint32, bitcast=True).to(tl.uint64)
        h = (h ^ token) * tl.full((), _STEP, tl.uint64)
        h = h ^ (h >> 32)
    h = h ^ (h >> 32)
    h = h * tl.full((), _MIX, tl.uint64)
    return h ^ (h >> 29)


@triton.jit
def _follow_chain(
    corpus_ptr, head, own_ptr, own_known, pos, seen_from, places, matches, count, length,
    LEAST_MATCH: tl.constexpr, MATCH: tl.constexpr, MATCH_2: tl.constexpr, VISITS: tl.constexpr,
    CANDIDATES: tl.constexpr,
):  # fmt: skip
    """As ``_corpus_places``, with what one chain of n-grams of this length adds, from its latest on."""
    iota = tl.arange(0, CANDIDATES)
    visit = 0
    while (visit < VISITS) & (pos >= 0) & (count < CANDIDATES):
        distance = tl.load(corpus_ptr + 2 * pos + 1).to(tl.uint32, bitcast=True)
        most = tl.minimum(tl.minimum(pos + 1, own_known), MATCH)
        match = _match(own_ptr, own_known - 1, corpus_ptr, pos, most, 2, MATCH_2).to(tl.int64)
        if match < length:
            visit = VISITS
        else:
            following = tl.load(corpus_ptr + 2 * (pos + 1), mask=pos + 1 < head, other=_SEPARATOR)
            is_new = (match >= LEAST_MATCH) & (match < seen_from)
            if is_new & (following != _SEPARATOR):
                places = tl.where(iota == count, pos + 1, places)
                matches = tl.where(iota == count, match, matches)
                count += 1
            pos = tl.where(distance == 0, -1, pos - distance.to(tl.int64))
            visit += 1
    return places, matches, count


@triton.jit
def _corpus_places(
    corpus_ptr, row_ptr, head, own_ptr, own_known,
    LEAST_MATCH: tl.constexpr, MATCH: tl.constexpr, MATCH_2: tl.constexpr, VISITS: tl.constexpr,
    ENOUGH: tl.constexpr, RUNG_MASK: tl.constexpr, LONGEST: tl.constexpr, LONGEST_2: tl.constexpr,
    CANDIDATES: tl.constexpr, CAP: tl.constexpr, NB: tl.constexpr, POS_BITS: tl.constexpr,
    NB1: tl.constexpr,
):  # fmt: skip
    """As ``_own_places``, in the corpus: the longest n-grams first, until there are enough."""
    cap, nb, nb1 = tl.load(row_ptr + CAP), tl.load(row_ptr + NB), tl.load(row_ptr + NB1)
    pos_bits = tl.load(row_ptr + POS_BITS)
    places = tl.zeros([CANDIDATES], tl.int64)
    matches = tl.zeros([CANDIDATES], tl.int64)
    count = 0
    last = own_known - 1
    seen_from = tl.full((), MATCH + 1, tl.int64)
    is_open = True
    for length in tl.static_range(LONGEST, 0, -1):
        if (RUNG_MASK >> (length - 1)) & 1:  # noqa: SIM102 - one is a constant
            if is_open & (own_known >= length):
                rung = -1
                for j in tl.static_range(length):
                    rung += (RUNG_MASK >> j) & 1
                pos = _find(
                    corpus_ptr, cap, nb1, nb, pos_bits, own_ptr, last, _hash(own_ptr, last, length), rung,
                    length, LONGEST_2,
                )  # fmt: skip
                places, matches, count = _follow_chain(
                    corpus_ptr, head, own_ptr, own_known, pos, seen_from, places, matches, count, length,
                    LEAST_MATCH, MATCH, MATCH_2, VISITS, CANDIDATES,
                )  # fmt: skip
                is_open = count < ENOUGH
                seen_from = tl.full((), length, tl.int64)
    return places, matches, count


@triton.jit
def _ordered(places, matches, count, iota):
    """Longest match first, then the most recent."""
    valid = iota < count
    match_i, match_j = matches[:, None], matches[None, :]
    place_i, place_j = places[:, None], places[None, :]
    before = (match_j > match_i) | ((match_j == match_i) & (place_j > place_i))
    rank = tl.sum((before & valid[None, :]).to(tl.int32), axis=1)
    rank = tl.where(valid, rank, count + iota)
    moved = rank[:, None] == iota[None, :]
    places = tl.sum(tl.where(moved & valid[:, None], places[:, None], 0), axis=0)
    matches = tl.sum(tl.where(moved & valid[:, None], matches[:, None], 0), axis=0)
    return places, matches


@triton.jit
def _voted(
    after, ends, size, match, room, chance_ptr, odds_ptr, before, min_prob,
    MOST_MATCH: tl.constexpr, CANDIDATES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """(tokens, their entries in the table, probabilities, their sum, how many, how many with an entry): at
    each place the first ``size`` candidates that agreed so far have a vote. A token that is too improbable
    ends the draft; it has an entry, too."""
    iota = tl.arange(0, CANDIDATES)
    columns = tl.arange(0, WIDTH)
    alive = (iota < size).to(tl.int32)
    tokens = tl.zeros([WIDTH], tl.int32)
    entries = tl.zeros([WIDTH], tl.int32)
    probs = tl.zeros([WIDTH], tl.float32)
    prob = tl.full((), 1.0, tl.float64)
    score = tl.full((), 0.0, tl.float64)
    j, seen = 0, 0
    is_open = True
    while is_open:
        alive = alive * (ends > j).to(tl.int32)
        voters = tl.sum(alive)
        at_j = tl.sum(tl.where(columns[None, :] == j, after, 0), axis=1)
        agree = (at_j[:, None] == at_j[None, :]).to(tl.int32) * alive[:, None] * alive[None, :]
        votes = tl.sum(agree, axis=1)
        winner = tl.max(votes * CANDIDATES + (CANDIDATES - 1 - iota))
        won = winner // CANDIDATES
        token = _pick(at_j, iota, CANDIDATES - 1 - winner % CANDIDATES)
        matched = tl.minimum(match + j, MOST_MATCH)
        entry = (matched * (CANDIDATES + 1) + won) * (CANDIDATES + 1) + voters
        prob = prob * chance_of(chance_ptr, odds_ptr, entry, token, before)
        before = token
        if voters > 0:
            tokens = tl.where(columns == j, token, tokens)
            entries = tl.where(columns == j, entry.to(tl.int32), entries)
            seen = j + 1
        if (voters == 0) | (prob < min_prob):
            is_open = False
        else:
            probs = tl.where(columns == j, prob.to(tl.float32), probs)
            score += prob
            alive = alive * (at_j == token).to(tl.int32)
            j += 1
            is_open = j < room
    return tokens, entries, probs, score, j, seen


@triton.jit
def _best_draft(
    text_ptr, known, places, matches, count, chance_ptr, odds_ptr, before, budget, factor, offset, min_prob,
    best_tokens, best_entries, best_probs, best_length, best_seen, best_match, best_source, beat, source,
    STRIDE: tl.constexpr, MOST_MATCH: tl.constexpr, CANDIDATES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Steps 2 and 3 of ``specctl.draft.proposal`` for one source; the best draft of all sources so far."""
    iota = tl.arange(0, CANDIDATES)
    columns = tl.arange(0, WIDTH)
    places, matches = _ordered(places, matches, count, iota)
    most = tl.where(iota < count, tl.minimum(room_of(matches, budget, factor, offset), known - places), 0)
    inside = columns[None, :] < most[:, None]
    after = tl.load(text_ptr + STRIDE * (places[:, None] + columns[None, :]), mask=inside, other=-1)
    ends = tl.min(tl.where(inside & (after != _SEPARATOR), WIDTH, columns[None, :]), axis=1)
    for size in range(1, CANDIDATES + 1):
        match = _pick(matches, iota, size - 1)
        is_set = (size <= count) & ((size == count) | (_pick(matches, iota, size) != match))
        room = room_of(match, budget, factor, offset)
        if is_set & (room.to(tl.float64) > beat):
            tokens, entries, probs, score, j, seen = _voted(
                after, ends, size, match, room, chance_ptr, odds_ptr, before, min_prob, MOST_MATCH,
                CANDIDATES, WIDTH,
            )  # fmt: skip
            if (j > 0) & (score > beat):
                beat, best_length, best_match = score, j, match
                best_source, best_seen = source, seen
                best_tokens, best_entries, best_probs = tokens, entries, probs
    return best_tokens, best_entries, best_probs, best_length, best_seen, best_match, best_source, beat


# Triton compiles anew for a 1 and for multiples of 16, in the middle of a stream.
@triton.jit(do_not_specialize=["budget"])
def suffix_draft_kernel(
    tokens_ptr, tokens_stride, slots_ptr, lengths_ptr, is_drafting_ptr, reads_corpus_ptr,
    corpus_ptr, row_ptr, chances_ptr, chances_stride, odds_ptr, prefills_ptr,
    lessons_ptr, counted_ptr, of_tokens_ptr,
    drafts_ptr, drafts_stride, probs_ptr, heads_ptr, heads_stride,
    budget, limits_ptr,
    LEAST_MATCH: tl.constexpr, MATCH: tl.constexpr, MATCH_2: tl.constexpr,
    VISITS: tl.constexpr, OWN_VISITS: tl.constexpr, ENOUGH: tl.constexpr,
    RUNG_MASK: tl.constexpr, LONGEST: tl.constexpr, LONGEST_2: tl.constexpr,
    MOST_MATCH: tl.constexpr, CANDIDATES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    ENTRIES: tl.constexpr,
    LONG_MATCH: tl.constexpr, EDIT_TOKENS: tl.constexpr, SHIFT: tl.constexpr, SHIFTS_2: tl.constexpr,
    CAP: tl.constexpr, NB: tl.constexpr, HEAD: tl.constexpr, POS_BITS: tl.constexpr, NB1: tl.constexpr,
):  # fmt: skip
    """Arguments as ``suffix_draft`` explains them; the last five are places in a row of ``chains``."""
    request = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + request).to(tl.int64)
    is_request = slot >= 0
    is_drafting = (tl.load(is_drafting_ptr + request) > 0) & is_request
    slot = tl.maximum(slot, 0)
    own_ptr = tokens_ptr + slot * tokens_stride
    own_known = tl.load(lengths_ptr + slot).to(tl.int64)
    last = own_known - 1
    columns = tl.arange(0, WIDTH)
    best_tokens = tl.zeros([WIDTH], tl.int32)
    best_entries = tl.zeros([WIDTH], tl.int32)
    best_probs = tl.zeros([WIDTH], tl.float32)
    best_length, best_seen, best_match, best_source = 0, 0, tl.full((), 0, tl.int64), 0
    lesson_ptr = lessons_ptr + slot * (LESSON_HEAD + 2 * WIDTH)
    prefill = tl.load(prefills_ptr + slot)
    is_known = is_request
    if is_request:
        is_known = learn(
            lesson_ptr, own_ptr, own_known, prefill, chances_ptr, chances_stride, odds_ptr, counted_ptr,
            of_tokens_ptr, ENTRIES, WIDTH,
        )  # fmt: skip
    beat = tl.full((), 0.0, tl.float64)
    # From memory: Triton would round a float argument to 32 bits.
    factor, offset, min_prob = tl.load(limits_ptr), tl.load(limits_ptr + 1), tl.load(limits_ptr + 2)
    if is_drafting & (own_known > 0):
        before = tl.load(own_ptr + last)
        places, matches, count = _own_places(
            own_ptr, last, LEAST_MATCH, MATCH, MATCH_2, OWN_VISITS, RUNG_MASK, LONGEST, CANDIDATES, BLOCK
        )
        (
            best_tokens, best_entries, best_probs, best_length, best_seen, best_match, best_source, beat
        ) = _best_draft(
            own_ptr, own_known, places, matches, count, chances_ptr, odds_ptr, before, budget, factor,
            offset, min_prob, best_tokens, best_entries, best_probs, best_length, best_seen, best_match,
            best_source, beat, 1, 1, MOST_MATCH, CANDIDATES, WIDTH,
        )  # fmt: skip
        (
            best_tokens, best_entries, best_probs, best_length, best_seen, best_match, best_source, beat
        ) = behind_an_edit(
            lesson_ptr + LONG_IN_OWN, is_known, own_ptr, own_known, own_ptr, own_known, places, matches,
            count, chances_ptr, odds_ptr, budget, factor, offset, min_prob, best_tokens, best_entries,
            best_probs, best_length, best_seen, best_match, best_source, beat, 4, 1, LONG_MATCH, EDIT_TOKENS,
            SHIFT, SHIFTS_2, MOST_MATCH, CANDIDATES, WIDTH,
        )  # fmt: skip
        head = tl.load(row_ptr + HEAD) * (tl.load(reads_corpus_ptr + slot) > 0).to(tl.int64)
        corpus_ptr += tl.load(row_ptr)  # BASE
        if head > 0:
            places, matches, count = _corpus_places(
                corpus_ptr, row_ptr, head, own_ptr, own_known, LEAST_MATCH, MATCH, MATCH_2, VISITS, ENOUGH,
                RUNG_MASK, LONGEST, LONGEST_2, CANDIDATES, CAP, NB, POS_BITS, NB1,
            )  # fmt: skip
            (
                best_tokens, best_entries, best_probs, best_length, best_seen, best_match, best_source, beat
            ) = _best_draft(
                corpus_ptr, head, places, matches, count, chances_ptr + chances_stride, odds_ptr, before,
                budget, factor, offset, min_prob, best_tokens, best_entries, best_probs, best_length,
                best_seen, best_match, best_source, beat, 3, 2, MOST_MATCH, CANDIDATES, WIDTH,
            )  # fmt: skip
            (
                best_tokens, best_entries, best_probs, best_length, best_seen, best_match, best_source, beat
            ) = behind_an_edit(
                lesson_ptr + LONG_IN_CORPUS, is_known, corpus_ptr, head, own_ptr, own_known, places, matches,
                count, chances_ptr + chances_stride, odds_ptr, budget, factor, offset, min_prob, best_tokens,
                best_entries, best_probs, best_length, best_seen, best_match, best_source, beat, 6, 2,
                LONG_MATCH, EDIT_TOKENS, SHIFT, SHIFTS_2, MOST_MATCH, CANDIDATES, WIDTH,
            )  # fmt: skip
        remember(
            lesson_ptr, own_ptr, own_known, prefill, best_source, best_tokens, best_entries, best_seen, WIDTH
        )
    # A place without a draft gets the request's last token: any id that exists, and rejected unless true.
    filler = tl.load(own_ptr + last, mask=own_known > 0, other=0)
    tl.store(
        drafts_ptr + request * drafts_stride + columns,
        tl.where(columns < best_length, best_tokens, filler).to(drafts_ptr.dtype.element_ty),
        mask=columns < budget,
    )
    tl.store(
        probs_ptr + request * drafts_stride + columns,
        tl.where(columns < best_length, best_probs, 0.0),
        mask=columns < budget,
    )
    tl.store(heads_ptr + request, best_length)
    tl.store(heads_ptr + heads_stride + request, best_match.to(tl.int32))
    tl.store(heads_ptr + 2 * heads_stride + request, best_source)
