"""Requests told apart by how often their drafts were accepted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specctl.contract.telemetry import AcceptanceGroup
from specctl.engine.acceptance_groups import GROUPS
from specctl.engine.request_classes import OTHER
from specctl.engine.traffic_classes import RequestClasses

NOTHING = AcceptanceGroup(request_steps=0, reached_at=(0, 0, 0), accepted_at=(0, 0, 0))


@pytest.fixture
def classes() -> RequestClasses:
    return RequestClasses(3, lambda _: OTHER, lambda _: 0)


def arrived(classes: RequestClasses, count: int) -> list[Any]:
    requests = [SimpleNamespace() for _ in range(count)]
    for one in requests:
        classes.arrived(one, 0.0)
    return requests


def test_nothing_counted(classes: RequestClasses) -> None:
    assert classes.groups.snapshot() == (NOTHING,) * GROUPS


def test_a_request_goes_where_its_earlier_steps_put_it(classes: RequestClasses) -> None:
    easy, hard = arrived(classes, 2)
    for _ in range(200):
        classes.count(3, [easy, hard], [3, 3], [3, 0], 0.0)
    least, *_, most = classes.groups.snapshot()
    assert least.accepted_at == (0, 0, 0)
    assert most.accepted_at == (most.request_steps,) * 3
    assert min(least.request_steps, most.request_steps) > 190


def test_the_step_itself_does_not_decide_where_it_is_counted(classes: RequestClasses) -> None:
    """Else luck alone would make groups of requests that are alike."""
    (request,) = arrived(classes, 1)
    classes.count(3, [request], [3], [3], 0.0)
    counted = [one for one in classes.groups.snapshot() if one.request_steps]
    (other,) = arrived(classes, 1)
    classes.count(3, [other], [3], [0], 0.0)
    again = [one for one in classes.groups.snapshot() if one.request_steps]
    assert [one.request_steps for one in counted] == [1]
    assert [one.request_steps for one in again] == [2]


def test_steps_without_drafts_move_nobody(classes: RequestClasses) -> None:
    (request,) = arrived(classes, 1)
    for _ in range(20):
        classes.count(0, [request], [0], [0], 0.0)
    (counted,) = (one for one in classes.groups.snapshot() if one.request_steps)
    assert (counted.request_steps, sum(counted.reached_at)) == (20, 0)


def test_positions_that_were_not_asked_for_are_not_counted(classes: RequestClasses) -> None:
    (request,) = arrived(classes, 1)
    classes.count(1, [request], [1], [1], 0.0)
    (counted,) = (one for one in classes.groups.snapshot() if one.request_steps)
    assert (counted.reached_at, counted.accepted_at) == ((1, 0, 0), (1, 0, 0))


def test_a_request_keeps_its_group_as_its_context_grows(classes: RequestClasses) -> None:
    (request,) = arrived(classes, 1)
    for _ in range(20):
        classes.count(3, [request], [3], [0], 0.0)
    before = classes.groups.snapshot()[0].request_steps
    classes.arrived(request, 1.0)
    classes.count(3, [request], [3], [0], 1.0)
    assert classes.groups.snapshot()[0].request_steps == before + 1


def test_a_request_that_nobody_announced_is_counted_too(classes: RequestClasses) -> None:
    classes.count(3, [SimpleNamespace()], [3], [2], 0.0)
    assert sum(one.request_steps for one in classes.groups.snapshot()) == 1
