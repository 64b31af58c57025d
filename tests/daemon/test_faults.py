"""The loop on an engine that is gone, slow or wrong, and on its own bugs."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine
from fakes.observations import chains
from fakes.rig import Rig, records

from specctl.contract import CONTRACT_VERSION
from specctl.contract.setting import Setting
from specctl.contract.table import TableState
from specctl.core.messages import Plan, Reason
from specctl.daemon.reporter import LINES_MAX_PER_MINUTE

TELEMETRY = "/specctl/v1/telemetry"
CAPABILITIES = "/specctl/v1/capabilities"
FIXED = "kind: fixed\nnum_speculative_tokens: 5"


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="specctl")


def with_cells(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """Changes every cell of the telemetry."""

    def mangled(raw: bytes) -> bytes:
        message = json.loads(raw)
        for cell in message["cells"]:
            change(cell)
        return json.dumps(message).encode()

    return mangled


def test_a_restart_of_the_server_is_survived(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """It begins with its start table and with estimates of nothing."""
    audit = tmp_path / "audit.jsonl"

    async def course() -> None:
        async with Rig(engine, audit=audit) as rig:
            await rig.run(15, engine.restart)
            assert engine.tokens_at(1) == 0
            first = await rig.run(1)
            assert first[0] is not None
            assert not first[0].is_change
            await rig.run(15)

    with FakeEngine(traffic=COPYING) as engine:
        asyncio.run(course())
    assert engine.tokens_at(1) >= 6
    assert engine.state is TableState.LIVE
    assert caplog.text.count("the engine restarted; starting afresh") == 1
    assert (
        len([one for one in records(audit, "change") if one["from"]["1"]["num_speculative_tokens"] == 0]) > 1
    )


def test_a_restart_with_fewer_prepared_settings_is_steered_by_those(tmp_path: Path) -> None:
    """The setting that was best, and a policy that names it, meet a server that has it no longer."""
    audit = tmp_path / "audit.jsonl"
    most = "kind: fixed\nnum_speculative_tokens: 8"

    def restart() -> None:
        engine.settings, engine.start = chains(0, 2, 4), chains(2)[0]
        engine.restart()

    async def course() -> None:
        async with Rig(engine, audit=audit) as rig:
            await rig.run(15, restart)
            await rig.run(15)
            assert engine.tokens_at(1) == 4
            rig.set_policy(most)
            (plan,) = await rig.run(1)
            assert plan is not None
            assert plan.reason is Reason.SET_BY_POLICY
            assert (
                "8 tokens is not prepared on this server, 4 tokens is the nearest below" in plan.explanation
            )
            assert (engine.tokens_at(1), plan.is_change) == (4, False)

    with FakeEngine(traffic=COPYING, settings=chains(0, 2, 4, 8)) as engine:
        asyncio.run(course())
    assert records(audit, "refused") == []


def test_an_unreachable_target_is_logged_once_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        async def course() -> list[float]:
            waits = []
            async with Rig(FakeEngine(), target=f"http://127.0.0.1:{port}") as rig:
                for _ in range(8):
                    assert await rig.loop.tick() is None
                    waits.append(rig.loop.wait_s())
                assert rig.metric("specctl_target_up") == 0
            return waits

        waits = asyncio.run(course())
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert max(waits) <= 15
    assert caplog.text.count("connection refused") == 1


def test_ten_seconds_without_telemetry_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The lease goes on; the counters of the gap are taken in as one interval."""

    async def course() -> None:
        async with Rig(engine) as rig:
            await rig.run(20)
            rows, puts = engine.rows, len(engine.puts)
            engine.forced_status = dict.fromkeys((TELEMETRY, CAPABILITIES, "/metrics"), 503)
            assert await rig.run(10) == [None] * 10
            assert (engine.rows, len(engine.puts), engine.state) == (rows, puts, TableState.LIVE)
            engine.forced_status = {}
            back = await rig.run(3)
            assert all(plan is not None and not plan.is_felt for plan in back)
            assert engine.tokens_at(1) == rows[0].num_speculative_tokens
            assert rig.metric("specctl_target_up") == 1

    with FakeEngine(traffic=COPYING) as engine:
        asyncio.run(course())
    assert caplog.text.count("HTTP 503") == 2, "of the telemetry, then of the capabilities"
    assert caplog.text.count("answers again") == 1
    assert "the engine restarted" not in caplog.text


def test_a_proxy_that_finds_nothing_for_a_while_does_not_cost_the_lease() -> None:
    """It answers 404 to everything, which is no server without the plugin."""

    async def course() -> None:
        async with Rig(engine, policy=FIXED) as rig:
            await rig.run(5)
            for path in (CAPABILITIES, TELEMETRY, "/metrics"):
                engine.forced_status[path] = 404
            await rig.run(3)
            engine.forced_status.clear()
            await rig.run(55)
            assert (engine.owner, engine.tokens_at(1)) == ("me", 5)

    with FakeEngine(start_tokens=2) as engine:
        asyncio.run(course())
        assert engine.state is TableState.LIVE


def test_a_slow_target_keeps_its_table(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> list[Plan | None]:
        async with Rig(engine, timeout_s=0.5, policy=FIXED) as rig:
            await rig.run(10)
            engine.delay_s = 1.0
            slow = await rig.run(1)
            engine.delay_s = 0.0
            # The late answer may hold the next ones up.
            await asyncio.sleep(1.0)
            return slow + await rig.run(3)

    with FakeEngine() as engine:
        slow, *back = asyncio.run(course())
    assert slow is None
    assert back[-1] is not None
    assert engine.tokens_at(1) == 5
    assert "no answer within 0.5 s" in caplog.text
    assert "answers again" in caplog.text


def test_a_change_whose_answer_was_lost_is_recorded_once_it_is_seen(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"

    class Slow(FakeEngine):
        put_delay_s = 0.0

        def put(self, body: bytes) -> tuple[int, dict[str, Any]]:
            answer = super().put(body)
            time.sleep(self.put_delay_s)
            return answer

    async def course() -> None:
        async with Rig(engine, timeout_s=0.3, policy=FIXED, audit=audit) as rig:
            engine.put_delay_s = 0.6
            await rig.run(1)
            assert rig.metric("specctl_errors_total", kind="target") == 1
            assert engine.tokens_at(1) == 5
            engine.put_delay_s = 0.0
            await asyncio.sleep(0.6)
            await rig.run(4)

    with Slow() as engine:
        asyncio.run(course())
    refused, *changes = records(audit, "refused", "change")
    assert (refused["event"], refused["kind"]) == ("refused", "target")
    assert refused["error"] == "/specctl/v1/table: no answer within 0.3 s", "the target stands before it"
    assert [one["version"] for one in changes] == [1]
    assert engine.owner == "me"


def test_a_server_that_shows_another_table_than_it_accepted(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        async with Rig(engine, policy=FIXED) as rig:
            engine.lies = True
            await rig.run(8)
            assert rig.metric("specctl_errors_total", kind="read_back") == 1
            assert len(engine.puts) == 1
            await rig.run(8)
            assert len(engine.puts) == 2

    with FakeEngine(start_tokens=2) as engine:
        asyncio.run(course())
    assert "another one is in force" in caplog.text


def test_a_refused_table_is_logged_and_not_repeated_at_once(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    audit = tmp_path / "audit.jsonl"

    async def course() -> None:
        async with Rig(engine, policy=FIXED, audit=audit) as rig:
            # It says that 5 is prepared.
            engine.mangle[CAPABILITIES] = lambda raw: raw.replace(b"[0,2,4]", b"[0,2,4,5]")
            await rig.run(8)
            assert len(engine.puts) == 1
            await rig.run(8)
            assert len(engine.puts) == 2

    with FakeEngine(start_tokens=2, legal=(0, 2, 4)) as engine:
        asyncio.run(course())
        assert engine.tokens_at(1) == 2
    assert "5 is not one of 0, 2, 4" in caplog.text
    (record,) = records(audit, "refused")
    assert record["kind"] == "refused"
    assert records(audit, "change") == []


def test_an_engine_that_refuses_a_sample_is_steered_without(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    audit = tmp_path / "audit.jsonl"

    async def course() -> None:
        async with Rig(engine, audit=audit) as rig:
            await rig.run(4)
            engine.traffic = RANDOM_TEXT
            await rig.run(20)

    with FakeEngine(start_tokens=4, traffic=COPYING) as engine:
        engine.refuses_samples = True
        asyncio.run(course())
        assert engine.tokens_at(1) < 4
        assert sum(any(row.sample for row in put.rows) for put in engine.puts) == 1
    assert caplog.text.count("no graph is captured for it") == 1
    assert len(records(audit, "refused")) == 1


@pytest.mark.parametrize(
    ("status", "words"), [(401, "bearer token"), (403, "control scope"), (413, "HTTP 413"), (500, "HTTP 500")]
)
def test_a_change_that_is_not_allowed(caplog: pytest.LogCaptureFixture, status: int, words: str) -> None:
    class Refused(FakeEngine):
        def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
            if method == "PUT":
                return status, b"not even JSON"
            return super().answer(method, path, headers, body)

    async def course() -> list[Plan | None]:
        async with Rig(engine) as rig:
            return await rig.run(4)

    with Refused(start_tokens=1) as engine:
        seen = asyncio.run(course())
    assert all(plan is not None for plan in seen)
    assert words in caplog.text
    assert engine.tokens_at(1) == 1


def test_a_wrong_token_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        async with Rig(engine, token="wrong") as rig:
            assert await rig.run(3) == [None] * 3

    with FakeEngine(token="right") as engine:
        asyncio.run(course())
        assert engine.puts == []
    assert caplog.text.count("--token-file") == 1


@pytest.mark.parametrize("version", [CONTRACT_VERSION - 1, CONTRACT_VERSION + 1])
def test_a_plugin_of_another_contract_version_is_watched_and_not_changed(
    caplog: pytest.LogCaptureFixture, version: int
) -> None:
    def mangled(raw: bytes) -> bytes:
        return json.dumps({"contract_version": version, "all": "else is another"}).encode()

    async def course() -> None:
        async with Rig(engine, policy=FIXED) as rig:
            seen = await rig.run(70)
            assert all(plan is not None and plan.rows is None for plan in seen)
            assert engine.puts == []
            del engine.mangle[CAPABILITIES]
            await rig.run(65)
            assert engine.tokens_at(1) == 5

    with FakeEngine(start_tokens=2) as engine:
        engine.mangle[CAPABILITIES] = mangled
        asyncio.run(course())
        assert [path for method, path in engine.requests].count(CAPABILITIES) <= 4
    words = f"speaks contract {version}, specctl here {CONTRACT_VERSION}; upgrade the older one"
    assert 1 <= caplog.text.count(words) <= 3


WRONG_CELLS: dict[str, Callable[[dict[str, Any]], None]] = {
    "ranks that do not sum up": lambda cell: cell.update(
        accepted_rank_at=[[7 * count, count] for count in cell["accepted_at"]]
    ),
    "more accepted than drafted": lambda cell: cell.update(
        accepted_at=[10 * count for count in reversed(cell["accepted_at"])]
    ),
    "no seconds": lambda cell: cell.update(step_s=0.0, step_s_squared=0.0, step_s_by_verified_tokens=0.0),
    "more samples than steps": lambda cell: cell.update(sampled_steps=5 * cell["steps"]),
    "batches of no bucket": lambda cell: cell.update(decode_batch_from=77, decode_batch_to=99),
    "settings that nobody prepared": lambda cell: cell.update(num_speculative_tokens=7, tree_topk=9),
}


@pytest.mark.parametrize("wrong", WRONG_CELLS)
def test_counts_that_cannot_be_are_no_reason_to_change(wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    chains = [Setting(num_speculative_tokens=number) for number in range(5)]
    settings = (*chains, Setting(num_speculative_tokens=4, tree_topk=2, verify_width_tokens=8))

    async def course() -> None:
        async with Rig(engine, policy="kind: goodput\nsampling: {share_max_ratio: 0}") as rig:
            await rig.run(20)
            before = engine.setting_at(1)
            engine.mangle[TELEMETRY] = with_cells(WRONG_CELLS[wrong])
            seen = await rig.run(15)
            assert all(plan is not None for plan in seen)
            assert engine.setting_at(1) == before
            assert engine.state is TableState.LIVE

    with FakeEngine(traffic=COPYING, settings=settings) as engine:
        asyncio.run(course())
    assert "this poll failed" not in caplog.text


@pytest.mark.parametrize("value", ["NaN", "1e400", "-1", '"x"', "null"])
def test_values_that_are_none_change_nothing(value: str, caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        async with Rig(engine, policy="kind: goodput\nlease_s: 10") as rig:
            await rig.run(15)
            before = engine.rows
            words = f'"step_s": {value}, "x": '.encode()
            engine.mangle[TELEMETRY] = lambda raw: raw.replace(b'"step_s": ', words)
            await rig.run(25)
            assert [row.setting for row in engine.rows] == [row.setting for row in before]
            assert engine.state is TableState.LIVE

    with FakeEngine(traffic=COPYING) as engine:
        asyncio.run(course())
    assert caplog.text.count("telemetry: ") == 1


def test_counters_that_fall_begin_anew(caplog: pytest.LogCaptureFixture) -> None:
    """One data-parallel rank of the sum is gone, without another ``boot_id``."""

    def halved(cell: dict[str, Any]) -> None:
        for name, value in cell.items():
            if isinstance(value, list):
                cell[name] = [count // 2 for count in value if isinstance(count, int)]
            elif name not in ("decode_batch_from", "decode_batch_to", "num_speculative_tokens", "tree_topk"):
                cell[name] = value / 2 if isinstance(value, float) else value and value // 2

    async def course() -> None:
        async with Rig(engine) as rig:
            await rig.run(15)
            before = engine.tokens_at(1)
            engine.mangle[TELEMETRY] = with_cells(halved)
            seen = await rig.run(1)
            assert seen[0] is not None
            assert not seen[0].is_change
            await rig.run(10)
            assert engine.tokens_at(1) >= before - 1

    with FakeEngine(traffic=COPYING) as engine:
        asyncio.run(course())
    assert "counter" in caplog.text
    assert "fell from" in caplog.text


def test_a_target_that_says_something_new_at_every_poll_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    boots = itertools.count()

    def another(raw: bytes) -> bytes:
        capabilities = {**json.loads(raw), "boot_id": f"boot {next(boots)}"}
        return json.dumps({**capabilities, "warnings": [f"{i} {'x' * 10_000}" for i in range(8)]}).encode()

    async def course() -> None:
        async with Rig(engine) as rig:
            await rig.run(100)

    with FakeEngine() as engine:
        engine.mangle[CAPABILITIES] = engine.mangle[TELEMETRY] = another
        asyncio.run(course())
    assert next(boots) > 100
    assert len(caplog.records) <= LINES_MAX_PER_MINUTE + 1
    assert len(caplog.text) < 400 * LINES_MAX_PER_MINUTE
    assert "silent for a minute" in caplog.text


def test_a_server_without_metrics_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """SGLang without --enable-metrics, for ten minutes."""

    async def course() -> None:
        async with Rig(engine) as rig:
            await rig.run(600)

    with FakeEngine() as engine:
        engine.forced_status["/metrics"] = 404
        asyncio.run(course())
    assert caplog.text.count("--enable-metrics") == 1


def test_a_bug_in_one_poll_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        stop = asyncio.Event()
        polls = 0

        async def tick() -> None:
            nonlocal polls
            polls += 1
            if polls == 3:
                stop.set()
            raise RuntimeError("a bug")

        async with Rig(engine) as rig:
            rig.loop.tick = tick  # type: ignore[method-assign,assignment]
            await rig.loop.run(stop)
            assert polls == 3
            assert rig.metric("specctl_errors_total", kind="bug") == 3

    with FakeEngine() as engine:
        asyncio.run(course())
    assert "this poll failed" in caplog.text


def test_a_bug_in_each_decision_backs_off_until_it_is_gone() -> None:
    """The server answers all the while."""

    async def course() -> list[float]:
        stop = asyncio.Event()
        waits = []

        async def decide(*_: object) -> Plan:
            waits.append(rig.loop.wait_s())
            if len(waits) == 6:
                stop.set()
            raise RuntimeError("a bug")

        async with Rig(engine) as rig:
            whole = rig.loop._decide
            rig.loop._decide = decide  # type: ignore[method-assign]
            await rig.loop.run(stop)
            rig.loop._decide = whole  # type: ignore[method-assign]
            await rig.run(1)
            return [*waits, rig.loop.wait_s()]

    with FakeEngine() as engine:
        assert asyncio.run(course()) == [1.0, 1.0, 2.0, 4.0, 8.0, 15.0, 1.0]
