"""Ranks that run every step together on Model Runner V2, where steps are scheduled ahead."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from specctl_vllm.compat import rank_agreement, rank_agreement_v2
from specctl_vllm.compat.rank_agreement import ROWS, _Agreement
from specctl_vllm.compat.rank_agreement_v2 import (
    begin_step,
    with_agreed_passes,
    wrap_dummy_run,
    wrap_get_dp_group,
)
from specctl_vllm.compat.step_report import StepReport
from specctl_vllm.report import DraftWish
from support.vllm_steps import TOKENS, Engine

torch = pytest.importorskip("torch")
dp_utils = pytest.importorskip("vllm.v1.worker.gpu.dp_utils")


@pytest.fixture
def agreement(monkeypatch: pytest.MonkeyPatch) -> _Agreement:
    """Of this rank, the second of three."""
    found = _Agreement()
    monkeypatch.setattr(rank_agreement, "AGREEMENT", found)
    monkeypatch.setattr(rank_agreement_v2, "AGREEMENT", found)
    return found


class Group:
    """vLLM's group of three ranks, of which only this one sends anything: in 0.32, and from 0.33 on."""

    rank_in_group = 1

    def __init__(self) -> None:
        self.cpu_group = self
        self.sent: list[Any] = []

    def allreduce(self, tables: list[Any], options: Any) -> Any:
        self.sent.append(tables[0].clone())
        return SimpleNamespace(wait=lambda: None)

    def cpu_all_reduce_(self, table: Any) -> Any:
        self.sent.append(table.clone())
        return table


def test_the_ranks_numbers_go_with_what_they_agree_on_anyway(
    agreement: _Agreement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's own function finds the same, and one table was summed."""
    given = {
        "cudagraph_manager": None,
        "desired_batch_desc": dp_utils.BatchExecutionDescriptor(
            cg_mode=dp_utils.CUDAGraphMode.NONE, num_tokens=11, num_reqs=3
        ),
        "num_tokens": 11,
        "num_reqs": 3,
        "uniform_token_count": None,
        "dp_size": 3,
        "dp_rank": 1,
    }
    found, sent = [], []
    for wrap in (lambda original: original, wrap_get_dp_group):
        group = Group()
        monkeypatch.setattr(dp_utils, "get_dp_group", wrap(lambda group=group: group))
        begin_step(
            SimpleNamespace(specctl_wish=DraftWish(3, 8, True), num_spec_tokens_to_schedule=2), is_dummy=False
        )
        desc, state = dp_utils.sync_cudagraph_and_dp_padding(**given)
        found.append((desc, state.num_tokens_across_dp.tolist(), state.num_reqs, state.eager))
        sent += group.sent
    assert found[0] == found[1]
    stock, ours = sent
    assert torch.equal(ours[:-ROWS], stock)
    assert ours[-ROWS:].tolist() == [[0, number, 0] for number in (4, 8, 1, 3)]
    assert (agreement.agreed, agreement.most_planned) == (DraftWish(3, 8, True), 2)


@pytest.mark.parametrize("call", ["allreduce", "cpu_all_reduce_"])
def test_both_releases_ways_to_sum_carry_the_rows(agreement: _Agreement, call: str) -> None:
    group = Group()
    carrying = wrap_get_dp_group(lambda: group)()
    table = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    agreement.begin(None, 0)
    if call == "allreduce":
        torch.distributed.all_reduce(table, group=carrying.cpu_group)
    else:
        assert carrying.cpu_all_reduce_(table) is table
    assert table.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert group.sent[0][2:].tolist() == [[0, 0, 0]] * (ROWS - 1) + [[0, 1, 0]]
    assert (agreement.agreed, agreement.most_planned) == (None, 0)


def test_a_rank_without_requests_plans_nothing(agreement: _Agreement) -> None:
    begin_step(SimpleNamespace(num_spec_tokens_to_schedule=0), is_dummy=True)
    assert agreement.row() == [0] * ROWS
    begin_step(SimpleNamespace(num_spec_tokens_to_schedule=0), is_dummy=False)
    assert agreement.row() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("planned", "asked", "skips", "passes"),
    [
        pytest.param(None, 3, False, 3, id="ranks of a dense model"),
        pytest.param(2, 0, False, 2, id="another rank's drafts"),
        pytest.param(0, None, False, 0, id="no drafts anywhere, and no request here"),
        pytest.param(3, None, False, 3, id="no request here"),
        pytest.param(2, 0, True, 0, id="nobody can use them"),
    ],
)
def test_the_passes_are_those_of_the_rank_that_plans_most(
    agreement: _Agreement, planned: int | None, asked: int | None, skips: bool, passes: int
) -> None:
    agreement.most_planned = planned
    speculator = with_agreed_passes(
        SimpleNamespace(propose=lambda batch, num_speculative_tokens, dp_sync_state: num_speculative_tokens)
    )
    state = SimpleNamespace(skip_drafts=skips)
    assert speculator.propose("batch", num_speculative_tokens=asked, dp_sync_state=state) == passes


@pytest.mark.parametrize(
    ("planned", "is_uniform", "microbatches", "width"),
    [
        (1, True, None, 2),
        (0, True, None, 1),
        (None, True, None, 6),
        (1, False, None, 6),
        (1, True, object(), 6),
    ],
)
def test_a_rank_without_requests_runs_as_wide_as_the_others(
    agreement: _Agreement, planned: int | None, is_uniform: bool, microbatches: Any, width: int
) -> None:
    agreement.most_planned = planned
    runner = SimpleNamespace(decode_query_len=6, num_speculative_steps=5, ubatch_runner=microbatches)
    dummy_run = wrap_dummy_run(lambda self, number, uniform_decode: (self.decode_query_len, uniform_decode))
    assert dummy_run(runner, 1, uniform_decode=is_uniform) == (width, is_uniform)
    assert runner.decode_query_len == 6


def report(wish: DraftWish, most_planned: int = 0) -> dict[str, Any]:
    return {"specctl": StepReport(agreed=wish, most_planned=most_planned)}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_rank_takes_what_all_agreed_on(monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    """With the first tokens that tell; before them, and after an idle time, its own number."""
    engine = Engine(monkeypatch, is_async, "mtp", "mtp", is_v2=True, ranks_in_step=2)
    assert engine.steering.capabilities.controllable
    engine.run(0)
    engine.set_table(TOKENS)
    engine.output_fields = report(DraftWish(1, 4, False))
    first = engine.scheduled()
    assert (first.specctl_wish, first.num_spec_tokens_to_schedule) == (DraftWish(TOKENS, 1, False), TOKENS)
    engine.done(first)
    later = engine.scheduled()
    assert (later.specctl_wish, later.num_spec_tokens_to_schedule) == (DraftWish(TOKENS, 1, False), 1)
    engine.done(later)
    while engine.waiting:
        engine.done(engine.waiting.pop())
    engine.request.num_computed_tokens, engine.request.spec_token_ids = 0, []
    assert engine.scheduled().num_spec_tokens_to_schedule == TOKENS


def test_a_sample_is_taken_by_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, True, "mtp", "mtp", is_v2=True, ranks_in_step=2)
    engine.run(0)
    sample = {"setting": {"num_speculative_tokens": 2}, "every_steps": 1000}
    engine.set_table(1, sample=sample)
    engine.output_fields = report(DraftWish(2, 4, True), most_planned=2)
    engine.run(6)
    cells = {cell.num_speculative_tokens: cell for cell in engine.steering.telemetry().cells}
    assert cells[2].sampled_steps > 0
    assert cells.get(1) is None or cells[1].sampled_steps == 0


def test_a_step_with_another_ranks_passes_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those beside prompts are: it took longer than its own drafts do."""
    engine = Engine(monkeypatch, True, "mtp", "mtp", is_v2=True, ranks_in_step=2)
    engine.run(0)
    engine.set_table(1)
    engine.output_fields = report(DraftWish(1, 4, False), most_planned=TOKENS)
    engine.run(6)
    assert {cell.has_prefill for cell in engine.steering.telemetry().cells if cell.steps > 2} == {True}


@pytest.mark.parametrize("batches", [(1, 1), (1, 3), (3, 2)])
def test_ranks_plan_alike_soon_after_a_change(
    monkeypatch: pytest.MonkeyPatch, batches: tuple[int, int]
) -> None:
    """Two ranks, scheduled ahead: whatever each wants, both make as many passes, enough for what each
    verifies; three steps after a change of the table both plan by the busier one's row."""
    ranks = [Engine(monkeypatch, True, "mtp", "mtp", is_v2=True, ranks_in_step=2) for _ in batches]
    workers = [_Agreement() for _ in ranks]
    in_flight: list[list[Any]] = []
    for step in range(12):
        wanted = [TOKENS - batch if step >= 6 else TOKENS for batch in batches]
        if step in (0, 6):
            for rank, number in zip(ranks, wanted, strict=True):
                rank.set_table(number)
        outputs = [rank.scheduled() for rank in ranks]
        for output, batch in zip(outputs, batches, strict=True):
            output.specctl_wish = replace(output.specctl_wish, decode_batch=batch)
        planned = [output.num_spec_tokens_to_schedule for output in outputs]
        if step >= 9:
            assert planned == [TOKENS - max(batches)] * 2
        in_flight.append(outputs)
        if len(in_flight) == 2:
            run(ranks, workers, in_flight.pop(0))


def run(ranks: list[Engine], workers: list[_Agreement], outputs: list[Any]) -> None:
    """One step, until its tokens are with the schedulers."""
    planned = [output.num_spec_tokens_to_schedule for output in outputs]
    for worker, output, number in zip(workers, outputs, planned, strict=True):
        worker.begin(output.specctl_wish, number)
    sums = [list(values) for values in zip(*(worker.row() for worker in workers), strict=True)]
    for rank, worker, output in zip(ranks, workers, outputs, strict=True):
        worker.close(sums)
        assert worker.most_planned == max(planned)
        rank.output_fields = {"specctl": StepReport(agreed=worker.agreed, most_planned=worker.most_planned)}
        rank.done(output)
