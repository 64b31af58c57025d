"""Which requests get fewer drafts than the table says."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from specctl_sglang.compat import verification
from specctl_sglang.control.draft_limits import has_own_penalties, penalty_limits, why_batch_rests
from specctl_sglang.proposers.layout import Drafts
from support.sglang_batches import batch_of, sampling_of, trees
from support.tree_batches import links_of


def request(emitted=0, **options):
    without = {
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "min_new_tokens": 0,
    }
    return SimpleNamespace(
        sampling_params=SimpleNamespace(**{**without, **options}), output_ids=[7] * emitted
    )


@pytest.mark.parametrize(
    ("options", "rests"),
    [
        ({}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": -0.5}, True),
        ({"frequency_penalty": 0.5}, True),
        ({"min_new_tokens": 3, "emitted": 2}, True),
        ({"min_new_tokens": 3, "emitted": 3}, False),
    ],
    ids=["none", "repetition", "presence", "frequency", "too short", "long enough"],
)
def test_which_options_end_drafts(options, rests):
    assert has_own_penalties(request(**options)) is rests
    found = penalty_limits([request(), request(**options)], SimpleNamespace(
        acc_additive_penalties=torch.zeros(2, 9), acc_scaling_penalties=None
    ), 5)  # fmt: skip
    assert found == ([5, 0] if rests else None)


def test_without_penalties_in_the_batch_no_request_is_asked():
    sampling = SimpleNamespace(acc_additive_penalties=None, acc_scaling_penalties=None)
    assert penalty_limits([None, None], sampling, 5) is None


@pytest.mark.parametrize(
    ("options", "device", "is_ours", "words"),
    [
        ({"top_k": [1, 1], "min_p": [0.1, 0.1]}, "cpu", False, None),
        ({"min_p": [0.0, 0.0]}, "cuda", False, None),
        ({"min_p": [0.1, 0.0]}, "cuda", True, None),
        ({"min_p": [0.1, 0.0]}, "cuda", False, "without min-p"),
        ({}, "cpu", True, "greedily on a CPU"),
    ],
    ids=["greedy", "no min-p", "verified by ours", "verified by SGLang", "sampled on a CPU"],
)
def test_a_batch_rests_where_its_drafts_would_be_verified_by_another_law(options, device, is_ours, words):
    why = why_batch_rests(sampling_of(2, **options), device, lambda: is_ours)
    assert why is None if words is None else words in why


def test_chains_and_trees_end_at_each_requests_limit():
    tokens = np.arange(9, dtype=np.int32).reshape(3, 3)
    sizes, limits = np.array([3, 2, 3], np.int32), np.array([0, 5, 1], np.int32)
    assert Drafts(tokens, None, sizes, 4).within(limits)[2].tolist() == [0, 2, 1]
    parents = np.array([[-1, 0, -1]] * 3, np.int32)
    kept, above, left = Drafts(tokens, parents, sizes, 4).within(limits)
    assert left.tolist() == [0, 2, 2]
    assert (kept[2, :2].tolist(), above[2, :2].tolist()) == ([6, 8], [-1, -1])


def test_a_verification_ends_each_requests_drafts_at_its_limit(monkeypatch):
    """A tree of two levels: 0 - (1 - 2, 3)."""
    drafts = trees(3, 4, 50)
    one = torch.tensor(links_of([-1, 0, 1, 0])[0])
    links = drafts.retrieve_next_token = one.expand(3, 4).clone()
    drafts.positions = (torch.tensor([[0, 1, 2, 1]]) + torch.tensor([[7], [9], [5]])).flatten()
    batch = batch_of(sampling_of(3))
    batch.specctl_limits = [0, 1, 2]
    seen = []
    monkeypatch.setattr(verification, "_is_asked_for", lambda: False)
    wrapped = verification.wrap_eagle_sample(lambda given, *_: seen.append(given.retrieve_next_token))
    wrapped(drafts, batch, None)
    assert seen[0].tolist() == [[-1] * 4, [1, -1, -1, -1], [1, 2, -1, -1]]
    assert (links == one).all(), "SGLang's own links stay: its buffers serve the next step too"
