"""Draft trees: the set of occurrences that won as a chain, grown in every direction it goes on.

A node is a token with its parent and the probability that the path to it comes true: as in ``proposal``,
by votes, voters and match at each depth. The most probable node is taken next, so that a tree of n nodes has
the highest expected number of accepted tokens that n nodes of this set can have (the best-first expansion of
OPT-Tree, Wang et al., arXiv 2406.17276, section 3). The chain's first tokens are among them. A draft that
goes on behind an edit (``resume``) has one direction: its tree is the chain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.draft.calibration import entry_of
from specctl.draft.chains import KNOWN, stack_hashes, token_at
from specctl.draft.gather import CANDIDATES, gather, limits_of, order, read_on, room_of
from specctl.draft.lessons import CLASS
from specctl.draft.proposal import SOURCE_FROZEN, SOURCE_REQUEST
from specctl.draft.tables import corpora_of, lessons_of, requests_of, rule_of
from specctl.draft.token_odds import chance_of

__all__ = ["DraftTree", "grow_rows"]


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
def _children(after, ends, voters, size, depth, match, prob, table, before, min_prob, open_nodes, count):
    """Open a node for each way on from the occurrences voters[:size]; how many are open now.

    open_nodes: tokens, probabilities, occurrences [., CANDIDATES], how many of them.
    """
    tokens, probs, kept, sizes = open_nodes
    alive = 0
    first = count
    for a in range(size):
        i = voters[a]
        if ends[i] <= depth:
            continue
        alive += 1
        at = first
        while at < count and tokens[at] != after[depth, i]:
            at += 1
        if at == count:
            tokens[at] = after[depth, i]
            sizes[at] = 0
            count += 1
        kept[at, sizes[at]] = i
        sizes[at] += 1
    for at in range(first, count):
        path = prob * chance_of(table, entry_of(match + depth, sizes[at], alive), tokens[at], before)
        probs[at] = path if path >= min_prob else 0.0
    return count


@njit(cache=True, nogil=True)
def _grow(after, ends, size, match, room, budget, table, before, min_prob, out):
    """One tree of the first ``size`` occurrences, at most ``room`` deep; its size."""
    tokens, parents, probs = out
    most = (budget + 1) * CANDIDATES
    opened = (
        np.empty(most, np.int64), np.empty(most, np.float64), np.empty((most, CANDIDATES), np.int64),
        np.zeros(most, np.int64),
    )  # fmt: skip
    parent_of = np.full(most, -1, np.int32)
    depth_of = np.zeros(most, np.int64)
    count = _children(after, ends, np.arange(size), size, 0, match, 1.0, table, before, min_prob, opened, 0)
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
        first = count
        if depth < room:
            count = _children(
                after, ends, opened[2][best], opened[3][best], depth, match, prob, table,
                np.uint32(opened[0][best]), min_prob, opened, first,
            )  # fmt: skip
        for at in range(first, count):
            parent_of[at], depth_of[at] = taken, depth
        taken += 1
    return taken


@njit(cache=True, nogil=True)
def grow_rows(
    address,  # of the tables
    slots,  # int32[n]
    budgets,  # int32[n]
    min_probs,  # float64[n], or [0] where that of the settings counts
    chains,  # tokens, probs, heads of the chains: a DraftBatch
    tokens,  # int32[n, max_budget] out, and so on: a DraftTree
    parents,
    probs,
    sizes,
):
    arena, rows, rungs = requests_of(address)
    live_mem, live_rows, _, spaces, frozen_mem, frozen_row, _ = corpora_of(address)
    settings, chances, odds, _ = rule_of(address)
    lessons = lessons_of(address)[0]
    limits = limits_of(settings)
    of_chains, probs_of_chains, heads = chains
    numbers = np.empty((3 + tokens.shape[1], CANDIDATES), np.int64)
    hashes = np.empty(rungs.size, np.uint64)
    for i in range(slots.size):
        if heads[0, i] == 0:
            continue
        match, source, own = heads[1, i], heads[2, i], rows[slots[i]]
        if source > SOURCE_FROZEN:
            sizes[i] = heads[0, i]
            for j in range(sizes[i]):
                tokens[i, j], parents[i, j], probs[i, j] = of_chains[i, j], j - 1, probs_of_chains[i, j]
            continue
        is_own = source == SOURCE_REQUEST
        mem, row = arena, own
        if source == SOURCE_FROZEN:
            mem, row = frozen_mem, frozen_row
        elif not is_own:
            mem, row = live_mem, live_rows[spaces[slots[i]]]
        usable = stack_hashes(arena, own, own[KNOWN] - 1, rungs, hashes)
        text = mem, row, rungs, hashes, usable, arena, own, is_own
        size = _winners(text, limits, match, np.int64(budgets[i]), numbers)
        least = min_probs[i] if min_probs.size else settings[6]
        out = tokens[i], parents[i], probs[i]
        table = chances[2 * lessons[slots[i], CLASS] + (0 if is_own else 1)], odds
        before = token_at(arena, own, own[KNOWN] - 1)
        room = room_of(limits, match, np.int64(budgets[i]))
        sizes[i] = _grow(numbers[3:], numbers[2], size, match, room, budgets[i], table, before, least, out)


@njit(cache=True, nogil=True)
def _winners(text, limits, match, budget, numbers):
    """The occurrences that match at least ``match`` tokens come first, and are read on; how many."""
    places, matches = numbers[0], numbers[1]
    mem, row, rungs, hashes, usable, arena, own, is_own = text
    count = gather(mem, row, rungs, hashes, usable, arena, own, is_own, limits, places, matches)
    order(places, matches, count)
    size = 0
    while size < count and matches[size] >= match:
        size += 1
    read_on(mem, row, places, matches, size, limits, budget, numbers[3:], numbers[2])
    return size
