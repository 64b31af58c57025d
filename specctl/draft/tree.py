"""Draft trees: the set of occurrences that won as a chain, grown in every direction it goes on.

A node is a token with its parent and the probability that the path to it comes true: as in ``proposal``,
by votes, voters and match at each depth. The most probable node is taken next, so that a tree of n nodes has
the highest expected number of accepted tokens that n nodes of this set can have (the best-first expansion of
OPT-Tree, Wang et al., arXiv 2406.17276, section 3). The chain's first tokens are among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.draft.calibration import MOST_MATCH
from specctl.draft.chains import SEPARATOR
from specctl.draft.proposal import (
    CANDIDATES,
    SOURCE_FROZEN,
    SOURCE_REQUEST,
    gather,
    limits_of,
    next_token,
    order,
)

__all__ = ["DraftTree", "grow_rows"]

_SEPARATOR = np.uint32(SEPARATOR)


@dataclass(slots=True)
class DraftTree:
    """Row i belongs to the i-th slot asked for; columns from ``sizes[i]`` on are 0, parents -1.

    A node comes after its parent, and nodes come by falling probability.
    """

    tokens: npt.NDArray[np.int32]  # [n, max_budget]
    parents: npt.NDArray[np.int32]  # [n, max_budget] column of the parent, -1 = the last token of the context
    probs: npt.NDArray[np.float32]  # [n, max_budget] that the path from the context to here comes true
    sizes: npt.NDArray[np.int32]  # [n]


@njit(cache=True, nogil=True)
def _children(mem, row, places, size, prob, chance, min_prob, open_nodes, count):
    """Open a node for each way on from these occurrences; how many are open now.

    open_nodes: tokens, probabilities, occurrences [., CANDIDATES], how many of them.
    """
    tokens, probs, kept, sizes = open_nodes
    voters = 0
    first = count
    for i in range(size):
        token = next_token(mem, row, places[i])
        if token == _SEPARATOR:
            continue
        voters += 1
        at = first
        while at < count and tokens[at] != np.int32(token):
            at += 1
        if at == count:
            tokens[at] = np.int32(token)
            sizes[at] = 0
            count += 1
        kept[at, sizes[at]] = places[i] + 1
        sizes[at] += 1
    for at in range(first, count):
        path = prob * chance[sizes[at], voters]
        probs[at] = path if path >= min_prob else 0.0
    return count


@njit(cache=True, nogil=True)
def _grow(mem, row, places, size, match, budget, chance, min_prob, out):
    """One tree; its size."""
    tokens, parents, probs = out
    most = (budget + 1) * CANDIDATES
    opened = (
        np.empty(most, np.int32), np.empty(most, np.float64), np.empty((most, CANDIDATES), np.int64),
        np.zeros(most, np.int64),
    )  # fmt: skip
    parent_of = np.full(most, -1, np.int32)
    depth_of = np.zeros(most, np.int64)
    count = _children(mem, row, places, size, 1.0, chance[min(match, MOST_MATCH)], min_prob, opened, 0)
    taken = 0
    while taken < budget:
        best = -1
        for at in range(count):
            if opened[1][at] > 0 and (best < 0 or opened[1][at] > opened[1][best]):
                best = at
        if best < 0:
            break
        prob = opened[1][best]
        tokens[taken], parents[taken], probs[taken] = opened[0][best], parent_of[best], prob
        opened[1][best] = 0.0
        depth = depth_of[best] + 1
        further = chance[min(match + depth, MOST_MATCH)]
        before = count
        count = _children(mem, row, opened[2][best], opened[3][best], prob, further, min_prob, opened, before)
        for at in range(before, count):
            parent_of[at], depth_of[at] = taken, depth
        taken += 1
    return taken


@njit(cache=True, nogil=True)
def grow_rows(
    arena, rows, corpora, corpus_rows, _hits, spaces, frozen_mem, frozen_row, _reads_frozen, rungs, settings,
    chances, slots, budgets, min_probs,  # as in propose_rows
    heads,  # int32[3, n] of the chains: lengths, match tokens, source
    tokens,  # int32[n, max_budget] out, and so on: a DraftTree
    parents,
    probs,
    sizes,
):  # fmt: skip
    limits = limits_of(settings)
    places, matches = np.empty(CANDIDATES, np.int64), np.empty(CANDIDATES, np.int64)
    for i in range(slots.size):
        if heads[0, i] == 0:
            continue
        match, source, own = heads[1, i], heads[2, i], rows[slots[i]]
        out = tokens[i], parents[i], probs[i]
        if source == SOURCE_FROZEN:
            size = _winners(frozen_mem, frozen_row, rungs, arena, own, False, limits, places, matches, match)
            sizes[i] = _grow(
                frozen_mem, frozen_row, places, size, match, budgets[i], chances[1], min_probs[i], out
            )
            continue
        is_own = source == SOURCE_REQUEST
        mem = arena if is_own else corpora
        row = own if is_own else corpus_rows[spaces[slots[i]]]
        size = _winners(mem, row, rungs, arena, own, is_own, limits, places, matches, match)
        chance = chances[0 if is_own else 1]
        sizes[i] = _grow(mem, row, places, size, match, budgets[i], chance, min_probs[i], out)


@njit(cache=True, nogil=True)
def _winners(mem, row, rungs, arena, own, is_own, limits, places, matches, match):
    """The occurrences that match at least ``match`` tokens come first in places; how many."""
    count = gather(mem, row, rungs, arena, own, is_own, limits, places, matches)
    order(places, matches, count)
    size = 0
    while size < count and matches[size] >= match:
        size += 1
    return size
