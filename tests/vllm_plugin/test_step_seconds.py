"""The order of the device's events, with events and streams that only note what was asked of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from specctl_vllm.compat import step_seconds


class Stream:
    def __init__(self):
        self.now_ms = 0.0
        self.waited_for = []

    def wait_stream(self, other):
        self.waited_for.append(other)


class Event:
    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self, stream):
        assert stream.waited_for, "the tokens are sampled on the main stream"
        self.at_ms = stream.now_ms

    def elapsed_time(self, later):
        return later.at_ms - self.at_ms


class Output:
    def __init__(self, main_stream, copy_stream):
        self.answer = SimpleNamespace()

    def get_output(self):
        return self.answer


@pytest.fixture
def timed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return step_seconds._timed(Output)


def test_seconds_are_those_between_the_tokens_of_two_steps(timed):
    main, copies = Stream(), Stream()
    outputs = []
    for now_ms in (5.0, 12.0, 14.5):
        copies.now_ms = now_ms
        outputs.append(timed(main_stream=main, copy_stream=copies))
    # Taken late, as a host that launches the next step first does.
    told = [step_seconds.device_seconds_of(output.get_output()) for output in outputs]
    assert told == [None, pytest.approx(0.007), pytest.approx(0.0025)]


def test_a_worker_that_does_not_tell_is_no_zero(timed):
    assert step_seconds.device_seconds_of(SimpleNamespace()) is None
