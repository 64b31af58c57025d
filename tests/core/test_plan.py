"""One bucket's choice: what is wanted, and what holds it back."""

from __future__ import annotations

import numpy as np
import pytest
from fakes.forecasts import cost, forecast_of, space_of
from fakes.observations import chains
from hypothesis import given, settings
from hypothesis import strategies as st

from specctl.contract.setting import RowSample, Setting
from specctl.contract.table import TableRow, uniform_rows
from specctl.core.messages import Reason
from specctl.core.plan import Decider, choices_of, planned_rows
from specctl.core.rails import Constraint
from specctl.core.settings import GuardRailSettings

SPACE = space_of(chains(0, 1, 2))
NAN = float("nan")
STEPS = (0.010, 0.010, 0.010)
"""With steps of one length the gain is that in tokens."""
RAILS = GuardRailSettings()


def decider(
    emitted: tuple[float, ...] = (1.0, 1.0, 1.0),
    *,
    present: int = 0,
    sigma: float = 0.0,
    step_s: tuple[float, ...] = STEPS,
    trials: float = 100.0,
    eligible: tuple[bool, ...] = (True, True, True),
    used: tuple[float, ...] = (0.0, 0.0, 0.0),
    constraints: tuple[Constraint, ...] = (),
) -> Decider:
    found = forecast_of(SPACE, emitted, cost(SPACE, step_s, sigma=sigma), present=present, trials=trials)
    return Decider(
        found,
        RAILS,
        np.array(eligible),
        np.array([used]),
        constraints,
    )


@pytest.mark.parametrize(
    ("one", "setting", "reason"),
    [
        (decider((1.0, 1.5, 1.2)), 1, Reason.GAIN),
        (decider((1.0, 1.5, 1.2), present=1), 1, Reason.NO_BETTER),
        (decider((1.0, 1.015, 1.0)), 0, Reason.NO_BETTER),
        (decider((1.0, 0.9, 0.9), present=2), 0, Reason.OFF_NO_GAIN),
        (decider((1.0, 0.995, 0.9), present=1), 0, Reason.OFF_NO_GAIN),
        (decider((1.0, 1.5, 1.0), trials=0), 0, Reason.FEW_SAMPLES),
        (decider((1.0, 1.5, 1.0), step_s=(NAN, NAN, NAN), present=1), 1, Reason.COST_UNKNOWN),
        (decider((1.0, 1.5, 1.2), eligible=(False, True, True)), 1, Reason.SET_BY_POLICY),
        (decider((1.0, 0.9, 0.8), eligible=(False, True, True), present=2), 1, Reason.GAIN),
        (decider((1.0, 1.5, 1.2), used=(0.5, 1.1, 0.9)), 2, Reason.GAIN),
        (decider((1.0, 1.5, 1.2), used=(0.5, 1.1, 0.9), present=1), 2, Reason.LATENCY_BOUND),
        (decider((1.0, 1.5, 1.2), used=(3.0, 1.5, 2.0)), 1, Reason.LATENCY_BOUND),
        (decider((1.0, 1.5, 1.2), used=(3.0, 1.5, 1.51), present=2), 2, Reason.LATENCY_BOUND),
    ],
    ids=[
        "gain", "best already", "under the least gain", "off is best",
        "hardly worse than off", "nothing drafted yet",
        "no cost", "outside the bounds", "off is not allowed",
        "fastest within the bounds", "in force breaks a bound", "least broken", "hardly less broken",
    ],
)  # fmt: skip
def test_a_choice(one: Decider, setting: int, reason: Reason) -> None:
    assert one.choose(0)[:2] == (setting, reason)


def test_what_would_gain_is_said_with_its_error() -> None:
    one = decider((1.0, 1.015, 1.0), sigma=0.2)
    assert one.choose(0)[2] == "1 token would gain +1.5%, +- 28.7%"
    assert decider((1.0, 1.5, 1.2), present=1).choose(0)[2] == ""


def only(*allowed: bool, reason: Reason = Reason.DWELL, words: str = "held") -> Constraint:
    return Constraint(np.array([allowed]), reason, words)


def test_a_constraint_gives_its_reason_and_the_best_of_what_it_leaves() -> None:
    held = decider((1.0, 1.5, 1.8), constraints=(only(True, True, False),))
    assert held.choose(0) == (1, Reason.DWELL, "held")
    stays = decider((1.0, 1.5, 1.8), constraints=(only(True, False, False),))
    assert stays.choose(0) == (0, Reason.DWELL, "held")


def test_a_constraint_that_is_in_nobodys_way_is_not_the_reason() -> None:
    one = decider((1.0, 1.5, 1.2), constraints=(only(True, True, False),))
    assert one.choose(0)[:2] == (1, Reason.GAIN)


def test_the_first_constraint_in_the_way_is_the_reason_and_all_of_them_hold() -> None:
    one = decider(
        (1.0, 1.5, 1.8),
        constraints=(
            only(True, True, False, reason=Reason.CANARY_WAIT, words="first"),
            only(True, False, True, words="second"),
        ),
    )
    assert one.choose(0) == (0, Reason.CANARY_WAIT, "first")


def test_where_constraints_leave_nothing_the_setting_in_force_stays() -> None:
    one = decider((1.0, 1.5, 1.8), present=1, constraints=(only(False, False, False),))
    assert one.choose(0)[0] == 1


def test_a_setting_that_may_not_stay_is_left_for_the_best_that_may() -> None:
    one = decider((1.0, 1.5, 1.8), present=2, constraints=(only(True, True, False, reason=Reason.ROLLBACK),))
    assert one.choose(0)[:2] == (1, Reason.ROLLBACK)


@settings(deadline=None)
@given(
    st.tuples(*[st.floats(1.0, 9.0)] * 2),
    st.tuples(*[st.floats(1e-3, 1e-1)] * 3),
    st.integers(0, 2),
    st.floats(0, 1),
    st.tuples(*[st.booleans()] * 3).filter(any),
    st.tuples(*[st.floats(0, 3)] * 3),
    st.lists(st.tuples(*[st.booleans()] * 3), max_size=3),
)
def test_any_choice_is_in_force_or_within_all_bounds(
    emitted: tuple[float, ...],
    step_s: tuple[float, ...],
    present: int,
    sigma: float,
    eligible: tuple[bool, ...],
    used: tuple[float, ...],
    allowed: list[tuple[bool, ...]],
) -> None:
    constraints = tuple(only(*one) for one in allowed)
    one = decider(
        (1.0, *emitted), step_s=step_s, present=present, sigma=sigma, eligible=eligible, used=used,
        constraints=constraints,
    )  # fmt: skip
    at = one.choose(0)[0]
    left = [all(part) for part in zip(*allowed, strict=True)] if allowed else [True] * 3
    assert at == present or left[at]
    assert at == present or eligible[at] or not left[present]


# The rows.


def rows_of(*settings: int, in_force: tuple[TableRow, ...] = uniform_rows(0)) -> tuple[TableRow, ...]:
    space = space_of(chains(0, 1, 2), (1, 2, 4))
    found = forecast_of(space, (1.0, 1.5, 1.8), cost(space, STEPS))
    picked = [(at, Reason.GAIN, "") for at in settings]
    return planned_rows(choices_of(found, picked, in_force), in_force)[0]


def test_neighbours_that_are_alike_are_one_row() -> None:
    assert rows_of(0, 0, 0) == uniform_rows(0)
    assert [(row.decode_batch_from, row.decode_batch_to) for row in rows_of(2, 2, 1)] == [(1, 2), (3, None)]


def test_a_row_that_begins_inside_of_a_bucket_stays_where_nothing_is_changed() -> None:
    in_force = (
        TableRow(decode_batch_from=1, decode_batch_to=3, num_speculative_tokens=0),
        TableRow(decode_batch_from=4, num_speculative_tokens=2),
    )
    assert rows_of(0, 0, 0, in_force=in_force) == in_force
    changed = rows_of(0, 0, 1, in_force=in_force)
    assert [row.num_speculative_tokens for row in changed] == [0, 1]


def test_what_a_plan_changes_is_said_and_samples_are_no_change() -> None:
    space = space_of(chains(0, 1, 2), (1, 2, 4))
    found = forecast_of(space, (1.0, 1.5, 1.8), cost(space, STEPS))
    choices = choices_of(found, [(2, Reason.GAIN, ""), *[(0, Reason.NO_BETTER, "")] * 2], uniform_rows(0))
    assert planned_rows(choices, uniform_rows(0))[1] == ("batch 1 on: off -> 2 tokens",)
    sample = RowSample(setting=Setting(num_speculative_tokens=2), every_steps=9)
    sampled = tuple(one._replace(after=one.before, sample=sample) for one in choices)
    rows, changes = planned_rows(sampled, uniform_rows(0))
    assert (rows[0].sample, changes) == (sample, ())
