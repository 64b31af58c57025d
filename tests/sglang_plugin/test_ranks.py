"""Ranks of accepted tokens, against the plain reading of trees."""

import numpy as np
import pytest
from specctl_sglang.proposers.layout import Drafts
from specctl_sglang.proposers.ranks import ranks_of_nodes, ranks_of_tokens


def random_trees(seed, requests, columns):
    """Siblings have tokens of their own."""
    rng = np.random.default_rng(seed)
    parents = np.array([[rng.integers(-1, c) if c else -1 for c in range(columns)] for _ in range(requests)])
    tokens = np.tile(rng.permutation(columns) + 100, (requests, 1))
    sizes = rng.integers(0, columns + 1, requests)
    return Drafts(*(part.astype(np.int32) for part in (tokens, parents, sizes)), columns + 1)


def random_path(rng, parents, size):
    """Nodes from the root down, a part of the tree."""
    path, node = [], -1
    while True:
        children = [child for child in range(size) if parents[child] == node]
        if not children or rng.random() < 0.2:
            return path
        node = int(rng.choice(children))
        path.append(node)


def plain_ranks(drafts, paths, depth, topk):
    counts = np.zeros((depth, topk), np.int64)
    for i, path in enumerate(paths):
        node = -1
        for level, child in enumerate(path[:depth]):
            siblings = [c for c in range(drafts.drafted[i]) if drafts.parents[i, c] == node]
            counts[level, min(siblings.index(child), topk - 1)] += 1
            node = child
    return counts


@pytest.mark.parametrize(
    ("requests", "columns", "depth", "topk"), [(1, 1, 1, 2), (5, 8, 4, 3), (33, 31, 6, 8)]
)
def test_ranks_of_a_tree_on_the_host(requests, columns, depth, topk):
    drafts, rng = random_trees(columns, requests, columns), np.random.default_rng(1)
    paths = [random_path(rng, drafts.parents[i], drafts.drafted[i])[:depth] for i in range(requests)]
    emitted = np.full((requests, columns + 1), 7, np.int32)
    for i, path in enumerate(paths):
        emitted[i, : len(path)] = drafts.tokens[i, path]
    accepted = np.array([len(path) for path in paths])
    found = ranks_of_tokens(drafts, emitted, accepted, (depth, topk))
    assert np.array_equal(found, plain_ranks(drafts, paths, depth, topk))
    assert found.sum() == accepted.sum() > 0 or columns == 1


def test_tokens_that_are_no_drafts_have_no_rank():
    drafts = random_trees(3, 2, 6)
    nothing = ranks_of_tokens(drafts, np.zeros((2, 7), np.int32), np.array([3, 3]), (4, 2))
    assert nothing.sum() == 0


def test_ranks_of_eagles_nodes():
    """Three branches: the first pass made 0, 1, 2, the second one 3 to 11, three after each of those."""
    made = np.array([[0, 1, 3, 4, 12], [0, 2, 5, 9, 10]])
    nodes = np.array([[0, 1, 3, -1], [6, 8, 10, -1]], np.int32)
    found = ranks_of_nodes(made, nodes, np.array([2, 2]), (3, 3))
    # Of the first request 0 and 3, of the second one 2 and 9.
    assert found.tolist() == [[1, 0, 1], [2, 0, 0], [0, 0, 0]]


def test_only_accepted_nodes_count():
    made = np.array([[0, 1, 3, 4], [0, 1, 3, 4]])
    nodes = np.array([[0, 2, 4, -1], [5, -1, -1, -1]], np.int32)
    assert ranks_of_nodes(made, nodes, np.array([1, 0]), (3, 3)).tolist() == [[0, 1, 0], [0] * 3, [0] * 3]
    assert ranks_of_nodes(made[:, :0], nodes[:, :1], np.array([0, 0]), (1, 2)).tolist() == [[0, 0]]
