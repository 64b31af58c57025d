"""Steps counted by traffic class."""

import random

from specctl.engine.class_counters import IDLE_S, ClassCounters
from specctl.engine.request_classes import CLASSES_MAX, OTHER, ClassKey

CODE, CHAT = ClassKey("", "code", 1024), ClassKey("", "chat", 1024)


def by_key(counters, is_idle=False):
    return {one.key: one for one in counters.snapshot(is_idle=is_idle)}


def test_steps_are_counted_by_class_and_positions_that_nobody_asked_for_are_censored():
    counters = ClassCounters(4)
    code, chat = counters.number_of(CODE, 0.0), counters.number_of(CHAT, 0.0)
    counters.add(4, [code, chat, code], [4, 4, 4], [4, 0, 2], 1.0)
    counters.add(2, [code, chat], [2, 1], [2, 1], 2.0)
    seen = by_key(counters)
    assert (seen[CODE].decoding, seen[CODE].request_steps) == (1, 3)
    assert seen[CODE].watched_at == (3, 3, 2, 2)
    assert seen[CODE].drafted_at == (3, 3, 2, 2)
    assert seen[CODE].reached_at == (3, 3, 2, 1), "the step of two drafts says nothing of the third"
    assert seen[CODE].accepted_at == (3, 3, 1, 1)
    assert (seen[CHAT].drafted_at, seen[CHAT].accepted_at) == ((2, 1, 1, 1), (1, 0, 0, 0))
    assert by_key(counters, is_idle=True)[CODE].decoding == 0


def test_a_class_adds_up_to_what_its_own_counters_would_tell():
    rng = random.Random(5)
    together, alone = ClassCounters(5), ClassCounters(5)
    keys = [ClassKey("", f"kind{i}", 1024) for i in range(7)]
    numbers = [together.number_of(key, 0.0) for key in keys]
    only = alone.number_of(keys[3], 0.0)
    for step in range(200):
        members = [rng.randrange(7) for _ in range(rng.randrange(1, 40))]
        setting = rng.choice((0, 3, 5))
        drafted = [rng.randint(0, setting) for _ in members]
        accepted = [rng.randint(0, most) for most in drafted]
        together.add(setting, [numbers[m] for m in members], drafted, accepted, step)
        mine = [i for i, member in enumerate(members) if member == 3]
        if mine:
            alone.add(
                setting, [only] * len(mine), [drafted[i] for i in mine], [accepted[i] for i in mine], step
            )
    one, other = by_key(together, is_idle=True)[keys[3]], by_key(alone, is_idle=True)[keys[3]]
    assert one == other


def test_new_classes_are_others_until_one_has_rested_long():
    counters = ClassCounters(2)
    keys = [ClassKey("", f"kind{i}", 1024) for i in range(CLASSES_MAX)]
    numbers = [counters.number_of(key, 0.0) for key in keys]
    counters.add(2, numbers, [2] * CLASSES_MAX, [1] * CLASSES_MAX, 0.0)
    late = counters.number_of(CODE, IDLE_S - 1)
    counters.add(2, [late, *numbers[1:]], [2] * CLASSES_MAX, [2] * CLASSES_MAX, IDLE_S - 1)
    assert set(by_key(counters)) == {OTHER, *keys}
    assert by_key(counters)[OTHER].accepted_at == (1, 1)

    code = counters.number_of(CODE, IDLE_S + 1)
    assert code not in (late, *numbers)
    counters.add(2, [code, numbers[0]], [2, 2], [2, 2], IDLE_S + 1)
    seen = by_key(counters)
    assert set(seen) == {OTHER, CODE, *keys[1:]}, "the class seen least recently has gone"
    assert seen[CODE].request_steps == 1
    assert seen[OTHER].request_steps == 2, "with a request that outlived its class"


def test_counting_keeps_a_pace():
    counters = ClassCounters(2)
    number = counters.number_of(CODE, 0.0)
    assert counters.due_s < 0.0
    counters.add(2, [number], [2], [1], 10.0)
    assert 10.0 < counters.due_s < 10.1
    counters.add(2, [number] * 256, [2] * 256, [1] * 256, 11.0)
    assert 11.1 < counters.due_s < 11.2
