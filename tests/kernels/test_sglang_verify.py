"""What the SGLang plugin gives for a verified batch, against SGLang's own words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specctl_kernels.verify_rejection.reference import distribution
from specctl_sglang.compat.cpu_stand_ins import verify_tree_greedy_cpu
from specctl_sglang.compat.verification import verified
from support.sglang_batches import TOP_K_ALL, sampling_of, trees
from support.verify_tests import LEAST_CHANCE, chi_square_chance, poison_new_memory

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = ["chain", "star", "binary", "random"]


poisoned = pytest.fixture(autouse=True)(poison_new_memory)


def moved(given: SimpleNamespace) -> SimpleNamespace:
    tensors = {k: v.to(DEVICE) for k, v in vars(given).items() if isinstance(v, torch.Tensor)}
    return type(given)(**(vars(given) | tensors))


def ours(drafts: Any, sampling: Any, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    given = logits.to(DEVICE)
    before = given.clone()
    found = tuple(result.cpu() for result in verified(moved(drafts), moved(sampling), given))
    assert torch.equal(before.nan_to_num(), given.nan_to_num()), "the logits are only read"
    assert [result.dtype for result in found] == [torch.int32] * 3
    predict, counts, index = found
    return predict, counts - 1, index


def by_sglang(drafts: Any, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """target: int[requests * rows], the target's token behind each row."""
    requests, rows = drafts.retrieve_next_token.shape
    predict = torch.zeros(requests * rows, dtype=torch.int32)
    index = torch.full((requests, drafts.max_tree_depth), -1, dtype=torch.int32)
    accepted = torch.empty(requests, dtype=torch.int32)
    verify_tree_greedy_cpu(
        predicts=predict, accept_index=index, accept_token_num=accepted,
        candidates=drafts.draft_token.view(requests, rows), retrive_index=drafts.retrieve_index,
        retrive_next_token=drafts.retrieve_next_token, retrive_next_sibling=drafts.retrieve_next_sibling,
        target_predict=target.view(requests, rows),
    )  # fmt: skip
    return predict, accepted, index


def first_largest(logits: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(logits.float().numpy().argmax(-1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("requests", "rows", "vocabulary"), [(1, 1, 7), (1, 2, 3), (3, 5, 4), (7, 8, 4), (4, 13, 3), (2, 9, 4099)]
)
def test_greedy_batches_are_as_sglang_writes_them(
    requests: int, rows: int, vocabulary: int, shape: str
) -> None:
    torch.manual_seed(rows + requests)
    drafts = trees(requests, rows, min(vocabulary, 4), shape=shape)
    logits = torch.randint(0, 3, (requests * rows, vocabulary)).to(torch.float32)
    logits[:, :4] += 1
    found = ours(drafts, sampling_of(requests, top_k=[1] * requests), logits)
    for got, want in zip(found, by_sglang(drafts, first_largest(logits)), strict=True):
        assert got.tolist() == want.tolist()


def test_a_path_ends_at_the_depth_that_the_engine_has_room_for() -> None:
    torch.manual_seed(0)
    for depth in (1, 3, 9):
        drafts = trees(4, 6, 2, shape="chain", depth=depth)
        logits = torch.nn.functional.one_hot(drafts.draft_token.roll(-1), 2).float()
        found = ours(drafts, sampling_of(4, top_k=[1] * 4), logits)
        want = by_sglang(drafts, first_largest(logits))
        assert found[1].tolist() == want[1].tolist()
        assert found[2].tolist() == want[2].tolist()
        for index, accepted in zip(found[2].tolist(), found[1].tolist(), strict=True):
            for place in index[: accepted + 1]:
                assert found[0][place] == want[0][place]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_seeds", [False, True], ids=["drawn", "given"])
def test_of_a_mixed_batch_the_greedy_and_the_certain_requests_are_as_sglang_writes_them(
    shape: str, has_seeds: bool
) -> None:
    """Greedy, almost cold, cut to one token by top-p, cut to one by min-p."""
    torch.manual_seed(3)
    requests, rows = 8, 7
    drafts = trees(requests, rows, 4, shape=shape)
    order = torch.rand(requests * rows, 33).argsort(-1)
    logits = -order.to(torch.float32)  # without ties
    logits = torch.where(logits == 0, 1.0, logits)
    sampling = sampling_of(
        requests,
        temperature=[1.0, 1e-3, 1.5, 1.2] * 2,
        top_k=[1, TOP_K_ALL, TOP_K_ALL, TOP_K_ALL] * 2,
        top_p=[1.0, 1.0, 1e-6, 1.0] * 2,
        min_p=[0.0, 0.0, 0.0, 1.0] * 2,
        seeds=torch.arange(requests) if has_seeds else None,
    )
    found = ours(drafts, sampling, logits)
    for got, want in zip(found, by_sglang(drafts, first_largest(logits)), strict=True):
        assert got.tolist() == want.tolist()


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.3}], ids=str)
def test_sampled_requests_follow_the_targets_law(options: dict[str, float]) -> None:
    """The first token of many requests with two drafts for it, every third with one."""
    torch.manual_seed(5)
    copies = 2000 if DEVICE.type == "cuda" else 120
    drafts = trees(copies, 3, 5, shape="star")
    drafts.draft_token = torch.tensor([0, 1, 2]).repeat(copies)
    logits = torch.tensor([[0.0, 1.0, 0.5, 1.5, -1.0]]).repeat(copies * 3, 1)
    cuts = {name: [value] * copies for name, value in options.items()}
    sampling = sampling_of(copies, temperature=[0.8] * copies, **cuts)
    predict, accepted, index = ours(drafts, sampling, logits)
    assert index[:, 0].tolist() == list(range(0, copies * 3, 3))
    seen = torch.bincount(predict[index[:, 0].long()].long(), minlength=5)
    law = distribution(logits[0], 0.8, **options)
    assert chi_square_chance(seen, law.double()) > LEAST_CHANCE
    assert 0 < int(accepted.sum()) < copies, "some drafts are accepted, not all"


def test_seeds_of_their_own_repeat_and_drawn_ones_do_not() -> None:
    torch.manual_seed(7)
    drafts, logits = trees(16, 4, 50, shape="chain"), torch.zeros(64, 50)
    own = sampling_of(16, seeds=torch.arange(16))
    assert ours(drafts, own, logits)[0].tolist() == ours(drafts, own, logits)[0].tolist()
    drawn = sampling_of(16)
    assert ours(drafts, drawn, logits)[0].tolist() != ours(drafts, drawn, logits)[0].tolist()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_request_without_a_distribution_gets_a_token_of_the_vocabulary() -> None:
    torch.manual_seed(9)
    drafts, logits = trees(3, 4, 9, shape="chain"), torch.randn(12, 9)
    logits[4:8] = float("nan")
    predict, accepted, index = ours(drafts, sampling_of(3), logits)
    assert (int(accepted[1]), index[1].tolist(), int(predict[4])) == (0, [4, -1, -1, -1], 0)
    assert int(predict.min()) >= 0
    greedy = ours(drafts, sampling_of(3, top_k=[1] * 3), logits)
    assert (int(greedy[1][1]), index[1].tolist()) == (0, [4, -1, -1, -1])
    assert 0 <= int(greedy[0][4]) < 9
