"""When a draft head that skips steps catches up, against a plain account of how far each request lags."""

import random

import numpy as np
import pytest

pytest.importorskip("vllm")
from specctl_vllm.proposers.head_backlog import Backlog, Turn

DECODE = np.ones(4, dtype=np.int32)


def test_decodes_are_kept_until_one_pass_can_just_make_up_for_them():
    backlog = Backlog(ring=32, rows_max=8192, requests_max=256, drafts_max=5)
    turns = [backlog.next(DECODE, 0) for _ in range(32)]
    assert turns[:31] == [(Turn.KEEP, False)] * 31
    assert turns[31] == (Turn.KEEP, True)
    assert backlog.positions == 1


def test_drafts_wanted_are_preceded_by_a_catch_up_once():
    backlog = Backlog(ring=32, rows_max=8192, requests_max=256, drafts_max=5)
    assert backlog.next(DECODE, 5) == (Turn.RUN, False)
    backlog.next(DECODE, 0)
    assert backlog.next(DECODE, 5) == (Turn.RUN, True)
    assert backlog.next(DECODE, 5) == (Turn.RUN, False)


def test_a_step_with_a_prompt_goes_to_the_head_and_leaves_what_was_kept():
    backlog = Backlog(ring=32, rows_max=8192, requests_max=256, drafts_max=5)
    backlog.next(DECODE, 0)
    assert backlog.next(np.array([1, 300, 1]), 0) == (Turn.RUN, False)
    assert backlog.positions == 2


def test_many_slots_shorten_the_wait_and_too_many_end_it():
    short = Backlog(ring=32, rows_max=8192, requests_max=1024, drafts_max=5)
    assert [short.next(DECODE, 0)[1] for _ in range(8)] == [False] * 7 + [True]
    none = Backlog(ring=32, rows_max=512, requests_max=512, drafts_max=5)
    assert none.next(DECODE, 0) == (Turn.RUN, False)


@pytest.mark.parametrize("seed", range(20))
def test_no_request_that_is_in_every_step_falls_behind_what_a_pass_reaches(seed):
    generator = random.Random(seed)
    requests = generator.choice([1, 3, 100])
    backlog = Backlog(ring=32, rows_max=1024, requests_max=100, drafts_max=5)
    behind = np.zeros(requests, dtype=np.int64)
    wanted = 0
    for _ in range(500):
        verified, wanted = wanted, generator.choice([0, 0, 0, 0, 5])
        queries = np.full(requests, verified + 1, dtype=np.int32)
        if generator.random() < 0.1:
            queries[generator.randrange(requests)] = generator.choice([2, 40, 700])
        turn, catches_up = backlog.next(queries, wanted)
        if catches_up:
            assert behind.max() <= backlog.reach(requests)
            behind[:] = 0
        if turn is Turn.KEEP:
            behind += queries
        else:
            # What was kept is made up for later, and the distance to it grows; a prompt is written anew.
            behind[behind > 0] += queries[behind > 0]
            behind[queries > 6] = 0
            if wanted:
                assert behind.max() == 0
