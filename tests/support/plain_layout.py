"""The places of drafts, written plainly in numpy: what the compiled layout is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["PlainLayout", "tree_layout"]

Ints = npt.NDArray[np.int64]
_NONE = -1


@dataclass(frozen=True, slots=True)
class PlainLayout:
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


def tree_layout(
    nodes: npt.NDArray[np.int32], parents: npt.NDArray[np.int32], sizes: npt.NDArray[np.int32], width: int
) -> PlainLayout:
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
    return PlainLayout(tokens, depths, next_token, next_sibling, mask, taken)


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
