"""Drafts of a batch as SGLang verifies them: one width for all, and who sees whom as a mask.

numpy over the whole batch at once. Place 0 of each row is the target's own last token. Places that hold no
draft are linked from nowhere, so that none of them can be accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["VerifyLayout", "chain_layout", "cut", "limit_branches", "tree_layout"]

Ints = npt.NDArray[np.int64]
_NONE = -1


@dataclass(frozen=True, slots=True)
class VerifyLayout:
    """n requests, w places each."""

    tokens: Ints  # [n, w]
    depths: Ints  # [n, w] 0 for the first place and for places without a draft
    next_token: Ints  # [n, w] first child, -1: none
    next_sibling: Ints  # [n, w] next child of the same parent, -1: none
    mask: npt.NDArray[np.bool_]  # [n, w, w] whether the row's place sees the column's
    drafted: Ints  # [n] places that hold a draft

    @property
    def width(self) -> int:
        return int(self.tokens.shape[1])


def chain_layout(drafts: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32], width: int) -> VerifyLayout:
    """drafts int32[n, k], lengths int32[n]; at most width - 1 tokens of each are taken. The first column of
    ``tokens`` is 0: the target's own token may be known on the device only."""
    requests = lengths.shape[0]
    taken = np.minimum(lengths, width - 1).astype(np.int64)
    place = np.arange(width)
    holds = place[None, :] <= taken[:, None]
    tokens = np.zeros((requests, width), np.int64)
    columns = min(width - 1, drafts.shape[1])
    tokens[:, 1 : 1 + columns] = drafts[:, :columns]
    tokens[~holds] = 0
    depths = np.where(holds, place, 0).astype(np.int64)
    next_token = np.where(place[None, :] < taken[:, None], place + 1, _NONE).astype(np.int64)
    below = (place[None, :] <= place[:, None])[None] & holds[:, :, None] & holds[:, None, :]
    mask = below | np.eye(width, dtype=np.bool_)[None]
    mask[:, :, 0] = True
    return VerifyLayout(tokens, depths, next_token, np.full_like(next_token, _NONE), mask, taken)


def tree_layout(
    nodes: npt.NDArray[np.int32], parents: npt.NDArray[np.int32], sizes: npt.NDArray[np.int32], width: int
) -> VerifyLayout:
    """nodes and parents int32[n, k] with a node after its parent, -1: the target's own token; sizes int32[n].

    At most width - 1 nodes of each are taken, which are a tree as well.
    """
    requests, rows = sizes.shape[0], np.arange(sizes.shape[0])
    taken = np.minimum(sizes, width - 1).astype(np.int64)
    columns = min(width - 1, nodes.shape[1])
    tokens = np.zeros((requests, width), np.int64)
    depths = np.zeros((requests, width), np.int64)
    above = np.full((requests, width), _NONE, np.int64)
    tokens[:, 1 : 1 + columns] = nodes[:, :columns]
    above[:, 1 : 1 + columns] = parents[:, :columns] + 1
    none = np.arange(width)[None, :] > taken[:, None]
    tokens[none], above[none] = 0, _NONE
    mask = np.repeat(np.eye(width, dtype=np.bool_)[None], requests, axis=0)
    for place in range(1, width):  # parents come first; each pass is one place of every request
        parent = above[:, place]
        holds = parent >= 0
        depths[:, place] = np.where(holds, depths[rows, parent] + 1, 0)
        mask[:, place] |= mask[rows, parent] & holds[:, None]
    mask[:, :, 0] = True
    next_token, next_sibling = _links(above)
    return VerifyLayout(tokens, depths, next_token, next_sibling, mask, taken)


def _links(parents: Ints) -> tuple[Ints, Ints]:
    """First child and next sibling of each place, both int64[n, w], by the place of its parent."""
    first_child, next_sibling = np.full_like(parents, _NONE), np.full_like(parents, _NONE)
    rows = np.arange(parents.shape[0])
    for place in range(parents.shape[1] - 1, 0, -1):
        parent = parents[:, place]
        holds = parent >= 0
        some = rows[holds]
        next_sibling[some, place] = first_child[some, parent[holds]]
        first_child[some, parent[holds]] = place
    return first_child, next_sibling


def limit_branches(
    nodes: npt.NDArray[np.int32], parents: npt.NDArray[np.int32], sizes: npt.NDArray[np.int32], most: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The trees with at most so many children of each node, the first ones, and what hangs from them."""
    requests, columns = nodes.shape
    rows = np.arange(requests)
    kept = np.zeros((requests, columns + 1), np.bool_)
    kept[:, -1] = True  # parent -1
    children = np.zeros((requests, columns + 1), np.int64)
    place_of = np.full((requests, columns + 1), _NONE, np.int64)
    new_nodes, new_parents = np.zeros_like(nodes), np.full_like(parents, _NONE)
    new_sizes = np.zeros_like(sizes)
    for column in range(columns):
        parent = parents[:, column]
        stays = (column < sizes) & kept[rows, parent] & (children[rows, parent] < most)
        some = rows[stays]
        children[some, parent[stays]] += 1
        kept[some, column] = True
        at = new_sizes[stays]
        new_nodes[some, at] = nodes[stays, column]
        new_parents[some, at] = place_of[some, parent[stays]]
        place_of[some, column] = at
        new_sizes[stays] += 1
    return new_nodes, new_parents, new_sizes


def cut(tokens: Ints, mask: npt.NDArray[np.bool_], width: int) -> VerifyLayout:
    """The first places of wider drafts: tokens int64[n, W], mask bool[n, W, W], a place after its parent.

    For proposers of SGLang's own, which fill every place.
    """
    tokens, mask = tokens[:, :width], mask[:, :width, :width]
    places = np.arange(width)
    ancestors = mask & (places[None, :] < places[:, None])[None]
    parents = np.where(ancestors, places, _NONE).max(-1)
    next_token, next_sibling = _links(parents)
    drafted = np.full(tokens.shape[0], width - 1, np.int64)
    return VerifyLayout(tokens, ancestors.sum(-1), next_token, next_sibling, mask, drafted)
