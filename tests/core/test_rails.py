from __future__ import annotations

import numpy as np
import pytest
from fakes.forecasts import space_of
from fakes.observations import chains, tree

from specctl.contract.setting import Setting
from specctl.core.messages import Reason
from specctl.core.rails import Held, Rails, held_constraints

SPACE = space_of((*chains(0, 2, 4), tree(2, 4, 9)), (1, 2))
PRESENT = np.array([1, 0])


FREE = [[True] * 4, [True] * 4]


def allowed(
    rails: Rails, time_s: float, *, may_wait: bool = True, has_drifted: bool = False
) -> list[list[bool]]:
    found = rails.dwell(2.0, PRESENT, np.array([may_wait, True]), has_drifted, time_s)
    assert (found.reason, found.words) == (Reason.DWELL, "changed less than 2 s ago")
    return found.allowed.tolist()  # type: ignore[no-any-return]


def test_nothing_is_held_before_the_first_change() -> None:
    assert allowed(Rails(SPACE), 0.0) == FREE


def test_only_the_bucket_that_changed_is_held_and_only_for_its_dwell_time() -> None:
    rails = Rails(SPACE)
    rails.accepted([0], 10.0)
    assert allowed(rails, 11.9) == [[False, True, False, False], [True] * 4]
    assert allowed(rails, 12.0) == FREE


def test_a_bucket_that_may_not_wait_is_not_held() -> None:
    rails = Rails(SPACE)
    rails.accepted([0, 1], 10.0)
    assert allowed(rails, 10.1, may_wait=False) == [[True] * 4, [True, False, False, False]]


def test_where_the_text_has_changed_a_bucket_may_change_early_once() -> None:
    rails = Rails(SPACE)
    held = [[False, True, False, False], [True] * 4]
    rails.accepted([0], 10.0)
    assert allowed(rails, 10.5, has_drifted=True) == FREE
    rails.accepted([0], 10.5)
    assert allowed(rails, 12.4, has_drifted=True) == held
    assert allowed(rails, 12.5) == FREE
    rails.accepted([0], 12.5)
    assert allowed(rails, 13.0) == held
    assert allowed(rails, 13.0, has_drifted=True) == FREE


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
