"""What a clean stop leaves in force."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import FakeEngine
from fakes.rig import Rig, records

from specctl.contract.classes import ClassLimit
from specctl.contract.table import TablePut, TableState

FIXED = "kind: fixed\nnum_speculative_tokens: 5\n"
CLASSES = "classes: [{kind: code, max_num_speculative_tokens: 1}]\n"
TABLE = "/specctl/v1/table"
CODE = (ClassLimit(kind="code", max_num_speculative_tokens=1),)


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="specctl")


def stopped(engine: FakeEngine, policy: str, *, audit: Path | None = None, is_frozen: bool = False) -> None:
    """Five seconds, and a stop."""

    async def course() -> None:
        async with Rig(engine, policy=policy, audit=audit) as rig:
            await rig.run(5)
            rig.is_frozen = is_frozen
            await rig.run(2)
            await rig.stop()

    asyncio.run(course())


@pytest.mark.parametrize(
    ("on_stop", "tokens", "limits", "words"),
    [
        ("start", 2, (), "the start table is in force again"),
        ("keep", 5, CODE, "the last table stays"),
        ("off", 0, CODE, "speculation is off"),
    ],
)
def test_a_stop_releases_the_lease_and_leaves_what_the_policy_says(
    on_stop: str, tokens: int, limits: tuple[ClassLimit, ...], words: str, tmp_path: Path
) -> None:
    audit = tmp_path / "audit.jsonl"
    with FakeEngine(start_tokens=2, class_limits_max=4) as engine:
        stopped(engine, f"{FIXED}{CLASSES}on_stop: {on_stop}", audit=audit)
        assert (engine.tokens_at(1), engine.class_limits) == (tokens, limits)
        assert (engine.lease_s, engine.state) == (None, TableState.LIVE)
        assert engine.reason == f"the daemon stopped: {words}"
        engine.advance(1000.0)
        assert engine.tokens_at(1) == tokens
    (record,) = records(audit, "stopped")
    assert record["explanation"].endswith(words)
    assert record["version"] == engine.version
    assert bool(record["changes"]) == (on_stop != "keep")


def test_a_stop_where_off_is_not_prepared_puts_the_start_table_back() -> None:
    with FakeEngine(start_tokens=2, legal=(2, 5)) as engine:
        stopped(engine, f"{FIXED}on_stop: off")
        assert (engine.tokens_at(1), engine.lease_s, engine.state) == (2, None, TableState.LIVE)


def test_no_sample_stays_behind() -> None:
    with FakeEngine(start_tokens=4) as engine:
        stopped(engine, "kind: goodput\non_stop: keep")
        assert any(row.sample for put in engine.puts for row in put.rows)
        assert not any(row.sample for row in engine.rows)


@pytest.mark.parametrize("by_policy", [True, False])
def test_a_frozen_daemon_leaves_its_table_whoever_froze_it(by_policy: bool) -> None:
    """Rules for classes, too."""

    async def course() -> None:
        async with Rig(engine, policy=f"{FIXED}{CLASSES}") as rig:
            await rig.run(5)
            if by_policy:
                rig.set_policy(f"{FIXED}{CLASSES}frozen: true")
            rig.is_frozen = not by_policy
            await rig.run(2)
            await rig.stop()

    with FakeEngine(start_tokens=2, class_limits_max=4) as engine:
        asyncio.run(course())
        assert (engine.tokens_at(1), engine.class_limits, engine.lease_s) == (5, CODE, None)


def test_a_daemon_that_put_nothing_releases_nothing() -> None:
    async def course() -> None:
        async with Rig(engine, policy=FIXED, dry_run=True) as rig:
            await rig.run(3)
            await rig.stop()

    with FakeEngine(start_tokens=2) as engine:
        asyncio.run(course())
        assert engine.puts == []


@pytest.mark.parametrize("polls_before", [0, 3])
@pytest.mark.parametrize("is_in_force", [True, False])
def test_a_stop_after_a_put_without_an_answer(polls_before: int, is_in_force: bool) -> None:
    class Silent(FakeEngine):
        answers = True

        def put(self, body: bytes) -> tuple[int, dict[str, Any]]:
            if self.answers:
                return super().put(body)
            if is_in_force:
                super().put(body)
            return 504, {"error": "late", "message": "the engine did not answer"}

    async def course() -> None:
        async with Rig(engine, policy=FIXED) as rig:
            await rig.run(polls_before)
            rig.set_policy("kind: fixed\nnum_speculative_tokens: 3\n")
            engine.answers = False
            await rig.run(1)
            engine.answers = True
            await rig.stop()

    with Silent(start_tokens=2) as engine:
        asyncio.run(course())
        assert (engine.tokens_at(1), engine.lease_s) == (2, None)


def test_a_stop_releases_the_table_that_was_seen_last() -> None:
    """Not the one that was read after a conflict."""

    def old(raw: bytes) -> bytes:
        return json.dumps(json.loads(raw) | {"version": 0}).encode()

    async def course() -> None:
        async with Rig(engine, policy=FIXED) as rig:
            await rig.run(3)
            engine.mangle[TABLE] = old
            rig.set_policy("kind: fixed\nnum_speculative_tokens: 3\n")
            await rig.run(3)
            engine.mangle.clear()
            await rig.run(3)
            await rig.stop()

    with FakeEngine(start_tokens=2) as engine:
        asyncio.run(course())
        assert (engine.tokens_at(1), engine.lease_s) == (2, None)


def test_a_stop_after_another_table_was_seen_than_the_one_put() -> None:
    async def course() -> None:
        async with Rig(engine, policy=FIXED) as rig:
            engine.lies = True
            await rig.run(3)
            await rig.stop()

    with FakeEngine(start_tokens=2) as engine:
        asyncio.run(course())
        assert engine.lease_s is None
        assert engine.live.lookup(1) == 2


def test_another_writers_table_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        async with Rig(engine, policy=FIXED) as rig:
            await rig.run(3)
            put = TablePut(base_version=0, rows=engine.rows, owner="operator", lease_s=60.0)
            engine.operator_puts(put)
            await rig.loop._stop()

    with FakeEngine(start_tokens=2) as engine:
        asyncio.run(course())
        assert engine.owner == "operator"
    assert "the table could not be released (the table is leased by 'operator'" in caplog.text


def test_a_server_that_is_gone_does_not_hold_up_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        async with Rig(engine, policy=FIXED) as rig:
            await rig.run(3)
            engine.forced_status["/specctl/v1/table"] = 503
            await rig.stop()

    with FakeEngine(start_tokens=2) as engine:
        asyncio.run(course())
    assert "the table could not be released" in caplog.text
    assert "its lease ends by itself" in caplog.text
