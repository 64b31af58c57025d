from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specctl.core import drift

COUNT = st.tuples(st.floats(0.0, 1.0), st.integers(0, 60)).map(lambda p: (round(p[0] * p[1]), float(p[1])))
TRIALS = st.lists(COUNT, min_size=1, max_size=5).map(tuple)


@settings(max_examples=400, deadline=None)
@given(newest=TRIALS, past=TRIALS)
def test_the_quick_answer_is_the_test_s_answer(newest: drift.Trials, past: drift.Trials) -> None:
    with pytest.MonkeyPatch.context() as patch:
        quick = drift.has_drifted(newest, past)
        patch.setattr(drift, "_cannot_have_drifted", lambda pairs: False)
        assert quick == drift.has_drifted(newest, past)


@pytest.mark.parametrize(
    ("newest", "past", "has_drifted"),
    [
        (((8, 8), (7, 8)), ((400, 500), (300, 400)), False),
        (((1, 20),), ((400, 500),), True),
        (((20, 20), (1, 20)), ((500, 500), (450, 500)), True),
        (((0, 20),), ((3, 3.9),), False),
        ((), ((400, 500),), False),
        (((5, 9),), (), False),
    ],
    ids=["usual", "collapse", "deeper collapse", "too little past", "nothing new", "no past"],
)
def test_by_example(newest: drift.Trials, past: drift.Trials, has_drifted: bool) -> None:
    assert drift.has_drifted(newest, past) is has_drifted


def test_trials_that_agree_more_than_chance_has_it_are_worth_less() -> None:
    past, newest = ((300, 500),), ((4, 20),)
    assert drift.has_drifted(newest, past)
    assert not drift.has_drifted(newest, past, 4.0)
    assert drift.has_drifted(((32, 160),), past, 4.0)


@pytest.mark.parametrize("positions", [1, 4, 8])
def test_independent_trials_have_a_dispersion_of_one(positions: int) -> None:
    rng, found = random.Random(1), []
    for _ in range(600):
        counts = [(float(sum(rng.random() < 0.6 for _ in range(200))), 200.0) for _ in range(positions)]
        found.append(drift.dispersion_of(tuple(counts), ((6e5, 1e6),) * positions))
    assert statistics.median(one for one in found if one is not None) == pytest.approx(1.0, abs=0.12)


def test_a_few_trials_tell_no_dispersion() -> None:
    assert drift.dispersion_of(((2.0, 3.0),), ((50.0, 100.0),)) is None
    assert drift.dispersion_of(((2.0, 4.0), (1.0, 2.0)), ((50.0, 100.0), (20.0, 40.0))) == 0.0
    assert drift.dispersion_of((), ()) is None


def test_full_drafts_in_a_row_end_a_time_without_any() -> None:
    """One request on a CPU: a full draft of 8 takes a second, so two are two seconds of evidence."""
    past = ((20.0, 200.0), *((18.0, 20.0),) * 7)
    assert drift.has_drifted(((2.0, 2.0),) * 8, past)
