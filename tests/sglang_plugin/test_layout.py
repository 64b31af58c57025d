"""Masks and links of drafts, against the plain reading of them."""

import numpy as np
import pytest
import torch
from specctl_sglang.compat import verify_block
from specctl_sglang.compat.verify_block import VerifyBlock
from specctl_sglang.proposers.layout import Drafts, Emitted, Places, block_bytes, cut, lay_out, limit_tree
from support.plain_layout import tree_layout

STRIDE = 1000
LAST = 7
NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])


def emitted_of(lengths):
    count = len(lengths)
    tokens = np.tile(np.array([99, LAST, 99], np.int32), (count, 1))
    return Emitted(np.array(lengths, np.int64), tokens, np.full(count, 2, np.int64))


def laid_out(drafts, lengths, has_mask_at=True):
    count = len(lengths)
    # What a batch before has left is written over.
    memory = np.full(block_bytes(count, drafts.width, has_mask_at=has_mask_at) + 64, 0xA5, np.uint8)
    places = Places.of(memory, count, drafts.width, has_mask_at=has_mask_at)
    lay_out(drafts, emitted_of(lengths), np.arange(1, count + 1), STRIDE, places)
    assert (memory[places.block.size :] == 0xA5).all()
    return places


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


def check(drafts, parents):
    width, sizes = drafts.width, drafts.sizes
    lengths = [3 * i + 1 for i in range(len(sizes))]
    places = laid_out(drafts, lengths)
    same = tree_layout(drafts.tokens, parents, sizes, width)
    assert np.array_equal(drafts.drafted, same.drafted)
    assert np.array_equal(places.next_token, same.next_token)
    assert np.array_equal(places.next_sibling, same.next_sibling)
    assert np.array_equal(places.mask, same.mask)
    for i, length in enumerate(lengths):
        taken = min(sizes[i], width - 1)
        children = {place: [] for place in range(width)}
        assert places.tokens[i, 0] == LAST
        assert places.slots[i].tolist() == [(i + 1) * STRIDE + length + place for place in range(width)]
        for node in range(taken):
            children[parents[i, node] + 1].append(node + 1)
            assert places.tokens[i, node + 1] == drafts.tokens[i, node]
            assert np.flatnonzero(places.mask[i, node + 1]).tolist() == sorted(path(parents[i], node))
            assert places.positions[i, node + 1] == length + len(path(parents[i], node)) - 1
        for place in range(width):
            linked, at = [], places.next_token[i, place]
            while at != -1:
                linked.append(at)
                at = places.next_sibling[i, at]
            assert linked == children[place]
        for place in range(taken + 1, width):
            assert np.flatnonzero(places.mask[i, place]).tolist() == [0, place]
            assert (places.tokens[i, place], places.positions[i, place]) == (0, length)


@pytest.mark.parametrize(
    ("requests", "columns", "width"),
    [(1, 1, 2), (3, 7, 8), (5, 7, 4), (4, 3, 8), (33, 16, 17)],
    ids=["one", "full", "cut", "padded", "many"],
)
def test_trees(requests, columns, width):
    nodes, parents, sizes = random_trees(requests, requests, columns)
    check(Drafts(nodes, parents, sizes, width), parents)


@pytest.mark.parametrize("width", [1, 2, 5, 8, 12])
def test_a_chain_is_a_tree_with_one_branch(width):
    sizes = np.array([0, 1, 4, 7], np.int32)
    nodes = np.arange(1, 29, dtype=np.int32).reshape(4, 7)
    parents = np.tile(np.arange(-1, 6, dtype=np.int32), (4, 1))
    check(Drafts(nodes, None, sizes, width), parents)
    check(Drafts(nodes, parents, sizes, width), parents)


def test_no_request_has_a_draft():
    drafts = Drafts.none(2, 3)
    places = laid_out(drafts, [4, 6])
    assert drafts.drafted.tolist() == [0, 0]
    assert (places.next_token == -1).all()


def test_a_request_whose_row_was_never_written_is_padding():
    emitted = Emitted(np.array([5, 6]), np.array([[3, 4], [8, 9]], np.int32), np.array([0, 2]))
    assert emitted.last.tolist() == [3, 9]


@pytest.mark.parametrize("deepest", [1, 2, 12])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_branches_and_levels_are_limited_with_all_that_hangs_from_them(most, deepest):
    nodes, parents, sizes = random_trees(9, 20, 12)
    new_nodes, new_parents, new_sizes = limit_tree(nodes, parents, sizes, most, deepest)
    for i in range(20):
        kept, children = {-1: -1}, {}
        for node in range(sizes[i]):
            parent = parents[i, node]
            is_shallow = len(path(parents[i], node)) - 1 <= deepest
            if parent in kept and children.get(parent, 0) < most and is_shallow:
                children[parent] = children.get(parent, 0) + 1
                at = len(kept) - 1
                assert (new_nodes[i, at], new_parents[i, at]) == (nodes[i, node], kept[parent])
                kept[node] = at
        assert new_sizes[i] == len(kept) - 1


@pytest.mark.parametrize("width", [1, 4, 13])
def test_how_deep_drafts_are(width):
    nodes, parents, sizes = random_trees(5, 20, 12)
    depths = Drafts(nodes, parents, sizes, width).depths
    for i in range(20):
        taken = min(sizes[i], width - 1)
        assert depths[i] == max((len(path(parents[i], node)) - 1 for node in range(taken)), default=0)
    chains = Drafts(nodes, None, sizes, width)
    assert chains.depths.tolist() == chains.drafted.tolist()


def test_a_wider_draft_is_cut_to_its_first_places():
    nodes, parents, _ = random_trees(4, 6, 11)
    sizes = np.full(6, 11, np.int32)
    wide = tree_layout(nodes, parents, sizes, 12)
    narrow = cut(wide.tokens, wide.mask, 5)
    assert (narrow.width, narrow.sizes.tolist()) == (5, [4] * 6)
    assert np.array_equal(narrow.tokens, nodes[:, :4])
    assert np.array_equal(narrow.parents, parents[:, :4])
    assert cut(wide.tokens, wide.mask, 1).tokens.shape == (6, 0)


@DEVICES
@pytest.mark.parametrize("most", [0, 2**16], ids=["on the device", "on the host"])
@pytest.mark.parametrize("lengths", [[1], [3, 1, 40], [7] * 33], ids=["one", "odd", "many"])
def test_the_mask_sees_all_of_the_context(lengths, device, most, monkeypatch):
    width = 5
    nodes, parents, sizes = random_trees(2, len(lengths), width - 1)
    tree = torch.from_numpy(tree_layout(nodes, parents, sizes, width).mask)
    want = torch.cat(
        [
            torch.cat([torch.ones((width, length), dtype=torch.bool), tree[i]], dim=1).flatten()
            for i, length in enumerate(lengths)
        ]
    )
    monkeypatch.setattr(verify_block, "WHOLE_MOST", most)
    block = VerifyBlock(device, 40, width, has_context=True)
    rows = torch.arange(len(lengths))
    # The memory is as a larger batch has left it.
    block.send(Drafts.none(40, width), emitted_of([9] * 40), torch.arange(40), STRIDE, 360)
    sent = Drafts(nodes, parents, sizes, width), emitted_of(lengths), rows, STRIDE, sum(lengths)
    places, mask = block.send(*sent)
    assert torch.equal(mask.cpu(), want)
    assert (places.mask_at.numel() == 0) == (most > 0)


@DEVICES
def test_a_batch_reaches_the_device_whole(device):
    """Batches of other shapes before it, on the same memory; a mask without contexts, as on a CPU."""
    block = VerifyBlock(device, 6, 9, has_context=False)
    for requests, width in ((6, 9), (1, 1), (3, 5), (6, 3)):
        nodes, parents, sizes = random_trees(width, requests, 8)
        drafts, lengths = Drafts(nodes, parents, sizes, width), list(range(1, requests + 1))
        rows = torch.arange(1, requests + 1, dtype=torch.int32)
        places, mask = block.send(drafts, emitted_of(lengths), rows, STRIDE, sum(lengths))
        want = laid_out(drafts, lengths, has_mask_at=False)
        for name in ("tokens", "positions", "next_token", "next_sibling", "slots", "mask"):
            assert np.array_equal(getattr(places, name).cpu().numpy().ravel(), getattr(want, name).ravel()), (
                name
            )
        assert places.index.tolist() == np.arange(requests * width).reshape(requests, width).tolist()
        assert mask is places.mask
        assert places.next_token.is_contiguous()
