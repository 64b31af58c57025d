"""Seconds of drafts apart from a head's first pass, by the host's clock and by the device's."""

from types import SimpleNamespace

import pytest
import torch
from specctl_vllm.compat import draft_seconds
from specctl_vllm.compat.draft_seconds import DraftClock, report_with, watch_first_pass
from specctl_vllm.compat.step_report import report_of


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=10.0)
    monkeypatch.setattr(draft_seconds.time, "perf_counter", lambda: now.s)
    return now


class Event:
    has_ended = True
    now_ms = 0.0

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self):
        self.at_ms = Event.now_ms

    def query(self):
        return Event.has_ended

    def elapsed_time(self, later):
        return later.at_ms - self.at_ms


def test_the_first_pass_is_no_part_of_the_drafts(clock):
    made = DraftClock(is_on_device=False)
    made.mark()
    clock.s += 2.0
    made.first_pass_ended()
    clock.s += 0.5
    made.first_pass_ended()
    clock.s += 0.25
    made.mark()
    assert (made.seconds(), made.whole_s()) == (0.75, 2.75)


def test_drafts_without_a_model_are_counted_whole(clock):
    made = DraftClock(is_on_device=False)
    made.mark()
    clock.s += 0.5
    made.mark()
    assert (made.seconds(), made.whole_s()) == (0.5, 0.5)


def test_a_step_that_drafted_nothing_took_none(clock):
    made = DraftClock(is_on_device=False)
    assert (made.seconds(), made.whole_s()) == (0.0, 0.0)


@pytest.mark.parametrize(("has_ended", "seconds"), [(True, 0.007), (False, 0.25)])
def test_on_a_device_its_own_clock_tells_once_it_is_done(clock, monkeypatch, has_ended, seconds):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "has_ended", has_ended)
    made = DraftClock(is_on_device=True)
    made.mark()
    monkeypatch.setattr(Event, "now_ms", 3.0)
    made.first_pass_ended()
    clock.s += 0.25
    monkeypatch.setattr(Event, "now_ms", 10.0)
    made.mark()
    assert made.seconds() == pytest.approx(seconds)


def runner_of(model, **more):
    config = SimpleNamespace(parallel_drafting=False)
    clock = DraftClock(is_on_device=False)
    return SimpleNamespace(
        drafter=SimpleNamespace(model=model), speculative_config=config, specctl_clock=clock, **more
    )


def test_the_first_call_of_the_model_ends_the_first_pass():
    model = torch.nn.Linear(2, 2)
    runner = runner_of(model)
    for _ in range(2):
        watch_first_pass(runner)
    model(torch.ones(1, 2))
    assert runner.specctl_clock._marks == [], "nothing is being drafted"
    runner.specctl_clock.mark()
    for _ in range(3):
        model(torch.ones(1, 2))
    assert len(runner.specctl_clock._marks) == 2


@pytest.mark.parametrize("is_parallel", [False, True])
def test_passes_that_cannot_be_split_are_left_whole(is_parallel):
    """A model behind a wrapper, no model at all, and one that makes all drafts at once."""
    runner = runner_of(torch.nn.Linear(2, 2) if is_parallel else object())
    runner.speculative_config.parallel_drafting = is_parallel
    watch_first_pass(runner)
    watch_first_pass(SimpleNamespace(drafter=SimpleNamespace()))
    assert not hasattr(runner, "specctl_is_watched")


def test_under_asynchronous_scheduling_they_come_with_the_tokens(clock):
    made = DraftClock(is_on_device=False)
    answer = SimpleNamespace()
    output = SimpleNamespace(get_output=lambda: answer)
    report_with(output, made)
    made.mark()
    clock.s += 0.5
    made.mark()
    assert report_of(answer).draft_s is None
    assert output.get_output() is answer
    assert report_of(answer).draft_s == 0.5
