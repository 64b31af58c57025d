"""Greedy verification and the largest entry of a row, against their references."""

from __future__ import annotations

import pytest
import torch
from specctl_kernels.row_argmax import launch, row_argmax
from specctl_kernels.row_argmax.reference import row_argmax_reference
from specctl_kernels.verify_greedy import NO_TOKEN, verify_greedy
from specctl_kernels.verify_greedy.reference import verify_greedy_reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IS_GPU = DEVICE.type == "cuda"
VOCABULARIES = [1, 2, 7, 2047, 2048, 2049, 8193] + ([32_000, 128_256, 151_936, 262_144] if IS_GPU else [])
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def logits_of(rows: int, vocabulary: int, dtype: torch.dtype) -> torch.Tensor:
    """With ties, infinities and not-a-numbers here and there."""
    values = torch.randn(rows, vocabulary).mul(4).round().div(4)
    where = torch.rand(rows, vocabulary)
    values[where < 0.02] = float("nan")
    values[where > 0.98] = float("-inf")
    return values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("rows", [0, 1, 5, 33])
def test_largest_entry_is_the_first_of_equals(rows: int, vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    values = logits_of(rows, vocabulary, dtype)
    assert row_argmax(values.to(DEVICE)).tolist() == row_argmax_reference(values).tolist()


def test_more_rows_than_a_grid_has_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRID_MOST", 4)
    values = torch.randn(11, 600, device=DEVICE)
    assert row_argmax(values).tolist() == values.argmax(1).tolist()


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # numpy's, under the interpreter
def test_a_row_of_nothing_but_nan_or_minus_infinity_gives_an_id_that_exists() -> None:
    values = torch.full((2, 5000), float("-inf"), device=DEVICE)
    values[0] = float("nan")
    assert row_argmax(values).tolist() == [0, 0]


def test_rows_may_be_a_slice_of_wider_ones() -> None:
    values = torch.randn(6, 300, device=DEVICE)
    assert row_argmax(values[:, :200]).tolist() == row_argmax_reference(values[:, :200].cpu()).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [2, 7, 2049, 8193])
@pytest.mark.parametrize("requests", [0, 1, 3, 17])
def test_verification_as_the_reference(requests: int, vocabulary: int, dtype: torch.dtype) -> None:
    torch.manual_seed(requests * 10 + vocabulary)
    width = 6
    rows = torch.randint(0, width + 1, (requests,))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), rows.cumsum(0)]).to(torch.int32)
    logits = logits_of(int(starts[-1]), vocabulary, dtype)
    # Each row was fed the choice of the row before it, mostly.
    drafts = row_argmax_reference(logits).roll(1) if len(logits) else torch.zeros(0, dtype=torch.int64)
    wrong = torch.rand(len(logits))
    drafts = torch.where(wrong < 0.15, torch.randint(0, vocabulary, (len(logits),)), drafts)
    drafts = torch.where(wrong > 0.95, -1, drafts).to(torch.int32)
    want = verify_greedy_reference(logits, drafts, starts, width=width)
    got = verify_greedy(logits.to(DEVICE), drafts.to(DEVICE), starts.to(DEVICE), width=width)
    assert torch.equal(got[0].cpu(), want[0])
    assert torch.equal(got[1].cpu(), want[1])


def test_all_kept_none_kept_and_no_drafts() -> None:
    logits = torch.full((8, 50), -1.0, device=DEVICE)
    for row, token in enumerate([4, 5, 6, 7, 8, 9, 10, 11]):
        logits[row, token] = 1.0
    drafts = torch.tensor([0, 4, 5, 0, 3, 8, 0, 0], dtype=torch.int32, device=DEVICE)
    starts = torch.tensor([0, 3, 6, 7, 8], dtype=torch.int32, device=DEVICE)
    tokens, counts = verify_greedy(logits, drafts, starts, width=3)
    none = NO_TOKEN
    assert tokens.tolist() == [[4, 5, 6], [7, none, none], [10, none, none], [11, none, none]]
    assert counts.tolist() == [3, 1, 1, 1]


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="one of each of 4 rows, got"):
        verify_greedy(torch.zeros(4, 9), torch.zeros(3), torch.zeros(2, dtype=torch.int32), width=2)
    with pytest.raises(ValueError, match="contiguous rows"):
        row_argmax(torch.zeros(9, 4).T)
    with pytest.raises(ValueError, match="a column at least"):
        row_argmax(torch.zeros(4, 0))


@pytest.mark.skipif(not IS_GPU, reason="needs 17 GB of device memory")
def test_more_than_two_to_the_thirty_one_logits() -> None:
    rows, vocabulary = 8200, 262_144
    logits = torch.zeros(rows, vocabulary, dtype=torch.bfloat16, device=DEVICE)
    logits[rows - 1, vocabulary - 1] = 1.0
    found = row_argmax(logits)
    assert int(found[rows - 1]) == vocabulary - 1
    assert int(found[: rows - 1].max()) == 0
