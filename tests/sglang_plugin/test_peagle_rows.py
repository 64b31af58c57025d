"""How many rows a draft pass has and when it pays, and the last rows that are kept while none runs."""

import pytest
import torch
from specctl_sglang.proposers.peagle_prompts import prompt_rows
from specctl_sglang.proposers.peagle_rows import is_worth_a_pass, rows_of_pass
from specctl_sglang.proposers.recent_rows import RecentRows, chunk

HIDDEN = 3


@pytest.mark.parametrize(
    ("without", "requests", "expected"),
    [(0, 8, False), (1, 8, False), (2, 8, False), (3, 8, True), (8, 8, True), (1, 1, True), (1, 2, True),
     (1, 3, False), (2, 3, True), (0, 0, False), (21, 64, False), (22, 64, True)],
)  # fmt: skip
def test_first_drafts_take_a_pass_where_more_than_a_third_of_the_batch_is_without(
    without, requests, expected
):
    assert is_worth_a_pass(without, requests) is expected


@pytest.mark.parametrize("tau", [3.0, 3.5, 4.0])
def test_that_share_is_where_a_pass_gains_what_it_costs(tau):
    requests, a_pass_in_steps, off_by = 300, 0.25, 0.05
    least = next(m for m in range(requests) if is_worth_a_pass(m, requests))
    assert least / requests == pytest.approx(a_pass_in_steps * tau / (tau - 1), abs=off_by)


@pytest.mark.parametrize("drafts", range(1, 9))
def test_a_pass_holds_all_that_can_be_accepted_and_a_row_for_each_further_draft(drafts):
    assert rows_of_pass(drafts) == (drafts + 1) + (drafts - 1)


@pytest.mark.parametrize(
    ("lengths", "masks", "known", "ends"),
    [([3], 2, [0, 1, 2], [2]), ([1, 3, 2], 2, [0, 3, 4, 5, 8, 9], [0, 3, 5]), ([2, 1], 0, [0, 1, 2], [1, 2])],
)
def test_mask_rows_stand_behind_each_prompt(lengths, masks, known, ends):
    found = prompt_rows(torch.tensor(lengths), sum(lengths), masks)
    assert (found.known.tolist(), found.ends.tolist()) == (known, ends)


def test_kept_rows_come_back_by_their_positions():
    recent = RecentRows(4, 8, HIDDEN, torch.zeros(1))
    row = torch.tensor([3, 1], dtype=torch.int32)
    for at in range(20):
        positions = torch.tensor([at, at + 5])
        recent.put(row, positions, positions * 10, positions[:, None].expand(-1, HIDDEN).float())
    tokens, hidden = recent.take(row, torch.tensor([12, 17]), 8)
    expected = torch.stack([torch.arange(12, 20), torch.arange(17, 25)])
    assert torch.equal(tokens, expected * 10)
    assert torch.equal(hidden[..., 0], expected.float())
    assert recent.nbytes == 4 * 8 * (8 + 4 * HIDDEN)


@pytest.mark.parametrize("missed", [[1], [4], [5, 0, 12, 3], [8, 8], [12, 1]])
def test_chunks_cover_what_was_missed_once_and_in_order(missed):
    rows, missed = 4, torch.tensor(missed)
    ends = missed + 7
    covered = [[] for _ in missed]
    for at in range(0, int(missed.max()), rows):
        starts, known = chunk(ends, missed, at, rows)
        assert bool((starts + known <= ends).all())
        for request, (start, number) in enumerate(zip(starts.tolist(), known.tolist(), strict=True)):
            covered[request] += range(start, start + number)
    assert covered == [list(range(7, int(end))) for end in ends]
