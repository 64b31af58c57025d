"""Which of a draft's choices the target accepted: by depth, the rank among the children of one node, 0 for
the draft's first choice. Host arrays alone, of a step whose result has come."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl_sglang.proposers.layout import Drafts, limit_tree

__all__ = ["compile_all", "ranks_of_nodes", "ranks_of_tokens"]

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
_NONE = -1


def ranks_of_nodes(made: Longs, nodes: Ints, accepted: Longs, shape: tuple[int, int]) -> Longs:
    """int64[depth, topk]: accepted tokens by depth and rank, of trees that SGLang's EAGLE has built.

    made      int64[n, w - 1], of each node its number among all that the passes made: topk children after
              topk, the likeliest first
    nodes     int32[n, d + 1], the accepted path as places in the batch's n * w rows; the first is the root
    accepted  int64[n], drafts that were accepted
    shape     depth and topk
    """
    counts = np.zeros(shape, np.int64)
    _count(made, nodes, accepted, counts)
    return counts


def ranks_of_tokens(drafts: Drafts, emitted: Ints, accepted: Longs, shape: tuple[int, int]) -> Longs:
    """The same of trees that were laid out on the host. emitted int32[n, >= accepted]: the step's tokens."""
    counts = np.zeros(shape, np.int64)
    assert drafts.parents is not None
    _follow(drafts.tokens, drafts.parents, drafts.drafted, emitted, accepted, counts)
    return counts


def compile_all() -> None:
    """At start, so that no step has to; later processes find it cached."""
    one, none = np.ones(1, np.int64), np.full((1, 2), _NONE, np.int32)
    ranks_of_nodes(np.zeros((1, 1), np.int64), np.array([[0, 1]], np.int32), one, (1, 2))
    tree = Drafts(*limit_tree(none, none, np.ones(1, np.int32), 2, 2), 3)
    ranks_of_tokens(tree, tree.tokens, tree.depths.astype(np.int64), (1, 2))


@njit(cache=True, nogil=True)
def _count(made, nodes, accepted, counts):
    depth, topk = counts.shape
    width = made.shape[1] + 1
    for i in range(accepted.size):
        for level in range(min(accepted[i], depth)):
            place = nodes[i, level + 1] - i * width
            counts[level, made[i, place - 1] % topk] += 1


@njit(cache=True, nogil=True)
def _follow(tokens, parents, sizes, emitted, accepted, counts):
    depth, topk = counts.shape
    for i in range(sizes.size):
        node = _NONE
        for level in range(min(accepted[i], depth)):
            rank, found = 0, _NONE
            for child in range(node + 1, sizes[i]):
                if parents[i, child] != node:
                    continue
                if tokens[i, child] == emitted[i, level]:
                    found = child
                    break
                rank += 1
            if found == _NONE:
                break
            counts[level, min(rank, topk - 1)] += 1
            node = found
