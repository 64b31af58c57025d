"""Requests of several kinds in one closed loop: which setting gives the most tokens over the long run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fakes.observations import capabilities, chains, tree

from specctl.contract.telemetry import AcceptanceGroup
from specctl.core.request_groups import RequestGroups
from specctl.core.space import Floats, Space

SPACE = Space.of(capabilities(chains(0, 1, 2, 4)))
MANY = 1e9
"""Steps, beside which the prior does not count."""
EXACT = 1e-6


def emitted(q: float) -> Floats:
    """[setting]: tokens per step of a request whose drafts are accepted with this chance at each depth."""
    return np.array([1.0 + sum(q**j for j in range(1, depth + 1)) for depth in SPACE.depth])


def group(q: float, steps: float, in_force: int = 4) -> AcceptanceGroup:
    """Of many steps under ``in_force`` drafts, and of a thousandth as many samples of 4."""
    at = [q**j * (steps if j <= in_force else steps / 1000) for j in range(5)]
    reached = [*at[:in_force], *(q**j * steps / 1000 for j in range(in_force, 4))]
    return AcceptanceGroup(
        request_steps=int(steps), reached_at=tuple(map(int, reached)), accepted_at=tuple(map(int, at[1:]))
    )


def seen(*groups: AcceptanceGroup) -> tuple[RequestGroups, Floats]:
    found = RequestGroups(SPACE)
    found.update(groups, 1.0)
    return found, np.array([float(one.request_steps) for one in groups])


def steps_at(setting: int, rates: Sequence[float]) -> Floats:
    """[group]: of as many tokens of each."""
    return MANY / np.array([emitted(q)[setting] for q in rates])


def mean(rates: Sequence[float], steps: Floats) -> Floats:
    """[setting]: tokens per step over all steps."""
    found: Floats = steps / steps.sum() @ np.array([emitted(q) for q in rates])
    return found


def long_run(rates: Sequence[float]) -> Floats:
    """[setting]: tokens per step in a closed loop with as many tokens of each kind."""
    found: Floats = len(rates) / np.sum([1.0 / emitted(q) for q in rates], axis=0)
    return found


def test_nothing_is_known_without_groups() -> None:
    groups, _ = seen()
    assert groups.ratio(np.zeros(16), at_full_depth=False).tolist() == [1.0, 1.0, 1.0, 1.0]


def test_nobody_decoded_lately() -> None:
    groups, _ = seen(group(0.5, MANY))
    assert groups.ratio(np.zeros(16), at_full_depth=False).tolist() == [1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("q", [0.1, 0.8])
def test_requests_that_are_alike(q: float) -> None:
    groups, members = seen(*[group(q, MANY * (i + 1)) for i in range(4)])
    assert groups.ratio(members, at_full_depth=False) == pytest.approx([1.0] * 4, rel=EXACT)


@pytest.mark.parametrize(("setting", "in_force"), [(1, 1), (2, 2), (3, 4)])
@pytest.mark.parametrize("rates", [(0.9, 0.1), (0.6, 0.3)])
def test_every_setting_is_worth_what_it_brings_in_the_long_run(
    rates: tuple[float, float], setting: int, in_force: int
) -> None:
    """Whatever ran. The mean over the steps at hand is too high for every deeper setting."""
    steps = steps_at(setting, rates)
    groups, members = seen(*[group(q, n, in_force) for q, n in zip(rates, steps, strict=True)])
    found = mean(rates, steps) * groups.ratio(members, at_full_depth=False)
    assert found == pytest.approx(long_run(rates), rel=0.01)
    assert np.all(mean(rates, steps)[setting + 1 :] > long_run(rates)[setting + 1 :])


def test_a_mean_over_full_drafts_holds_fewer_steps_of_the_easy_requests() -> None:
    """As shadow drafts tell it, while 1 draft is in force."""
    rates, now, full = (0.9, 0.1), steps_at(1, (0.9, 0.1)), steps_at(3, (0.9, 0.1))
    groups, members = seen(*[group(q, n, 1) for q, n in zip(rates, now, strict=True)])
    found = mean(rates, full) * groups.ratio(members, at_full_depth=True)
    assert found == pytest.approx(long_run(rates), rel=0.01)


def test_a_change_of_the_text_is_no_difference_between_requests() -> None:
    """All requests were accepted, then none is: what the groups had is forgotten."""
    groups, members = seen(group(0.9, 1000.0), group(0.9, 1000.0))
    groups.update([group(0.1, 500.0), group(0.9, 0.0)], 1.0)
    assert groups.ratio(members, at_full_depth=False) == pytest.approx([1.0] * 4, abs=0.02)


def test_a_group_of_few_steps_is_drawn_to_the_others() -> None:
    groups, members = seen(group(0.5, 1000.0), group(1.0, 2.0))
    assert groups.ratio(members, at_full_depth=False) == pytest.approx([1.0] * 4, abs=0.001)


def test_a_restart_with_other_groups_begins_anew() -> None:
    groups, _ = seen(group(0.9, MANY), group(0.1, MANY))
    groups.update([group(0.5, MANY)], 1.0)
    assert groups.ratio(np.array([1.0]), at_full_depth=False) == pytest.approx([1.0] * 4)


def test_a_tree_is_worth_what_a_chain_as_deep_is() -> None:
    space = Space.of(capabilities((*chains(0, 2, 4), tree(2, 2, 5))))
    groups = RequestGroups(space)
    groups.update([group(0.9, 1e6), group(0.1, 1e6)], 1.0)
    ratio = groups.ratio(np.array([0.5, 0.5]), at_full_depth=False)
    depth_two = ratio[space.depth == 2]
    assert len(depth_two) == 2
    assert np.ptp(depth_two) == 0.0
