from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specctl.estimate import drift

COUNT = st.tuples(st.floats(0.0, 1.0), st.integers(0, 60)).map(lambda p: (round(p[0] * p[1]), float(p[1])))
TRIALS = st.lists(COUNT, min_size=1, max_size=5).map(tuple)


@settings(max_examples=400)
@given(newest=TRIALS, past=TRIALS)
def test_the_quick_answer_is_the_test_s_answer(newest: drift.Trials, past: drift.Trials) -> None:
    with pytest.MonkeyPatch.context() as patch:
        quick = drift.has_drifted(newest, past)
        patch.setattr(drift, "_cannot_have_drifted", lambda pairs: False)
        assert quick == drift.has_drifted(newest, past)
