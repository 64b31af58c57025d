from __future__ import annotations

import logging

import pytest

from specctl.engine.guard import FAILURES_MAX, Guard


def raising() -> int:
    raise RuntimeError("made")


def test_a_failure_costs_the_default_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(logging.getLogger("made"))
    assert guard.call("propose", -1, lambda: 3) == 3
    assert guard.call("propose", -1, raising) == -1
    assert guard.call("propose", -1, raising) == -1
    assert guard.failures == {"propose": 2}
    assert not guard.is_resting
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_whether_it_came_to_its_end() -> None:
    guard = Guard(logging.getLogger("made"))
    assert guard.ran("note", lambda: None)
    assert not guard.ran("note", raising)
    assert guard.failures == {"note": 1}


def test_after_a_few_the_method_rests(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(logging.getLogger("made"))
    for entry in ("a", "b", "c")[:FAILURES_MAX]:
        guard.call(entry, None, raising)
    assert guard.is_resting
    assert "nothing is drafted" in caplog.records[-1].getMessage()


def test_the_end_of_a_process_passes() -> None:
    def ends() -> None:
        raise KeyboardInterrupt

    guard = Guard(logging.getLogger("made"))
    with pytest.raises(KeyboardInterrupt):
        guard.call("propose", None, ends)
    assert not guard.failures
