"""When the hybrid's head runs, on readings that are made up."""

import pytest
from specctl_vllm.proposers.head_pace import HeadPace, Reading


def steps(pace, reading, count):
    """How many of ``count`` steps the head ran in."""
    ran = 0
    for _ in range(count):
        runs = pace.next_step()
        ran += runs
        times = {"step_ms": 10.0 + 2.0 * runs, "head_ms": 2.0 if runs else None}
        pace.observe(Reading(*reading, **times))
    return ran


def test_the_head_runs_until_something_is_known():
    assert HeadPace().next_step()


@pytest.mark.parametrize(("gain", "runs"), [(50.0, True), (30.0, True), (15.0, False), (0.0, False)])
def test_it_goes_on_while_it_brings_a_larger_share_than_it_costs(gain, runs):
    """The head costs 2 ms of 10: a share of 0.2 of the emitted tokens."""
    pace = HeadPace()
    steps(pace, (gain, 100.0), 100)
    assert pace.runs is runs


def test_it_comes_back_when_suffix_drafts_fail():
    pace = HeadPace()
    steps(pace, (0.0, 100.0), 100)
    assert not pace.runs
    assert steps(pace, (80.0, 100.0), 60) >= 30
    assert pace.runs


def test_near_the_border_it_does_not_flap():
    pace = HeadPace()
    changes = 0
    for step in range(2000):
        before = pace.runs
        steps(pace, (21.0 if step % 2 else 19.0, 100.0), 1)
        changes += pace.runs is not before
    assert changes == 0


def test_a_rest_ends_now_and_then_to_look_again():
    pace = HeadPace()
    ran = steps(pace, (0.0, 100.0), 10 * HeadPace.rest_steps_max)
    assert 5 * HeadPace.run_steps_min <= ran <= 12 * HeadPace.run_steps_min


def test_idle_time_is_no_step():
    pace = HeadPace()
    steps(pace, (15.0, 100.0), 100)
    pace.observe(Reading(15.0, 100.0, step_ms=5000.0))
    assert not pace.next_step()
