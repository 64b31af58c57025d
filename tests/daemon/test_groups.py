"""Groups of servers that change one after another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fakes.engine import COPYING, RANDOM_TEXT
from fakes.group import Group, on_engines

from specctl.contract.table import TableState

FIXED = "kind: fixed\nnum_speculative_tokens: 8\n"


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_a_policy_that_helps_reaches_one_server_and_then_the_others(audit: Path) -> None:
    stack, engines = on_engines(2, COPYING)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            await group.run(10)
            assert sorted(group.tokens()) == [0, 8]
            assert all(engine.state is TableState.LIVE for engine in engines)
            await group.run(12)
            assert group.tokens() == [8, 8]
            first, passed = group.records("canary", "canary_passed")
            assert first["target"] == passed["target"]
            assert first["owner"] == "me"
            assert passed["after_tokens_per_request_s"]["1"] > passed["before_tokens_per_request_s"]["1"]
            assert group.records("rollback") == []

    with stack:
        asyncio.run(course())


def test_a_policy_that_harms_is_rolled_back_and_never_reaches_the_second_server(audit: Path) -> None:
    stack, engines = on_engines(2, RANDOM_TEXT)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            most = 0
            for _ in range(50):
                await group.run(1)
                most = max(most, sum(tokens > 0 for tokens in group.tokens()))
            assert most == 1
            assert group.tokens() == [0, 0]
            assert all(engine.state is TableState.LIVE for engine in engines)
            (back,) = group.records("rollback")
            assert "of the tokens per second of a request before it" in back["why"]
            felt = [
                (one["reason"], one["from"]["1"]["num_speculative_tokens"])
                for one in group.records("change")
                if one["from"]["1"] != one["to"]["1"]
            ]
            assert felt == [("set_by_policy", 0), ("rollback", 8)]
            # Not again before the pause is over; then it is tried once more.
            await group.run(30)
            assert len(group.records("canary")) == 2

    with stack:
        asyncio.run(course())


def test_less_speculation_reaches_every_server_at_the_next_poll(audit: Path) -> None:
    stack, engines = on_engines(3, COPYING, start_tokens=8)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            await group.run(3)
            group.set_policy("kind: 'off'")
            await group.run(1)
            assert group.tokens() == [0, 0, 0]

    with stack:
        asyncio.run(course())


@pytest.mark.parametrize("start_tokens", [0, 8])
def test_the_learning_policy_settles_in_a_group(audit: Path, start_tokens: int) -> None:
    stack, engines = on_engines(2, COPYING, start_tokens=start_tokens)

    async def course() -> None:
        async with Group(engines, "kind: goodput", audit) as group:
            await group.run(60)
            assert min(group.tokens()) >= 6
            assert group.records("rollback") == []
            for engine in engines:
                engine.traffic = RANDOM_TEXT
            await group.run(15)
            assert max(group.tokens()) <= 1

    with stack:
        asyncio.run(course())


def test_a_canary_that_shows_another_table_does_not_hold_up_its_group_for_ever(audit: Path) -> None:
    stack, engines = on_engines(3, COPYING)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            engines[0].lies = True
            await group.run(100)
            assert group.tokens()[1:] == [8, 8]
            assert group.records("refused")

    with stack:
        asyncio.run(course())


def test_a_canary_that_does_not_answer_any_more_fails(audit: Path) -> None:
    stack, engines = on_engines(2, COPYING)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            await group.run(6)
            at = group.tokens().index(8)
            engines[at].forced_status = dict.fromkeys(
                ("/specctl/v1/telemetry", "/specctl/v1/capabilities", "/metrics"), 503
            )
            await group.run(90)
            assert group.tokens()[1 - at] == 0, "it was alone to judge"
            assert [one["why"] for one in group.records("rollback")] != []

    with stack:
        asyncio.run(course())


def test_one_server_that_leaves_does_not_hold_up_the_other(audit: Path) -> None:
    stack, engines = on_engines(2, COPYING)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            await group.run(6)
            at = group.tokens().index(8)
            await group.rigs.pop(at).stop()
            assert engines[at].tokens_at(1) == 0
            await group.run(5)
            assert engines[1 - at].tokens_at(1) == 8

    with stack:
        asyncio.run(course())
