import pytest

from specctl.contract.buckets import DecodeBatchBuckets
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
