"""The freeze switch: tables hold, leases are renewed, nothing is changed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine
from fakes.group import Group, on_engines

from specctl.contract.table import TableState

LEARNING = "kind: goodput\nlease_s: 10\n"
EIGHT = "kind: fixed\nnum_speculative_tokens: 8\nlease_s: 10\nrollout: {canary_s: 5}\n"


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_while_frozen_tables_hold_and_nothing_changes_until_it_is_thawed(audit: Path) -> None:
    async def course() -> None:
        async with Group([engine], LEARNING, audit) as group:
            (rig,) = group.rigs
            await group.run(15)
            assert engine.tokens_at(1) >= 6
            group.set_policy(f"{LEARNING}frozen: true")
            await group.run(1)
            rows, changes = engine.rows, len(group.records("change"))
            assert engine.reason.startswith("frozen: ")
            assert rig.loop.acting_frozen is None
            engine.traffic = RANDOM_TEXT
            for _ in range(40):
                await group.run(1)
                assert (engine.rows, engine.state) == (rows, TableState.LIVE)
            assert len(group.records("change")) == changes
            assert rig.metric("specctl_frozen") == 1
            group.set_policy(LEARNING)
            await group.run(6)
            assert engine.tokens_at(1) <= 1, "one draft is level with off here"
            assert not engine.reason.startswith("frozen: ")
            assert rig.metric("specctl_frozen") == 0
            assert [one["event"] for one in group.records("frozen", "thawed")] == ["frozen", "thawed"]

    with FakeEngine(traffic=COPYING) as engine:
        asyncio.run(course())


def test_a_daemon_that_starts_frozen_changes_nothing_at_all(audit: Path) -> None:
    async def course() -> None:
        async with Group([engine], LEARNING, audit) as group:
            group.freeze()
            await group.run(20)
            assert engine.puts == []
            group.freeze(is_frozen=False)
            await group.run(10)
            assert engine.tokens_at(1) == 0

    with FakeEngine(traffic=RANDOM_TEXT, start_tokens=3) as engine:
        asyncio.run(course())


def test_a_sample_that_runs_goes_on_as_it_stands(audit: Path) -> None:
    """The table is held whole: a row's sample is a part of it."""

    async def course() -> None:
        async with Group([engine], LEARNING, audit) as group:
            await group.run(10)
            assert any(row.sample for row in engine.rows)
            rows = engine.rows
            group.freeze()
            await group.run(20)
            assert engine.rows == rows

    with FakeEngine(traffic=COPYING, start_tokens=8) as engine:
        asyncio.run(course())


def test_a_freeze_ends_a_trial_without_a_verdict(audit: Path) -> None:
    stack, engines = on_engines(2, COPYING)

    async def course() -> None:
        async with Group(engines, EIGHT, audit) as group:
            await group.run(6)
            assert sorted(group.tokens()) == [0, 8]
            group.freeze()
            await group.run(60)
            assert sorted(group.tokens()) == [0, 8]
            assert group.rollout.canary is None
            assert group.records("rollback", "canary_passed") == []
            group.freeze(is_frozen=False)
            await group.run(15)
            assert group.tokens() == [8, 8]

    with stack:
        asyncio.run(course())


def test_a_table_that_was_lost_during_a_freeze_is_not_put_back(audit: Path) -> None:
    async def course() -> None:
        async with Group([engine], EIGHT, audit) as group:
            await group.run(3)
            group.freeze()
            await group.run(2)
            engine.advance(20.0)
            puts = len(engine.puts)
            assert engine.state is TableState.FALLBACK
            await group.run(20)
            assert (engine.state, len(engine.puts)) == (TableState.FALLBACK, puts)

    with FakeEngine(traffic=COPYING) as engine:
        asyncio.run(course())


def test_freeze_and_thaw_are_logged_once(audit: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="specctl")

    async def course() -> None:
        async with Group([engine], EIGHT, audit) as group:
            for is_frozen in (True, True, False, False):
                group.freeze(is_frozen=is_frozen)
                await group.run(3)

    with FakeEngine(traffic=COPYING) as engine:
        asyncio.run(course())
    assert caplog.text.count("frozen: nothing is changed") == 1
    assert caplog.text.count("thawed: changes go on") == 1


def test_a_policy_that_is_not_possible_on_a_server_changes_nothing_there(
    audit: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its table and its lease stay as they are; the start table of another server, too."""
    caplog.set_level(logging.INFO)

    async def course() -> None:
        async with Group([steered], LEARNING, audit) as group:
            await group.run(15)
            rows, changes = steered.rows, len(group.records("change"))
            group.set_policy(f"{LEARNING}knobs: {{tree_topk: {{min: 9}}}}")
            await group.run(40)
            assert (steered.rows, steered.state) == (rows, TableState.LIVE)
            assert steered.reason.startswith("not_possible: ")
            assert len(group.records("change")) == changes
            group.set_policy(LEARNING)
            await group.run(2)
            assert not steered.reason.startswith("not_possible: ")
        async with Group([new], f"{LEARNING}knobs: {{tree_topk: {{min: 9}}}}", audit) as group:
            await group.run(20)
            assert new.puts == []

    with FakeEngine(traffic=COPYING) as steered, FakeEngine(traffic=COPYING, start_tokens=3) as new:
        asyncio.run(course())
    assert "no prepared setting has tree_topk from 9" in caplog.text
