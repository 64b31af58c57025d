"""Compiled: what the law says of drafts, and what becomes of one."""

from __future__ import annotations

import numpy as np
from numba import njit

from specctl.simulate.compiled import inner
from specctl.simulate.luck import uniform

__all__ = ["accepted_nodes", "expected_tokens", "set_conditional"]


@njit(cache=True)
def set_conditional(law, now_s, batch, conditional):
    """Fill conditional[class, position]: chance that the draft's first choice is accepted, given that the
    position was reached."""
    at = int(now_s / law.bin_s)
    bins = law.conditional.shape[0]
    at = at % bins if law.is_repeated else min(at, bins - 1)
    kept = 1.0
    if law.fall_ratio > 0.0 and batch > 1:
        kept = max(1.0 - law.fall_ratio * np.log2(batch), 0.0)
    # numba compiles an assignment of arrays in 6 s: it writes the message of shapes that differ.
    for kind in range(conditional.shape[0]):
        for position in range(conditional.shape[1]):
            conditional[kind, position] = law.conditional[at, kind, position] * kept


@inner
def _reached(law, prepared, conditional, kind, setting, chance, by_level):
    """by_level[j]: chance that at least j + 1 tokens of a request of this class are accepted."""
    by_level[:] = 0.0
    chance[0] = law.found_ratio
    for node in range(1, prepared.nodes[setting] + 1):
        level, rank = prepared.level[setting, node], prepared.rank[setting, node]
        own = conditional[kind, level - 1]
        if rank > 0:
            own = (1.0 - own) * law.runner_up[kind, rank - 1]
        chance[node] = chance[prepared.parent[setting, node]] * own
        by_level[level - 1] += chance[node]


@njit(cache=True)
def expected_tokens(law, prepared, conditional, ends, chance, by_level, tokens):
    """Fill tokens[setting]: expected emitted tokens of a step.

    ends[class, n]: decoding requests with n output tokens to go; the last column holds all with more.
    """
    tokens[:] = 0.0
    for kind in range(ends.shape[0]):
        members = ends[kind].sum()
        if members == 0:
            continue
        for setting in range(tokens.size):
            _reached(law, prepared, conditional, kind, setting, chance, by_level)
            longer = members - ends[kind, 0]
            tokens[setting] += longer
            for level in range(1, prepared.depth[setting] + 1):
                longer -= ends[kind, level]
                tokens[setting] += longer * by_level[level - 1]


@inner
def _runner_up(shares, luck):
    """Rank of the draft's choice where its first one misses; -1: none of them hits."""
    for at in range(shares.size):
        if luck < shares[at]:
            return at + 1
        luck -= shares[at]
    return -1


@njit(cache=True)
def accepted_nodes(law, prepared, conditional, seed, r, first, kind, setting, ranks):
    """Drafted tokens of request r that are accepted. ``first``: the output token that the draft begins at.

    Fills ``ranks`` by depth where it has room.
    """
    node, accepted = 0, 0
    while prepared.children[setting, node, 0] >= 0:
        luck, chance = uniform(seed, r, first + accepted), conditional[kind, accepted]
        rank = 0
        if luck >= chance:
            rank = _runner_up(law.runner_up[kind], (luck - chance) / (1.0 - chance))
        if rank < 0 or prepared.children[setting, node, rank] < 0:
            break
        node = prepared.children[setting, node, rank]
        if ranks.size:
            ranks[accepted] = rank
        accepted += 1
    return accepted
