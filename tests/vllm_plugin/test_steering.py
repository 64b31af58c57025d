"""Steps as the scheduler's part counts them, without an engine."""

import pytest
from specctl_vllm.compat.step_report import StepReport
from support.vllm_steps import TOKENS, Engine


@pytest.mark.parametrize("is_async", [False, True])
def test_seconds_of_steps_add_up_to_the_time_that_passed(monkeypatch, is_async):
    engine = Engine(monkeypatch, is_async)
    engine.run(10)
    assert engine.steering.is_active
    (cell,) = engine.steering.telemetry().cells
    assert (cell.steps, cell.emitted_tokens, cell.accepted_at) == (10, 20, (10, 0, 0))
    assert cell.step_s == pytest.approx(10.0)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_counts_under_the_drafts_that_it_verified(monkeypatch, is_async):
    """Where the next step is scheduled ahead, its drafts were asked for under the table before."""
    engine = Engine(monkeypatch, is_async)
    engine.run(0)
    for number in (TOKENS, 1, 0, 2, TOKENS, 0):
        engine.set_table(number)
        engine.run(4)
    cells = engine.steering.telemetry().cells
    assert {cell.num_speculative_tokens for cell in cells} == {0, 1, 2, TOKENS}
    for cell in cells:
        full = (cell.steps,) * cell.num_speculative_tokens
        assert cell.drafted_at[: cell.num_speculative_tokens] == full
        assert not any(cell.drafted_at[cell.num_speculative_tokens :])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_class_drafts_no_more_than_its_limit(monkeypatch, is_async):
    engine = Engine(monkeypatch, is_async)
    engine.run(0)
    engine.set_table(TOKENS, {"kind": "", "max_num_speculative_tokens": 1})
    engine.run(4)
    assert len(engine.scheduled().scheduled_spec_decode_tokens["r"]) == 1
    assert not any(cell.drafted_at[1] for cell in engine.steering.telemetry().cells if cell.steps > 2)
    engine.set_table(TOKENS, {"kind": "other", "max_num_speculative_tokens": 0})
    engine.run(4)
    assert len(engine.scheduled().scheduled_spec_decode_tokens["r"]) == TOKENS


def test_drafts_that_the_engine_did_not_verify_are_not_counted(monkeypatch):
    """One of three was kept, one rejected, and at the third nobody looked."""
    engine = Engine(monkeypatch, is_async=True)
    engine.output_fields = {"specctl": StepReport(rejected=[1])}
    engine.run(10)
    (cell,) = engine.steering.telemetry().cells
    assert (cell.drafted_at, cell.accepted_at, cell.verified_tokens) == ((10, 10, 0), (10, 0, 0), 30)


def test_a_step_that_follows_at_once_takes_the_devices_seconds(monkeypatch):
    """By the host's clock the launch of the next step is in them; the first one has no step before it."""
    engine = Engine(monkeypatch, True)
    engine.output_fields = {"specctl": StepReport(step_s=0.25)}
    engine.run(5)
    (cell,) = engine.steering.telemetry().cells
    assert (cell.steps, cell.step_s) == (5, pytest.approx(1.0 + 4 * 0.25))


def test_idle_time_before_a_step_is_not_its_own(monkeypatch):
    engine = Engine(monkeypatch, False)
    engine.output_fields = {"specctl": StepReport(step_s=100.0)}
    engine.run(5)
    (cell,) = engine.steering.telemetry().cells
    assert cell.step_s == pytest.approx(5.0)


def test_steps_are_counted_by_traffic_class_too(monkeypatch):
    engine = Engine(monkeypatch, is_async=True)
    engine.run(10)
    (one,) = engine.steering.telemetry().classes
    assert (one.namespace, one.kind, one.context_to_tokens, one.decoding) == ("", "", 1024, 1)
    assert (one.request_steps, one.watched_at, one.accepted_at) == (10, (10, 10, 10), (10, 0, 0))
    engine.scheduler.running = []
    assert engine.steering.telemetry().classes[0].decoding == 0
