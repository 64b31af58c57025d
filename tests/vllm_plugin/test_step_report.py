"""The order of the device's events, with events and streams that only note what was asked of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from specctl_vllm.compat import step_report, verified_batches
from specctl_vllm.report import Failures

from specctl.engine.guard import GUARD


class Stream:
    def __init__(self):
        self.now_ms = 0.0
        self.waited_for = []

    def wait_stream(self, other):
        self.waited_for.append(other)


MAIN = Stream()
"""The current one, on which a speculator runs."""


class Event:
    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self, stream=None):
        if stream is None:
            self.at_ms = MAIN.now_ms
            return
        assert stream.waited_for, "the tokens are sampled on the main stream"
        self.at_ms = stream.now_ms

    def elapsed_time(self, later):
        return later.at_ms - self.at_ms


class Output:
    def __init__(self, main_stream, copy_stream, sampler_output=None):
        self.answer = SimpleNamespace()

    def get_output(self):
        return self.answer


@pytest.fixture
def timed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(step_report, "_marks", step_report._Marks())
    return step_report.wrap_async_output(Output)


def test_seconds_are_those_between_the_tokens_of_two_steps(timed):
    main, copies = Stream(), Stream()
    outputs = []
    for now_ms in (5.0, 12.0, 14.5):
        copies.now_ms = now_ms
        outputs.append(timed(main_stream=main, copy_stream=copies))
    # Taken late, as a host that launches the next step first does.
    seconds = [step_report.report_of(output.get_output()).step_s for output in outputs]
    assert seconds == [None, pytest.approx(0.007), pytest.approx(0.0025)]


def test_a_worker_that_does_not_tell_is_no_zero(timed):
    assert step_report.report_of(SimpleNamespace()) == step_report.StepReport()


class Speculator:
    """vLLM's: it tells the end of its first pass to whoever overrides the method."""

    def __init__(self):
        self.ended = []

    def on_prefill_end(self, num_reqs):
        self.ended.append(num_reqs)


def test_a_first_pass_belongs_to_the_step_whose_tokens_it_reads(timed):
    speculator = step_report.watch_first_pass(Speculator())
    copies, outputs = Stream(), []
    for sampled_ms, read_ms in ((5.0, 6.0), (12.0, 14.0), (20.0, 20.5)):
        copies.now_ms, MAIN.now_ms = sampled_ms, read_ms
        outputs.append(timed(main_stream=MAIN, copy_stream=copies))
        speculator.on_prefill_end(3)
    answers = [output.get_output() for output in outputs]
    assert [step_report.report_of(one).step_s for one in answers] == [
        None, pytest.approx(0.006), pytest.approx(0.006),
    ]  # fmt: skip
    assert [step_report.report_of(one).read_s for one in answers] == [
        None, pytest.approx(0.001), pytest.approx(0.002),
    ]  # fmt: skip
    assert speculator.ended == [3, 3, 3]


def test_a_step_without_a_first_pass_behind_it_read_nothing(timed):
    """A head that keeps what it has to read; and one that catches up, which is work for the drafts."""
    speculator = step_report.watch_first_pass(Speculator())
    copies, outputs = Stream(), []
    for now_ms in (5.0, 12.0, 20.0):
        copies.now_ms = MAIN.now_ms = now_ms
        outputs.append(timed(main_stream=MAIN, copy_stream=copies))
        if now_ms == 12.0:
            MAIN.now_ms += 3.0
            speculator.on_prefill_end(1)
            step_report.skip_first_pass()
    answers = [output.get_output() for output in outputs]
    assert [step_report.report_of(one).read_s for one in answers] == [None, 0.0, 0.0]
    assert step_report.report_of(answers[2]).step_s == pytest.approx(0.008)


def test_a_speculator_of_one_pass_is_left_as_it_is(timed):
    speculator = SimpleNamespace()
    assert step_report.watch_first_pass(speculator) is speculator
    outputs = [timed(main_stream=MAIN, copy_stream=Stream()) for _ in range(2)]
    assert step_report.report_of(outputs[1].get_output()).read_s is None


def test_counts_travel_with_a_steps_answer(timed):
    verified_batches.count("penalties")
    report = step_report.report_of(timed(main_stream=MAIN, copy_stream=Stream()).get_output())
    assert report.verified_batches == {"batches_verified_by_engine_penalties": 1.0}
    assert report.rejected is None


def test_rejected_drafts_are_copied_beside_the_tokens(timed, monkeypatch):
    monkeypatch.setattr(step_report, "_rejected", lambda output, main, copies: output)
    step_report.tell_rejected(True)
    made = timed(main_stream=MAIN, copy_stream=Stream(), sampler_output=torch.tensor([2, 0]))
    assert step_report.report_of(made.get_output()).rejected == [2, 0]


@pytest.mark.parametrize("fails", ["of", "report"])
def test_a_report_that_fails_costs_the_step_nothing(timed, monkeypatch, fails):
    monkeypatch.setattr(step_report._Begun, fails, lambda *_: 1 / 0)
    answer = timed(main_stream=MAIN, copy_stream=Stream()).get_output()
    assert step_report.report_of(answer).failures == Failures.here() != None  # noqa: E711
    GUARD.failures.clear()
