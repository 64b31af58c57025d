"""Groups of servers that change one after another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fakes.engine import COPYING, RANDOM_TEXT
from fakes.group import Group, on_engines

from specctl.contract.table import TableState
from specctl.policy.loader import parse_policy

FIXED = "kind: fixed\nnum_speculative_tokens: 8\n"


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_a_policy_that_helps_reaches_one_server_and_then_the_others(audit: Path) -> None:
    stack, engines = on_engines(3, COPYING)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            await group.run(10)
            assert sorted(group.tokens()) == [0, 0, 8]
            assert all(engine.state is TableState.LIVE for engine in engines)
            await group.run(10)
            assert group.tokens() == [8, 8, 8]
            first, passed = group.records("canary", "canary_passed")
            assert first["target"] == passed["target"]
            assert passed["after_tokens_per_request_s"]["1"] > passed["before_tokens_per_request_s"]["1"]
            assert group.records("rollback") == []

    with stack:
        asyncio.run(course())


def test_a_policy_that_harms_never_reaches_the_second_server(audit: Path) -> None:
    stack, engines = on_engines(3, RANDOM_TEXT)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            most = 0
            for _ in range(50):
                await group.run(1)
                most = max(most, sum(tokens > 0 for tokens in group.tokens()))
            assert most == 1
            assert group.tokens() == [0, 0, 0]
            assert all(engine.state is TableState.LIVE for engine in engines)
            (back,) = group.records("rollback")
            assert "of the tokens per second of a request before it" in back["why"]
            changes = [record["reason"] for record in group.records("change")]
            assert changes == ["set_by_policy", "rollback"]

    with stack:
        asyncio.run(course())


def test_fewer_drafts_reach_every_server_in_one_look(audit: Path) -> None:
    stack, engines = on_engines(3, COPYING, start_tokens=8)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            await group.run(3)
            group.source.policy = parse_policy("kind: off", "p")
            await group.run(1)
            assert group.tokens() == [0, 0, 0]

    with stack:
        asyncio.run(course())


@pytest.mark.parametrize("start_tokens", [0, 8])
def test_the_learning_policy_settles_in_a_group(audit: Path, start_tokens: int) -> None:
    stack, engines = on_engines(3, COPYING, start_tokens)

    async def course() -> None:
        async with Group(engines, "kind: goodput", audit) as group:
            await group.run(60)
            assert min(max(seen) for seen in await group.last_s(3)) >= 7
            assert group.records("rollback") == []
            for engine in engines:
                engine.traffic = RANDOM_TEXT
            await group.run(15)
            assert max(min(seen) for seen in await group.last_s(3)) <= 1

    with stack:
        asyncio.run(course())


def test_a_lying_canary_does_not_hold_up_its_group_for_ever(audit: Path) -> None:
    stack, engines = on_engines(3, COPYING)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            engines[0].lies = True
            await group.run(200)
            assert group.tokens()[1:] == [8, 8]
            assert group.records("refused")

    with stack:
        asyncio.run(course())
