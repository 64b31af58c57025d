from __future__ import annotations

import numpy as np
import pytest
from fakes.forecasts import space_of
from fakes.observations import chains, tree

from specctl.contract.setting import Setting
from specctl.core.messages import Reason
from specctl.core.rails import IDLE_DWELL_S, Constraint, Held, Rails, all_but_present, held_constraints
from specctl.policy.settings import GuardRailSettings

SPACE = space_of((*chains(0, 2, 4), tree(2, 4, 9)), (1, 2))
SHAPE = 2, 4
PRESENT = np.array([1, 0])
SETTINGS = GuardRailSettings(dwell_s=2.0, changes_max_per_minute=3)


def held_back(
    rails: Rails, time_s: float, *active: bool, settings: GuardRailSettings = SETTINGS
) -> list[Constraint]:
    return rails.constraints(settings, PRESENT, np.array(active or (True, True)), SHAPE, time_s)


def allowed(found: list[Constraint]) -> list[list[bool]]:
    return found[0].allowed.tolist()  # type: ignore[no-any-return]


def test_nothing_is_held_before_the_first_change() -> None:
    assert held_back(Rails(SPACE), 0.0) == []


def test_only_the_bucket_that_changed_is_held_and_only_for_its_dwell_time() -> None:
    rails = Rails(SPACE)
    rails.accepted([0], 10.0)
    (constraint,) = held_back(rails, 11.9)
    assert constraint.allowed.tolist() == [[False, True, False, False], [True] * 4]
    assert (constraint.reason, constraint.words) == (Reason.DWELL, "changed less than 2 s ago")
    assert held_back(rails, 12.0) == []


def test_a_bucket_without_traffic_waits_longer() -> None:
    rails = Rails(SPACE)
    rails.accepted([0, 1], 10.0)
    at_s = 10.0 + (2.0 + IDLE_DWELL_S) / 2
    assert allowed(held_back(rails, at_s, True, False)) == [[True] * 4, [True, False, False, False]]
    assert held_back(rails, 10.0 + IDLE_DWELL_S, True, False) == []


def test_a_drift_ends_the_dwell_time_of_every_bucket() -> None:
    rails = Rails(SPACE)
    rails.accepted([0, 1], 10.0)
    rails.forget_dwell()
    assert held_back(rails, 10.1) == []


def test_changes_of_the_last_minute_are_counted_once_a_table() -> None:
    rails = Rails(SPACE)
    for time_s in (0.0, 10.0, 20.0):
        rails.accepted([0, 1], time_s)
    rails.accepted([], 21.0)
    (constraint,) = held_back(rails, 40.0)
    assert constraint.allowed.tolist() == [[False, True, False, False], [True, False, False, False]]
    assert (constraint.reason, constraint.words) == (Reason.CHANGE_RATE, "3 changes in the last minute")
    assert held_back(rails, 60.0) == [], "the first one is a minute old"


def test_a_drift_does_not_give_more_changes_a_minute() -> None:
    rails = Rails(SPACE)
    for time_s in (0.0, 1.0, 2.0):
        rails.accepted([0], time_s)
    rails.forget_dwell()
    assert [one.reason for one in held_back(rails, 3.0)] == [Reason.CHANGE_RATE]


def test_what_is_held_may_keep_what_it_has() -> None:
    found = all_but_present(np.array([True, False]), PRESENT, SHAPE)
    assert found.tolist() == [[False, True, False, False], [True] * 4]


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (Setting(num_speculative_tokens=0), [True, False, False, False]),
        (Setting(num_speculative_tokens=2), [True, True, False, False]),
        (Setting(num_speculative_tokens=4), [True, True, True, False]),
        (tree(2, 4, 9), [True, True, False, True]),
    ],
)
def test_a_ceiling_lets_pass_what_drafts_and_verifies_no_more(most: Setting, expected: list[bool]) -> None:
    (found,) = held_constraints(Held(ceilings={2: (most, Reason.CANARY_WAIT, "waits")}), SPACE)
    assert found.allowed.tolist() == [[True] * 4, expected]
    assert (found.reason, found.words) == (Reason.CANARY_WAIT, "waits")


def test_a_rollback_leaves_one_setting_and_off_where_that_is_gone() -> None:
    held = Held(
        {
            1: (tree(2, 4, 9), Reason.ROLLBACK, "worse"),
            2: (Setting(num_speculative_tokens=7), Reason.ROLLBACK, ""),
        }
    )
    first, second = held_constraints(held, SPACE)
    assert first.allowed.tolist() == [[False, False, False, True], [True] * 4]
    assert second.allowed.tolist() == [[True] * 4, [True, False, False, False]]


def test_a_bucket_that_the_server_does_not_have_is_not_held() -> None:
    held = Held({64: (Setting(num_speculative_tokens=2), Reason.ROLLBACK, "worse")})
    assert held_constraints(held, SPACE) == []
