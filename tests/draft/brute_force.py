"""The documented rule in plain Python, by scanning whole texts: what the compiled index must equal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specctl.draft.options import SuffixIndexOptions
from specctl.draft.proposal import CANDIDATES, VISITS, discounts_for

Text = Sequence[int | None]
"""Tokens; None stands between documents."""


def ladder(options: SuffixIndexOptions) -> list[int]:
    shortest = min(options.min_match_tokens, 16)
    return [shortest, *(r for r in (2, 4, 8, 16) if shortest < r <= options.max_match_tokens)]


def gather(
    text: Text, context: Sequence[int], options: SuffixIndexOptions, is_own: bool
) -> list[tuple[int, int]]:
    """(match, position of the next token) of the sampled occurrences, in the order that votes."""
    found: list[tuple[int, int]] = []
    longest_seen = options.max_match_tokens + 1
    for rung in reversed(ladder(options)):
        if rung > len(context):
            continue
        gram = list(context[-rung:])
        newest = len(text) - 2 if is_own else len(text) - 1
        ends = [end for end in range(newest, rung - 2, -1) if list(text[end - rung + 1 : end + 1]) == gram]
        for end in ends[:VISITS]:
            if len(found) == CANDIDATES:
                break
            if end + 1 >= len(text) or text[end + 1] is None:
                continue
            match = 0
            while (
                match < min(options.max_match_tokens, end + 1, len(context))
                and text[end - match] == context[-1 - match]
            ):
                match += 1
            if max(rung, options.min_match_tokens) <= match < longest_seen:
                found.append((match, end + 1))
        longest_seen = rung
    return sorted(found, reverse=True)


def draft_of(
    text: Text,
    places: list[int],
    match: int,
    budget: int,
    options: SuffixIndexOptions,
    discount: Sequence[float],
) -> tuple[list[int], list[float]]:
    tokens: list[int] = []
    probs: list[float] = []
    prob = 1.0
    room = min(budget, math.floor(options.max_spec_factor * match + options.max_spec_offset + 1e-6))
    while len(tokens) < room:
        places = [place for place in places if place < len(text) and text[place] is not None]
        if not places:
            break
        following = [text[place] for place in places]
        token = max(following, key=following.count)
        escape = discount[min(match + len(tokens), len(discount) - 1)]
        prob *= following.count(token) / (len(places) + escape)
        if prob < options.min_token_prob:
            break
        assert token is not None
        tokens.append(token)
        probs.append(prob)
        places = [place + 1 for place in places if text[place] == token]
    return tokens, probs


def propose(
    own: Sequence[int], corpus: Text, budget: int, options: SuffixIndexOptions
) -> tuple[list[int], list[float], int, int]:
    """(tokens, probs, match, source)"""
    best: tuple[list[int], list[float], int, int] = ([], [], 0, 0)
    for source, text in ((1, own), (2, corpus)):
        discount = discounts_for(options.max_match_tokens)[source - 1].tolist()
        found = gather(text, own, options, source == 1)
        for match in sorted({match for match, _ in found}, reverse=True):
            places = [place for other, place in found if other >= match]
            tokens, probs = draft_of(text, places, match, budget, options, discount)
            if sum(probs) > sum(best[1]):
                best = (tokens, probs, match, source)
    return best
