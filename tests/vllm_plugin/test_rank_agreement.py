"""Ranks that run every step together: one number of drafts, by the busiest rank."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from specctl_vllm.compat import rank_agreement
from specctl_vllm.compat.rank_agreement import ROWS, _Agreement, wrap_drafter_dummy_run, wrap_run_ar
from specctl_vllm.report import DraftWish, WorkerReport
from support.vllm_steps import TOKENS, Engine

torch = pytest.importorskip("torch")
dp_utils = pytest.importorskip("vllm.v1.worker.dp_utils")


def agreed(*wishes: DraftWish | None) -> list[DraftWish | None]:
    """Of each rank, after the all-reduce of one step."""
    ranks = [_Agreement() for _ in wishes]
    for rank, wish in zip(ranks, wishes, strict=True):
        rank.begin(wish)
    rows = [list(values) for values in zip(*(rank.row() for rank in ranks), strict=True)]
    for rank in ranks:
        rank.close(rows)
    return [rank.agreed for rank in ranks]


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ([DraftWish(4, 1, False), DraftWish(2, 7, False)], DraftWish(2, 7, False)),
        ([DraftWish(0, 9, True), DraftWish(5, 3, False)], DraftWish(0, 9, True)),
        ([DraftWish(3, 2, False), DraftWish(1, 2, False)], DraftWish(3, 2, False)),
        ([None, DraftWish(4, 1, False), None], DraftWish(4, 1, False)),
        ([None, None], None),
    ],
)
def test_the_busiest_rank_decides_for_all(
    wishes: Sequence[DraftWish | None], expected: DraftWish | None
) -> None:
    assert agreed(*wishes) == [expected] * len(wishes)


def test_passes_of_a_draft_head_decide_nothing() -> None:
    rank = _Agreement()
    rank.begin(DraftWish(4, 1, False))
    rank.close([[5, 3], [1, 2], [0, 0], [0, 0]])
    assert rank.row() == [0] * ROWS
    rank.close([[0, 0]] * ROWS)
    assert rank.agreed == DraftWish(2, 2, False)


def test_vllms_own_rows_come_back_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same table as vLLM's own function makes, for one rank of three; the others add theirs to it."""
    seen: list[Any] = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda table, group: seen.append(table.clone()))
    monkeypatch.setattr(dp_utils, "_get_device_and_group", lambda config: ("cpu", None))
    monkeypatch.setattr(rank_agreement, "AGREEMENT", agreement := _Agreement())
    agreement.begin(DraftWish(3, 8, True))
    given = {
        "should_ubatch": True,
        "orig_num_tokens_per_ubatch": 11,
        "padded_num_tokens_per_ubatch": 16,
        "cudagraph_mode": 2,
        "parallel_config": SimpleNamespace(data_parallel_size=3, data_parallel_rank=1),
    }
    ours, stock = wrap_run_ar(dp_utils._run_ar)(**given), dp_utils._run_ar(**given)
    assert torch.equal(ours, stock)
    assert seen[0][4:, 1].tolist() == [4, 8, 1, 0]


@pytest.mark.parametrize(("number", "passes"), [(None, 9), (0, 1), (1, 1), (3, 3)])
def test_a_rank_without_requests_makes_the_others_passes(
    monkeypatch: pytest.MonkeyPatch, number: int | None, passes: int
) -> None:
    agreement = _Agreement()
    agreement.agreed = None if number is None else DraftWish(number, 1, False)
    monkeypatch.setattr(rank_agreement, "AGREEMENT", agreement)
    drafter = SimpleNamespace(
        num_speculative_tokens=0, speculative_config=SimpleNamespace(num_speculative_tokens=9)
    )
    assert wrap_drafter_dummy_run(lambda self: self.num_speculative_tokens)(drafter) == passes


def test_a_step_counts_under_what_the_ranks_agreed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, is_async=False, ranks_in_step=2)
    engine.run(0)
    engine.set_table(TOKENS)
    wish = engine.scheduled().specctl_wish
    assert (wish.num_speculative_tokens, wish.decode_batch) == (TOKENS, 1)
    engine.steering.drafts_arrived(
        WorkerReport(draft_s=0.0, verify_s=0.0, shadow=None, proposer=None, agreed=DraftWish(1, 4, False))
    )
    engine.request.spec_token_ids = [7]
    engine.scheduled()
    assert engine.steering.telemetry().num_speculative_tokens == 1
