"""Suffix index or draft head, request by request, and when the head's passes are left out."""

import numpy as np
import pytest

from specctl.engine.draft_choice import DraftChoice

IDS = ["a", "b"]


def expected(*of_suffix):
    return np.array(of_suffix, np.float64)


def step(choice, of_suffix, drafted, emitted, wanted=4):
    chosen = choice.choose(of_suffix, wanted)
    choice.took(IDS, chosen)
    choice.verified(IDS, drafted, emitted)
    return chosen


def test_each_request_drafts_from_where_more_is_expected():
    choice = DraftChoice(4)
    assert choice.expected_of_head(4) == 4.0
    for _ in range(2000):
        step(choice, expected(0.0, 0.0), [4, 4], [3, 3])
    assert choice.expected_of_head(4) == pytest.approx(2.0, abs=0.01)
    assert choice.expected_of_head(1) == pytest.approx(1.0, abs=0.01)
    chosen = step(choice, expected(3.0, 1.0), [4, 4], [3, 3])
    assert chosen.head_runs
    assert chosen.takes_suffix.tolist() == [True, False]


def test_only_the_heads_own_drafts_tell_of_it():
    choice = DraftChoice(4)
    for _ in range(2000):
        step(choice, expected(5.0, 0.0), [4, 4], [1, 3])
    assert choice.expected_of_head(4) == pytest.approx(2.0, abs=0.01)


def test_a_step_that_sampled_nothing_tells_nothing():
    choice = DraftChoice(4)
    step(choice, expected(0.0, 0.0), [4, 4], [0, 0])
    assert choice.expected_of_head(4) == 4.0


def test_the_head_rests_while_it_adds_less_than_it_costs():
    choice = DraftChoice(4)
    for _ in range(2000):
        step(choice, expected(0.0, 0.0), [4, 4], [3, 3])
    for _ in range(100):
        choice.timed(0.02, 0.01)
    # The head adds nearly one token to seven, for as much time again as the step takes without it.
    few = choice.choose(expected(2.5, 1.1), 4)
    assert not few.head_runs
    assert few.takes_suffix.all()
    assert choice.choose(expected(0.0, 0.0), 4).head_runs


def test_a_head_that_rests_is_tried_again():
    choice = DraftChoice(4)
    runs = [step(choice, expected(9.0, 9.0), [9, 9], [5, 5]) for _ in range(200)]
    tried = [one.takes_suffix.tolist() for one in runs if one.head_runs]
    assert tried == [[False, True]] * 3


def test_a_request_that_the_head_has_not_read_has_suffix_drafts_alone():
    choice = DraftChoice(4)
    chosen = choice.choose(expected(1.0, 0.0, 0.0), 4, np.array([False, False, True]))
    assert chosen.takes_suffix.tolist() == [True, False, False]
    assert chosen.takes_head.tolist() == [False, False, True]
    none = choice.choose(expected(1.0, 0.0), 4, np.zeros(2, bool))
    assert not none.head_runs
    # The head is thought to bring 4 tokens to each, beside the 3 of a step without it.
    assert none.worth == pytest.approx(7 / 3)


def test_where_ranks_must_agree_the_head_always_runs():
    choice = DraftChoice(4, may_rest=False)
    chosen = choice.choose(expected(9.0, 9.0), 4)
    assert chosen.head_runs
    assert chosen.takes_suffix.all()
    assert not choice.choose(expected(9.0, 9.0), 0).head_runs


def test_idle_time_is_no_step():
    choice = DraftChoice(4)
    choice.timed(30.0, 0.01)
    choice.timed(0.0, None)
    assert choice.choose(expected(0.0), 4).head_runs
