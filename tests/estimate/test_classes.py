"""Acceptance by traffic class, weighted by who decodes now."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from fakes.observations import cell, observation, shadow
from hypothesis import given
from hypothesis import strategies as st

from specctl.contract.classes import ClassKey
from specctl.estimate.survival import DiscountedSurvival
from specctl.types import ClassDelta, Observation, SurvivalEstimate

CODE, CHAT = ClassKey("", "code", 1024), ClassKey("", "chat", 1024)
LAWS = {CODE: (0.95,) * 4, CHAT: (0.2,) * 4}


def drawn(rng: random.Random, law: tuple[float, ...], drafts: int) -> list[int]:
    survivors, accepted = drafts, []
    for chance in law:
        survivors = sum(rng.random() < chance for _ in range(survivors))
        accepted.append(survivors)
    return accepted


def look(
    time_s: float,
    drafts: dict[ClassKey, int],
    rng: random.Random,
    decoding: dict[ClassKey, int] | None = None,
    tokens: int = 4,
    laws: dict[ClassKey, tuple[float, ...]] = LAWS,
) -> Observation:
    """A look whose steps had ``drafts`` by class, and after which ``decoding`` go on."""
    classes, total = [], [0] * tokens
    for key, number in drafts.items():
        accepted = drawn(rng, laws[key][:tokens], number)
        total = [a + b for a, b in zip(total, accepted, strict=True)]
        full = (number,) * tokens
        reached = (number, *accepted[:-1])
        now = (decoding or drafts).get(key, 0)
        classes.append(ClassDelta(key, now, number, full, full, reached, tuple(accepted)))
    steps = sum(drafts.values())
    seen = observation(cell(steps=steps, tokens=tokens, accepted_at=tuple(total)), time_s=time_s)
    return replace(seen, classes=tuple(classes))


def after(*looks: Observation) -> DiscountedSurvival:
    model = DiscountedSurvival()
    for seen in looks:
        model = model.updated(seen)
    return model


def estimate(model: DiscountedSurvival) -> SurvivalEstimate:
    found = model.estimate(4)
    assert found is not None
    return found


def test_the_mix_that_decodes_now_counts_at_once() -> None:
    rng = random.Random(1)
    model = after(*[look(float(i), {CODE: 50, CHAT: 50}, rng) for i in range(10)])
    both = estimate(model).survival_at
    turned = estimate(
        model.updated(look(10.0, {CODE: 50, CHAT: 50}, rng, decoding={CODE: 0, CHAT: 9}))
    ).survival_at
    assert both[0] == pytest.approx(0.575, abs=0.06)
    assert turned[0] == pytest.approx(0.2, abs=0.06)
    assert turned[3] < 0.02 < 0.3 < both[3]


def test_a_class_is_remembered_while_it_rests() -> None:
    rng = random.Random(2)
    looks = [look(float(i), {CODE: 50, CHAT: 50}, rng) for i in range(10)]
    looks += [look(float(i), {CHAT: 50}, rng, tokens=1) for i in range(10, 60)]
    back = estimate(after(*looks, look(60.0, {CHAT: 50, CODE: 1}, rng, decoding={CODE: 9}, tokens=1)))
    assert back.survival_at[3] == pytest.approx(0.95**4, abs=0.12), "with one draft a step nobody saw more"
    assert back.measured_positions == 4


def test_a_mix_that_moves_raises_no_alarm_and_a_class_that_changes_does() -> None:
    rng = random.Random(3)
    model = after(*[look(float(i), {CODE: 40, CHAT: 40}, rng) for i in range(20)])
    alarms = 0
    for i in range(20, 40):
        model = model.updated(look(float(i), {CODE: 80} if i % 6 < 3 else {CHAT: 80}, rng))
        alarms += model.drifted
    assert alarms <= 1
    worse = LAWS | {CODE: (0.5,) * 4}
    for i in range(40, 43):
        model = model.updated(look(float(i), {CODE: 80}, rng, laws=worse))
        alarms += model.drifted
    assert alarms >= 1
    assert estimate(model).survival_at[0] == pytest.approx(0.5, abs=0.1)


def test_the_same_mix_without_classes_does_raise_alarms() -> None:
    rng = random.Random(3)
    model, alarms = DiscountedSurvival(), 0
    for i in range(40):
        seen = look(float(i), {CODE: 80} if i % 6 < 3 else {CHAT: 80}, rng)
        model = model.updated(replace(seen, classes=None))
        alarms += model.drifted
    assert alarms > 5


@pytest.mark.parametrize("told", [None, ()], ids=["not told", "none seen"])
def test_without_classes_the_pool_stands(told: tuple[ClassDelta, ...] | None) -> None:
    rng = random.Random(4)
    looks = [look(float(i), {CODE: 20, CHAT: 20}, rng) for i in range(5)]
    assert estimate(after(*[replace(seen, classes=told) for seen in looks])) == estimate(
        after(*[replace(seen, classes=None) for seen in looks])
    )


def test_one_class_is_the_pool() -> None:
    rng = random.Random(5)
    looks = [look(float(i), {CODE: 20}, rng) for i in range(5)]
    assert estimate(after(*looks)) == estimate(after(*[replace(seen, classes=None) for seen in looks]))


def test_classes_that_do_not_differ_stay_near_the_pool() -> None:
    rng = random.Random(6)
    alike = {ClassKey("", f"kind{i}", 1024): (0.7,) * 4 for i in range(8)}
    model = after(*[look(float(i), dict.fromkeys(alike, 3), rng, laws=alike) for i in range(8)])
    pool = replace(model, classes=DiscountedSurvival().classes).estimate(4)
    assert pool is not None
    for key in alike:
        only = model.updated(look(9.0, dict.fromkeys(alike, 3), rng, decoding={key: 1}, laws=alike))
        assert estimate(only).survival_at[0] == pytest.approx(pool.survival_at[0], abs=0.15)


def test_shadow_drafts_stay_the_pool() -> None:
    rng = random.Random(7)
    seen = look(1.0, {CODE: 20}, rng)
    followed = replace(seen, shadow=shadow(100, (90, 80, 70, 60)))
    assert estimate(after(followed)).survival_at[0] == pytest.approx(0.9, abs=0.01)


def test_shadow_drafts_are_newer_than_a_memory_of_classes() -> None:
    rng = random.Random(8)
    model = after(*[look(float(i), {CODE: 20, CHAT: 20}, rng) for i in range(8)])
    for i in range(8, 12):
        off = look(float(i), {CODE: 20, CHAT: 20}, rng, tokens=0)
        model = model.updated(replace(off, shadow=shadow(40, (36, 34, 32, 30))))
    pool = replace(model, classes=DiscountedSurvival().classes)
    assert estimate(model) == estimate(pool)


@given(
    st.lists(
        st.dictionaries(st.sampled_from([CODE, CHAT]), st.integers(1, 30), min_size=1),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
def test_a_mix_is_a_share_and_replays_alike(
    drafts: list[dict[ClassKey, int]], tokens: int, seed: int
) -> None:
    looks = [look(float(i), one, random.Random(seed + i), tokens=tokens) for i, one in enumerate(drafts)]
    found = estimate(after(*looks))
    assert found == estimate(after(*looks))
    for values in (found.survival_at, found.drafted_at):
        assert all(0 <= late <= early <= 1 for early, late in pairwise((1.0, *values)))
    assert all(0 <= value <= 1 for value in found.conditional_at)
    assert all(n >= 0 for n in found.trials_at)
