from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine
from fakes.group import Group, on_engines

from specctl.contract.table import TableState
from specctl.policy.loader import parse_policy
from specctl.types import Reason

LEARNING = "kind: goodput"


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def frozen_ratio(group: Group) -> float | None:
    labels = {"target": group.engines[0].url}
    return group.exporter.registry.get_sample_value("specctl_frozen_ratio", labels)


def test_while_frozen_tables_hold_and_nothing_changes_until_it_is_thawed(audit: Path) -> None:
    async def course() -> None:
        async with Group([engine], LEARNING, audit) as group:
            await group.run(12)
            assert engine.tokens_at(1) == 8
            assert frozen_ratio(group) == 0
            group.source.policy = parse_policy(f"{LEARNING}\nfrozen: true", "p")
            await group.run(1)
            rows, changes = engine.rows, len(group.records("change"))
            assert engine.reason.startswith("frozen: ")
            engine.traffic = RANDOM_TEXT
            for _ in range(60):
                await group.run(1)
                assert (engine.rows, engine.state) == (rows, TableState.LIVE)
            assert len(group.records("change")) == changes
            assert frozen_ratio(group) == 1
            group.source.policy = parse_policy(LEARNING, "p")
            await group.run(4)
            assert engine.tokens_at(1) == 0
            assert not engine.reason.startswith("frozen: ")
            assert frozen_ratio(group) == 0
            assert [record["event"] for record in group.records("frozen", "thawed")] == ["frozen", "thawed"]

    with FakeEngine(traffic=COPYING) as engine:
        asyncio.run(course())


def test_a_daemon_that_starts_frozen_changes_nothing_at_all(audit: Path) -> None:
    async def course() -> None:
        async with Group([engine], LEARNING, audit) as group:
            group.is_frozen = True
            await group.run(20)
            assert engine.puts == []
            group.is_frozen = False
            await group.run(10)
            assert engine.tokens_at(1) == 0

    with FakeEngine(traffic=RANDOM_TEXT, start_tokens=3) as engine:
        asyncio.run(course())


def test_a_probe_that_runs_ends_before_the_freeze(audit: Path) -> None:
    async def course() -> None:
        async with Group([engine], LEARNING, audit) as group:
            while group.loops[0]._state.schedule.running is None:
                await group.run(1)
            before = group.loops[0]._state.schedule.running.resume_num_speculative_tokens
            assert engine.tokens_at(1) != before
            group.is_frozen = True
            # The one change that a freeze makes may need more than one look.
            engine.forced_status["/specctl/v1/table"] = 503
            await group.run(2)
            assert engine.tokens_at(1) != before
            engine.forced_status.clear()
            await group.run(2)
            assert engine.tokens_at(1) == before
            assert group.records("change")[-1]["reason"] == Reason.PROBE_END
            puts = len(engine.puts)
            await group.run(15)
            assert engine.tokens_at(1) == before
            assert len(engine.puts) > puts

    with FakeEngine(traffic=COPYING, start_tokens=8) as engine:
        asyncio.run(course())


def test_a_freeze_ends_a_trial_without_a_verdict(audit: Path) -> None:
    stack, engines = on_engines(2, COPYING)

    async def course() -> None:
        async with Group(engines, "kind: fixed\nnum_speculative_tokens: 8", audit) as group:
            await group.run(6)
            assert sorted(group.tokens()) == [0, 8]
            group.is_frozen = True
            await group.run(60)
            assert sorted(group.tokens()) == [0, 8]
            assert group.rollout.canary is None
            assert group.records("rollback", "canary_passed") == []
            group.is_frozen = False
            await group.run(15)
            assert group.tokens() == [8, 8]

    with stack:
        asyncio.run(course())


def test_a_table_that_was_lost_during_a_freeze_is_not_put_back(audit: Path) -> None:
    async def course() -> None:
        async with Group([engine], "kind: fixed\nnum_speculative_tokens: 8", audit) as group:
            await group.run(3)
            group.is_frozen = True
            await group.run(2)
            engine.advance(20.0)
            puts = len(engine.puts)
            assert engine.state is TableState.FALLBACK
            await group.run(20)
            assert (engine.state, len(engine.puts)) == (TableState.FALLBACK, puts)

    with FakeEngine(traffic=COPYING) as engine:
        asyncio.run(course())
