"""The documented rule in plain Python, by scanning whole texts: what the compiled index must equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specctl.draft.calibration import MOST_MATCH, chances
from specctl.draft.gather import CANDIDATES, ENOUGH, OWN_VISITS, VISITS
from specctl.draft.options import SuffixIndexOptions
from specctl.draft.proposal import BEHIND_AN_EDIT
from specctl.draft.resume import EDIT_TOKENS, LONG_MATCH, SHIFT
from specctl.draft.suffix_index import rungs_for
from specctl.draft.token_odds import EVERY, MIXES, PLACE_BITS

Chances = npt.NDArray[np.float32]
Odds = npt.NDArray[np.float32]
CHANCES = chances()
Text = Sequence[int | None]
"""Tokens; None stands between documents."""


@dataclass
class LongMatch:
    """The last one of a request in a text: where that went on, how many tokens were known, its length."""

    place: int = 0
    known: int = 0
    match: int = 0


def cube(chances: Chances) -> Chances:
    """[2, match, votes, voters]"""
    return chances.reshape(2, MOST_MATCH + 1, CANDIDATES + 1, CANDIDATES + 1)


def corrected(chance: float, token: int, before: int, odds: Odds | None) -> float:
    """A token's chance by its votes, with the odds of what it is and follows; None: they are 1."""
    if odds is None:
        return chance
    one, other = (value * mix % 2**32 for value, mix in zip((token, before), MIXES, strict=False))
    pair = ((one ^ (other >> 15)) + other) * MIXES[2] % 2**32
    product = math.prod(float(odds[value >> (32 - PLACE_BITS)]) for value in (one, pair)) * float(odds[EVERY])
    return chance * product / (1 - chance + chance * product)


def chains(
    text: Text, rungs: Sequence[int], limit: int
) -> tuple[list[int], list[dict[tuple[int, ...], int]]]:
    """(link of every position, latest occurrence of every n-gram by rung); -1 for none.

    ``limit``: how many tokens before a position were still alive when it was indexed.
    """
    links: list[int] = []
    latest: list[dict[tuple[int, ...], int]] = [{} for _ in rungs]
    for pos in range(len(text)):
        link = -1
        for known, rung in zip(latest, rungs, strict=True):
            gram = tuple(text[max(pos - rung + 1, 0) : pos + 1])
            if len(gram) < rung or None in gram:
                break
            before = known.get(gram, -1)  # type: ignore[arg-type]
            if before >= 0 and before > pos - limit:
                link = before
            known[gram] = pos  # type: ignore[index]
        links.append(link)
    return links, latest


def gather(
    text: Text, context: Sequence[int], options: SuffixIndexOptions, is_own: bool, alive: int | None
) -> list[tuple[int, int]]:
    """(match, position of the next token) of the sampled occurrences, in the order that votes.

    Only the last ``alive`` tokens of the text are still there; None: all of them.
    """
    found: list[tuple[int, int]] = []
    rungs = rungs_for(options).tolist()
    alive = len(text) if alive is None else alive
    tail = len(text) - alive
    links, latest = chains(text, rungs, alive)
    longest_seen = options.max_match_tokens + 1
    for rung, known in reversed(list(zip(rungs, latest, strict=True))[: 1 if is_own else None]):
        pos = links[-1] if is_own and links else known.get(tuple(context[-rung:]), -1)
        for _ in range(OWN_VISITS if is_own else VISITS):
            if pos < tail or len(found) == CANDIDATES:
                break
            match = 0
            most = min(options.max_match_tokens, pos - tail + 1, len(context))
            while match < most and text[pos - match] == context[-1 - match]:
                match += 1
            if match < rung:
                break
            is_new = options.min_match_tokens <= match < longest_seen
            if is_new and pos + 1 < len(text) and text[pos + 1] is not None:
                found.append((match, pos + 1))
            pos = links[pos]
        if len(found) >= ENOUGH:
            break
        longest_seen = rung
    return sorted(found, reverse=True)


def draft_of(
    text: Text,
    places: list[int],
    match: int,
    budget: int,
    options: SuffixIndexOptions,
    source: int,
    chances: Chances,
    before: int,
    odds: Odds | None,
) -> tuple[list[int], list[float]]:
    tokens: list[int] = []
    probs: list[float] = []
    prob = 1.0
    table = cube(chances)[source - 1]
    room = min(budget, math.floor(options.max_spec_factor * match + options.max_spec_offset + 1e-6))
    while len(tokens) < room:
        places = [place for place in places if place < len(text) and text[place] is not None]
        if not places:
            break
        following = [text[place] for place in places]
        token = max(following, key=following.count)
        assert token is not None
        chance = float(table[min(match + len(tokens), MOST_MATCH), following.count(token), len(places)])
        prob *= corrected(chance, token, before, odds)
        before = token
        if prob < options.min_token_prob:
            break
        tokens.append(token)
        probs.append(prob)
        places = [place + 1 for place in places if text[place] == token]
    return tokens, probs


def resumed(
    text: Text, own: Sequence[int], found: list[tuple[int, int]], last: LongMatch, budget: int,
    options: SuffixIndexOptions, chances: Chances, tail: int, odds: Odds | None,
) -> tuple[list[int], list[float]]:  # fmt: skip
    """The draft behind an edit. found: as ``gather`` gives it; a long match among them becomes ``last``.
    chances: [match, votes, voters]."""
    if found and found[0][0] >= LONG_MATCH:
        last.match, last.place = found[0]
        last.known = len(own)
        return [], []
    behind = len(own) - last.known
    if not last.match or behind > EDIT_TOKENS:
        return [], []
    shifts = sorted(range(-SHIFT, SHIFT + 1), key=lambda shift: (abs(shift), -shift))
    places = [last.place + behind + shift for shift in shifts]
    fits = [tail < place < len(text) and text[place - 1] == own[-1] for place in places]
    if not any(fits):
        return [], []
    place, shift = places[fits.index(True)], abs(shifts[fits.index(True)])
    is_sure = place - 1 > tail and len(own) > 1 and text[place - 2] == own[-2]
    doubts = 0 if is_sure else 1 + (shift + 1) // 2
    room = min(budget, math.floor(options.max_spec_factor * last.match + options.max_spec_offset + 1e-6))
    tokens: list[int] = []
    probs: list[float] = []
    prob = 1.0
    for token in text[place : place + room]:
        if token is None:
            break
        chance = float(chances[min(1 + len(tokens), MOST_MATCH), 0, doubts])
        prob *= corrected(chance, token, tokens[-1] if tokens else own[-1], odds)
        if prob < options.min_token_prob:
            break
        tokens.append(token)
        probs.append(prob)
    return tokens, probs


def propose(
    own: Sequence[int],
    corpus: Text,
    budget: int,
    options: SuffixIndexOptions,
    alive: int | None = None,
    chances: Chances = CHANCES,
    last: Sequence[LongMatch] = (),
    odds: Odds | None = None,
) -> tuple[list[int], list[float], int, int]:
    """(tokens, probs, match, source). ``last``: in the request's own text and in the corpus; changed."""
    last = last or (LongMatch(), LongMatch())
    best: tuple[list[int], list[float], int, int] = ([], [], 0, 0)
    for source, text in ((1, own), (2, corpus)):
        found = gather(text, own, options, source == 1, None if source == 1 else alive)
        for match in sorted({match for match, _ in found}, reverse=True):
            places = [place for other, place in found if other >= match]
            tokens, probs = draft_of(text, places, match, budget, options, source, chances, own[-1], odds)
            if sum(probs) > sum(best[1]):
                best = (tokens, probs, match, source)
        table = cube(chances)[source - 1]
        tail = 0 if source == 1 or alive is None else len(text) - alive
        tokens, probs = resumed(text, own, found, last[source - 1], budget, options, table, tail, odds)
        if sum(probs) > sum(best[1]):
            best = (tokens, probs, last[source - 1].match, source + BEHIND_AN_EDIT)
    return best
