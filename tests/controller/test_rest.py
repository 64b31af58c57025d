from __future__ import annotations

import math

import pytest

from specctl.controller.rest import NO_REST, REST_S, Rest
from specctl.policy.loader import find_policy, load_policy
from specctl.types import BucketChoice, Reason

POLICY = load_policy(find_policy("balanced"))
CANDIDATES = (0, 1, 2)
BUCKETS = (1, 2, 3, 4, 6, 8)
BASE = dict.fromkeys(BUCKETS, 2)


def kept(upper: int, reason: Reason = Reason.NO_BETTER, *, is_active: bool = False) -> BucketChoice:
    return BucketChoice(upper, upper, 2, 2, reason, is_active=is_active)


def rested(*choices: BucketChoice, time_s: float = 10.0) -> Rest:
    return NO_REST.after(POLICY, CANDIDATES, choices or [kept(upper) for upper in BUCKETS], {}, time_s)


def test_every_idle_bucket_is_weighed_again_in_time_and_no_more_than_its_share_at_a_look() -> None:
    rest, weighed_s = rested(), dict.fromkeys(BUCKETS, 10.0)
    for look in range(1, 40):
        time_s = 10.0 + look
        standing = rest.standing(POLICY, CANDIDATES, BASE, [4], time_s)
        assert 4 not in standing
        due = [upper for upper in BUCKETS if upper not in standing]
        assert len(due) <= 1 + math.ceil(len(BUCKETS) / REST_S)
        weighed_s.update(dict.fromkeys(due, time_s))
        assert all(time_s - weighed <= REST_S for weighed in weighed_s.values())
        choices = [standing.get(upper) or kept(upper, is_active=upper == 4) for upper in BUCKETS]
        rest = rest.after(POLICY, CANDIDATES, choices, standing, time_s)


@pytest.mark.parametrize(
    "choice",
    [
        kept(1, Reason.FEW_SAMPLES),
        kept(1, Reason.COST_UNKNOWN),
        kept(1, Reason.DWELL),
        kept(1, Reason.CHANGE_RATE),
        kept(1, is_active=True),
        kept(1)._replace(num_speculative_tokens=1, reason=Reason.GAIN),
    ],
    ids=lambda choice: f"{choice.reason} {choice.is_active}",
)
def test_what_is_not_settled_does_not_rest(choice: BucketChoice) -> None:
    assert rested(choice).standing(POLICY, CANDIDATES, BASE, [], 10.0) == {}


def test_whatever_asks_another_question_is_answered_at_once() -> None:
    rest, later_s = rested(), 10.5
    assert len(rest.standing(POLICY, CANDIDATES, BASE, [], later_s)) == 5
    other = POLICY.model_copy(update={"name": "other"})
    assert rest.standing(other, CANDIDATES, BASE, [], later_s) == {}
    assert rest.standing(POLICY, (0, 1), BASE, [], later_s) == {}
    assert 8 not in rest.standing(POLICY, CANDIDATES, {**BASE, 8: 1}, [], later_s)
    assert 8 not in rest.standing(POLICY, CANDIDATES, BASE, [8], later_s)
    assert rest.standing(POLICY, CANDIDATES, BASE, [], 10.0 + REST_S) == {}


def test_a_clock_that_jumps_back_leaves_nothing_standing() -> None:
    assert rested().standing(POLICY, CANDIDATES, BASE, [], 9.0) == {}
    assert NO_REST.standing(POLICY, CANDIDATES, BASE, [], 9.0) == {}
