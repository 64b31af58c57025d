"""The CPU's stand-ins, against what SGLang's operators of the same names do."""

import numpy as np
import pytest
import torch
from specctl_sglang.compat import cpu_stand_ins as stand_ins
from support.plain_layout import tree_layout

TREE = [10, 11, 12, 13, 14]
PARENTS = [-1, 0, 0, -1, 3]
"""The target's own token, then 10 with 11 and 12 below, and 13 with 14 below."""


def tree():
    nodes, parents = np.array([TREE], np.int32), np.array([PARENTS], np.int32)
    return tree_layout(nodes, parents, np.array([5], np.int32), 6)


@pytest.mark.parametrize(
    ("target", "places"),
    [
        ([10, 12, 0, 7, 0, 0], [0, 1, 3]),
        ([13, 0, 0, 0, 14, 9], [0, 4, 5]),
        ([13, 0, 0, 0, 99, 9], [0, 4]),
        ([99, 10, 11, 12, 13, 14], [0]),
    ],
    ids=["second child", "to a leaf", "half way", "nothing"],
)
def test_the_targets_own_tokens_are_followed_down_the_tree(target, places):
    layout = tree()
    predicts, accepted = torch.zeros(6, dtype=torch.int32), torch.full((1, 6), -1, dtype=torch.int32)
    count = torch.zeros(1, dtype=torch.int32)
    stand_ins.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accepted,
        accept_token_num=count,
        candidates=torch.from_numpy(layout.tokens),
        retrive_index=torch.arange(6)[None],
        retrive_next_token=torch.from_numpy(layout.next_token),
        retrive_next_sibling=torch.from_numpy(layout.next_sibling),
        target_predict=torch.tensor([target]),
    )
    assert int(count) == len(places) - 1
    assert accepted[0].tolist() == places + [-1] * (6 - len(places))
    assert [int(predicts[place]) for place in places] == [target[place] for place in places]


def test_links_are_read_from_the_mask():
    layout = tree()
    positions = torch.zeros(6, dtype=torch.int64)
    links = [torch.zeros((1, 6), dtype=torch.int64) for _ in range(3)]
    stand_ins.reconstruct_indices_from_tree_mask(
        torch.from_numpy(layout.mask).flatten(), torch.tensor([20]), positions, *links, 1, 6
    )
    assert positions.tolist() == (layout.depths[0] + 20).tolist()
    assert links[0].tolist() == [list(range(6))]
    assert links[1].tolist() == layout.next_token.tolist()
    assert links[2].tolist() == layout.next_sibling.tolist()


def test_places_in_the_pool():
    pool = torch.zeros((3, 8), dtype=torch.int32)
    rows, starts, ends = torch.tensor([2, 0]), torch.tensor([1, 0]), torch.tensor([4, 2])
    stand_ins.assign_req_to_token_pool_cpu(rows, pool, starts, ends, torch.tensor([5, 6, 7, 8, 9]), 8)
    assert pool[2].tolist() == [0, 5, 6, 7, 0, 0, 0, 0]
    assert pool[0].tolist()[:3] == [8, 9, 0]
    found = torch.zeros(5, dtype=torch.int64)
    stand_ins.assign_extend_cache_locs_cpu(rows, pool, starts, ends, found, 8)
    assert found.tolist() == [5, 6, 7, 8, 9]
    packed = torch.zeros(4, dtype=torch.int64)
    stand_ins.fill_accept_out_cache_loc_cpu(torch.tensor([[0, 2, -1], [4, -1, -1]]), found, packed)
    assert packed.tolist() == [5, 7, 9, 0]


def test_accepted_rows_of_the_kv_cache_move_together():
    cache = torch.arange(24, dtype=torch.float32).view(8, 3)
    want = cache.clone()
    want[[1, 2]] = cache[[2, 5]]
    pointers, strides = torch.tensor([cache.data_ptr()]), torch.tensor([12])
    stand_ins.copy_all_layer_kv_cache_cpu(pointers, strides, torch.tensor([1, 2]), torch.tensor([2, 5]))
    assert torch.equal(cache, want)


def test_the_last_emitted_token_of_each_request():
    bonus = torch.zeros(2, dtype=torch.int32)
    tokens = torch.tensor([[5, 6, 7], [8, 0, 0]], dtype=torch.int32)
    stand_ins.fill_bonus_tokens_cpu(tokens, torch.tensor([3, 1], dtype=torch.int32), bonus, 3)
    assert bonus.tolist() == [7, 8]


def test_drafts_are_written_behind_the_text_branch_after_branch():
    pool = torch.arange(24, dtype=torch.int32).view(2, 12)
    found = torch.zeros(8, dtype=torch.int64)
    stand_ins.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor([1, 0]), pool, torch.tensor([3, 1]), found, 12, 2, 2
    )
    assert found.tolist() == [15, 16, 17, 18, 1, 2, 3, 4]


def test_eagles_best_drafts_become_a_tree():
    """Two a depth: of the six drafts made, 0 and 1 under the target's token, 2 and 3 under 0, 4 and 5 under
    1, the numbers 0, 1, 3 and 4 were kept; the made ones are ranked 0 for the target's own, then 0 and 1."""
    width = 5
    parents, kept = torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 1, 3, 4]])
    mask, positions = torch.zeros(width * width, dtype=torch.bool), torch.zeros(width, dtype=torch.int64)
    links = [torch.full((1, width), -1) for _ in range(3)]
    stand_ins.build_tree_kernel_efficient_cpu(
        parents, kept, torch.tensor([10]), mask, positions, *links, 2, 2, width, 1
    )
    nodes = np.array([[1, 2, 3, 4]], np.int32)
    same = tree_layout(nodes, np.array([[-1, -1, 0, 1]], np.int32), np.array([4], np.int32), width)
    assert positions.tolist() == (same.depths[0] + 10).tolist()
    assert mask.view(1, width, width).tolist() == same.mask.tolist()
    assert [link.tolist() for link in links] == [
        [list(range(width))], same.next_token.tolist(), same.next_sibling.tolist()
    ]  # fmt: skip


def test_a_mask_of_another_mode_is_refused_by_its_number():
    with pytest.raises(NotImplementedError, match="mode 0"):
        stand_ins.build_tree_kernel_efficient_cpu(*[torch.zeros(1)] * 8, 1, 1, 2, 0)


def test_a_draft_without_its_parent_is_linked_from_nowhere():
    width = 3
    parents, kept = torch.tensor([[-1, 0, 1]]), torch.tensor([[0, 4]])
    mask, positions = torch.zeros(width * width, dtype=torch.bool), torch.zeros(width, dtype=torch.int64)
    links = [torch.full((1, width), -1) for _ in range(3)]
    stand_ins.build_tree_kernel_efficient_cpu(
        parents, kept, torch.tensor([10]), mask, positions, *links, 2, 2, width, 1
    )
    assert links[1].tolist() == [[1, -1, -1]]
    assert links[2].tolist() == [[-1, -1, -1]]
