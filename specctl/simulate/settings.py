"""The settings that a simulated engine has prepared: chains and trees of drafted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specctl.contract.setting import Setting

__all__ = ["Prepared", "chains", "index_of", "prepared_of", "setting_name"]

Ints = npt.NDArray[np.int64]

# By which a tree's nodes are chosen, as a draft head would: it does not know the law of the scenario.
FIRST_CHOICE, RUNNER_UP, RUNNER_UP_RATIO = 0.6, 0.4, 0.5


class Prepared(NamedTuple):
    """Arrays by setting. Node 0 is the root, the last token; every other node is a drafted token.

    A node's parent comes before it. ``level``: 1 for the root's children. A chain is a tree of one branch.
    """

    depth: Ints
    topk: Ints
    width: Ints  # positions verified for a request, the root's included
    nodes: Ints  # drafted tokens
    parent: Ints  # [setting, node]
    rank: Ints  # [setting, node]: which choice of the draft, 0 the first
    level: Ints  # [setting, node]
    children: Ints  # [setting, node, rank]; -1: none


class _Node(NamedTuple):
    parent: int
    rank: int
    level: int
    score: float


def chains(num_speculative_tokens_max: int) -> tuple[Setting, ...]:
    """Every chain up to this depth; the first one is off."""
    return tuple(Setting(num_speculative_tokens=depth) for depth in range(num_speculative_tokens_max + 1))


def setting_name(setting: Setting) -> str:
    """``off``, ``static 3``, or ``static 5 top 3 width 8``."""
    depth = setting.num_speculative_tokens
    if depth == 0:
        return "off"
    if setting.tree_topk == 1:
        return f"static {depth}"
    return f"static {depth} top {setting.tree_topk} width {setting.width_tokens}"


def index_of(setting: Setting, settings: Sequence[Setting]) -> int:
    """Place of the prepared setting that a table's row or sample means. ValueError: none is like it."""
    for at, one in enumerate(settings):
        if (
            one.num_speculative_tokens == setting.num_speculative_tokens
            and one.tree_topk == setting.tree_topk
            and setting.verify_width_tokens in (None, one.width_tokens)
        ):
            return at
    raise ValueError(f"expected one of {len(settings)} prepared settings, got {setting!r}")


def prepared_of(settings: Sequence[Setting]) -> Prepared:
    """ValueError for a width that a tree of that depth and top-k cannot fill."""
    trees = [_nodes(setting) for setting in settings]
    size, most = len(settings), max(len(tree) for tree in trees)
    topk = max(setting.tree_topk for setting in settings)
    parent, rank, level = (np.zeros((size, most), np.int64) for _ in range(3))
    children = np.full((size, most, topk), -1, np.int64)
    for s, tree in enumerate(trees):
        for at, node in enumerate(tree):
            parent[s, at], rank[s, at], level[s, at] = node.parent, node.rank, node.level
            if at:
                children[s, node.parent, node.rank] = at
    return Prepared(
        depth=np.array([one.num_speculative_tokens for one in settings], np.int64),
        topk=np.array([one.tree_topk for one in settings], np.int64),
        width=np.array([one.width_tokens for one in settings], np.int64),
        nodes=np.array([len(tree) - 1 for tree in trees], np.int64),
        parent=parent,
        rank=rank,
        level=level,
        children=children,
    )


def _nodes(setting: Setting) -> list[_Node]:
    """The root and the most likely nodes. At each depth the best ``tree_topk`` nodes get that many children
    each, and of all of them the best fill the width (EAGLE-2, Li et al. 2024, section 4)."""
    root = _Node(0, 0, 0, 1.0)
    found, frontier = [root], [0]
    for level in range(1, setting.num_speculative_tokens + 1):
        added = [
            _Node(at, rank, level, found[at].score * _chance(rank))
            for at in frontier
            for rank in range(setting.tree_topk)
        ]
        first = len(found)
        found += added
        best = sorted(range(len(added)), key=lambda i: -added[i].score)[: setting.tree_topk]
        frontier = [first + i for i in sorted(best)]
    if len(found) < setting.width_tokens:
        raise ValueError(f"verify_width_tokens: expected at most {len(found)}, got {setting.width_tokens}")
    kept = sorted(sorted(range(len(found)), key=lambda i: -found[i].score)[: setting.width_tokens])
    places = {old: new for new, old in enumerate(kept)}
    return [found[old]._replace(parent=places[found[old].parent]) for old in kept]


def _chance(rank: int) -> float:
    return FIRST_CHOICE if rank == 0 else (1 - FIRST_CHOICE) * RUNNER_UP * RUNNER_UP_RATIO ** (rank - 1)
