from __future__ import annotations

from fakes.clock import ManualClock

from specctl.watch.board import STUCK_S, Board, instance_of


def test_a_loop_that_does_not_come_round_is_a_problem() -> None:
    clock = ManualClock()
    health = Board("me", clock)
    a, b = health.add("a"), health.add("b")
    assert health.not_ready() == ["targets were not looked up yet", "a: not polled yet", "b: not polled yet"]
    health.roster_read()
    a.ticked()
    b.ticked()
    assert health.not_ready() == []
    clock.advance(STUCK_S + 1)
    health.roster_read()
    a.ticked()
    assert health.problems() == [f"b: not polled for {STUCK_S + 1:.0f} s"]
    health.forget("b")
    assert health.problems() == []
    clock.advance(STUCK_S + 1)
    a.ticked()
    assert health.problems() == [f"targets were not looked up for {STUCK_S + 1:.0f} s"]


def test_a_target_that_left_is_not_missed() -> None:
    clock = ManualClock()
    board = Board("me", clock)
    board.add("http://h:1")
    board.forget("http://h:1")
    clock.advance(STUCK_S + 1)
    board.roster_read()
    assert board.problems() == []
    assert board.views() == ()


def test_an_instance_is_named_as_prometheus_does() -> None:
    assert instance_of("http://h:8000") == "h:8000"
    assert instance_of("https://h:8443/pre") == "h:8443"
    assert instance_of("unix:///run/engine.sock") == "/run/engine.sock"
