import numpy as np
import pytest

from specctl.engine.buckets import DecodeBatchBuckets
from specctl.engine.step_counters import StepCounters, StepRecord, at_least


def test_at_least_turns_a_histogram_into_survival_counts():
    assert at_least([5, 1, 0, 2]) == (3, 2, 2)
    assert at_least([3]) == ()


def test_steps_are_added_by_bucket_setting_and_prefill():
    counters = StepCounters(DecodeBatchBuckets(8), 4)
    common = {"num_speculative_tokens": 4, "context_tokens": 30, "draft_s": 0.001, "verify_s": 0.01}
    counters.add(
        StepRecord(drafted=[4, 0], accepted=[2, 0], emitted_tokens=4, prefill_tokens=0, step_s=0.5, **common)
    )
    counters.add(
        StepRecord(drafted=[1, 3], accepted=[1, 3], emitted_tokens=6, prefill_tokens=0, step_s=0.25, **common)
    )
    counters.add(
        StepRecord(drafted=[2, 2], accepted=[0, 0], emitted_tokens=2, prefill_tokens=7, step_s=1.0, **common)
    )
    counters.add(
        StepRecord(drafted=[], accepted=[], emitted_tokens=0, prefill_tokens=7, step_s=1.0, **common)
    )
    plain, mixed = counters.cells()
    assert (plain.decode_batch_from, plain.decode_batch_to, plain.has_prefill) == (2, 2, False)
    assert (plain.steps, plain.request_steps, plain.emitted_tokens, plain.verified_tokens) == (2, 4, 10, 12)
    assert plain.drafted_at == (3, 2, 2, 1)
    assert plain.accepted_at == (3, 2, 1, 0)
    assert plain.step_s == pytest.approx(0.75)
    assert plain.step_s_squared == pytest.approx(0.3125)
    assert plain.verified_tokens_squared == 72
    assert plain.step_s_by_verified_tokens == pytest.approx(4.5)
    assert (mixed.has_prefill, mixed.prefill_tokens, mixed.steps) == (True, 7, 1)


def counted(*steps):
    counters = StepCounters(DecodeBatchBuckets(8), 4)
    for step in steps:
        counters.add(step)
    return counters.cells()


def step(number, accepted, **more):
    drafted = [number] * len(accepted)
    emitted = sum(accepted) + len(accepted)
    return StepRecord(number, drafted, list(accepted), emitted, step_s=0.5, **more)


def test_a_sample_counts_in_the_cell_of_its_own_setting():
    off, drafting = counted(step(2, [1]), step(0, [0], is_sampled=True), step(2, [2]), step(0, [0]))
    assert (off.num_speculative_tokens, off.steps, off.sampled_steps, off.step_s) == (0, 2, 1, 1.0)
    assert (drafting.num_speculative_tokens, drafting.steps, drafting.sampled_steps) == (2, 2, 0)
    assert drafting.accepted_at == (2, 1, 0, 0)


def test_branches_width_and_a_rest_make_cells_of_their_own():
    found = counted(
        step(2, [1]),
        step(2, [1], verify_width_tokens=3),
        step(2, [1], verify_width_tokens=5, tree_topk=3, verified_tokens=5),
        step(2, [1], verify_width_tokens=8, tree_topk=3, verified_tokens=8),
        step(2, [1], after_rest=True),
    )
    cells = [(one.tree_topk, one.verify_width_tokens, one.after_rest, one.steps) for one in found]
    assert cells == [(1, None, False, 2), (1, None, True, 1), (3, 5, False, 1), (3, 8, False, 1)]
    assert [one.verified_tokens for one in found] == [6, 3, 5, 8]


def test_mixed_seconds_are_kept_with_those_of_prompts():
    pure, mixed = counted(step(2, [1]), step(2, [2], is_mixed=True), step(2, [0], prefill_tokens=4))
    assert (pure.has_prefill, pure.steps, pure.prefill_tokens) == (False, 1, 0)
    assert (mixed.has_prefill, mixed.steps, mixed.prefill_tokens) == (True, 2, 4)


def test_ranks_are_added_by_depth():
    first, second = np.array([[1, 0, 1], [1, 1, 0]]), np.array([[2, 0, 0], [0, 0, 1]])
    (cell,) = counted(
        step(2, [2, 2], tree_topk=3, accepted_ranks=first),
        step(2, [0, 0], tree_topk=3),
        step(2, [1, 2], tree_topk=3, accepted_ranks=second),
    )
    assert cell.accepted_rank_at == ((3, 0, 1), (1, 1, 1))
    assert first.tolist() == [[1, 0, 1], [1, 1, 0]], "what a step brings stays its own"
    (chain,) = counted(step(2, [2]))
    assert chain.accepted_rank_at == ()


def test_prompts_alone_have_a_cell_without_a_decode_batch():
    counters = StepCounters(DecodeBatchBuckets(8), 4)
    counters.add_prompts(300, 0.5)
    counters.add_prompts(100, 0.25)
    counters.add(
        StepRecord(
            num_speculative_tokens=0, drafted=[0], accepted=[0], emitted_tokens=1, context_tokens=3,
            prefill_tokens=5, step_s=1.0,
        )
    )  # fmt: skip
    alone, mixed = counters.cells()
    assert (alone.decode_batch_from, alone.decode_batch_to, alone.num_speculative_tokens) == (0, 0, 0)
    assert (alone.steps, alone.request_steps, alone.prefill_tokens, alone.has_prefill) == (2, 0, 400, True)
    assert (alone.step_s, alone.step_s_squared, alone.drafted_at) == (0.75, 0.3125, ())
    assert (mixed.decode_batch_from, mixed.prefill_tokens) == (1, 5)
