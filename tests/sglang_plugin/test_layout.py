"""Masks and links of drafts, against the plain reading of them."""

import numpy as np
import pytest
import torch
from specctl_sglang.compat.verify_masks import full_mask
from specctl_sglang.proposers.layout import chain_layout, cut, limit_branches, tree_layout


def random_trees(seed, requests, columns):
    rng = np.random.default_rng(seed)
    nodes = rng.integers(1, 100, (requests, columns)).astype(np.int32)
    parents = np.array(
        [[rng.integers(-1, column) if column else -1 for column in range(columns)] for _ in range(requests)],
        np.int32,
    )
    sizes = rng.integers(0, columns + 1, requests).astype(np.int32)
    past = np.arange(columns)[None, :] >= sizes[:, None]
    nodes[past], parents[past] = 0, -1
    return nodes, parents, sizes


def path(parents, node):
    """The node and what is above it, the target's own token (place 0) included."""
    seen = [0]
    while node >= 0:
        seen.append(node + 1)
        node = parents[node]
    return seen


def check(layout, nodes, parents, sizes, width):
    for i in range(len(sizes)):
        taken = min(sizes[i], width - 1)
        assert layout.drafted[i] == taken
        children = {place: [] for place in range(width)}
        for node in range(taken):
            children[parents[i, node] + 1].append(node + 1)
            assert layout.tokens[i, node + 1] == nodes[i, node]
            assert np.flatnonzero(layout.mask[i, node + 1]).tolist() == sorted(path(parents[i], node))
            assert layout.depths[i, node + 1] == len(path(parents[i], node)) - 1
        for place in range(width):
            told, at = [], layout.next_token[i, place]
            while at != -1:
                told.append(at)
                at = layout.next_sibling[i, at]
            assert told == children[place]
        for place in range(taken + 1, width):
            assert np.flatnonzero(layout.mask[i, place]).tolist() == [0, place]
            assert (layout.tokens[i, place], layout.depths[i, place]) == (0, 0)


@pytest.mark.parametrize(
    ("requests", "columns", "width"),
    [(1, 1, 2), (3, 7, 8), (5, 7, 4), (4, 3, 8), (33, 16, 17)],
    ids=["one", "full", "cut", "padded", "many"],
)
def test_trees(requests, columns, width):
    nodes, parents, sizes = random_trees(requests, requests, columns)
    check(tree_layout(nodes, parents, sizes, width), nodes, parents, sizes, width)


@pytest.mark.parametrize("width", [1, 2, 5, 8, 12])
def test_a_chain_is_a_tree_with_one_branch(width):
    sizes = np.array([0, 1, 4, 7], np.int32)
    nodes = np.arange(1, 29, dtype=np.int32).reshape(4, 7)
    parents = np.broadcast_to(np.arange(-1, 6, dtype=np.int32), (4, 7))
    chain, tree = chain_layout(nodes, sizes, width), tree_layout(nodes, parents, sizes, width)
    check(chain, nodes, parents, sizes, width)
    for name in ("tokens", "depths", "next_token", "next_sibling", "mask", "drafted"):
        assert np.array_equal(getattr(chain, name), getattr(tree, name)), name


def test_no_request_has_a_draft():
    layout = chain_layout(np.zeros((2, 0), np.int32), np.zeros(2, np.int32), 3)
    assert layout.drafted.tolist() == [0, 0]
    assert (layout.next_token == -1).all()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_branches_are_limited_with_all_that_hangs_from_them(most):
    nodes, parents, sizes = random_trees(9, 20, 12)
    new_nodes, new_parents, new_sizes = limit_branches(nodes, parents, sizes, most)
    for i in range(20):
        kept, children = {-1: -1}, {}
        for node in range(sizes[i]):
            parent = parents[i, node]
            if parent in kept and children.get(parent, 0) < most:
                children[parent] = children.get(parent, 0) + 1
                at = len(kept) - 1
                assert (new_nodes[i, at], new_parents[i, at]) == (nodes[i, node], kept[parent])
                kept[node] = at
        assert new_sizes[i] == len(kept) - 1


def test_a_wider_draft_is_cut_to_its_first_places():
    nodes, parents, _ = random_trees(4, 6, 11)
    sizes = np.full(6, 11, np.int32)
    parents = np.array([[max(p, -1) for p in row] for row in parents], np.int32)
    wide = tree_layout(nodes, parents, sizes, 12)
    narrow, want = cut(wide.tokens, wide.mask, 5), tree_layout(nodes, parents, sizes, 5)
    for name in ("tokens", "depths", "next_token", "next_sibling", "mask", "drafted"):
        assert np.array_equal(getattr(narrow, name), getattr(want, name)), name


@pytest.mark.parametrize("lengths", [[1], [3, 1, 40], [7] * 33], ids=["one", "odd", "many"])
def test_the_full_mask_sees_all_of_the_context(lengths):
    width = 5
    nodes, parents, sizes = random_trees(2, len(lengths), width - 1)
    tree = torch.from_numpy(tree_layout(nodes, parents, sizes, width).mask)
    want = torch.cat(
        [
            torch.cat([torch.ones((width, length), dtype=torch.bool), tree[i]], dim=1).flatten()
            for i, length in enumerate(lengths)
        ]
    )
    held = torch.tensor(lengths)
    assert torch.equal(full_mask(tree, held, held), want)
