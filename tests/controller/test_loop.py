from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.clock import ManualClock
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine

from specctl.actuate.base import Actuator
from specctl.actuate.dry_run import DryRunActuator
from specctl.actuate.http import HttpActuator
from specctl.contract.table import TablePut, TableState, uniform_rows
from specctl.controller.audit import AuditLog
from specctl.controller.loop import TargetLoop
from specctl.http_client import HttpClient
from specctl.metrics.exporter import Exporter
from specctl.observe.engine import EngineObserver
from specctl.policy.loader import parse_policy
from specctl.policy.models import AnyPolicy
from specctl.policy.watch import PolicyFile
from specctl.types import Decision, Reason

TABLE = "/specctl/v1/table"


class Source:
    def __init__(self, policy: AnyPolicy) -> None:
        self.policy: AnyPolicy = policy


PATIENT_S = 30.0
"""No test but that of a slow target may fail because the machine is busy."""


class Rig:
    """One daemon's loop on one engine; ``run`` gives a second of traffic before every look."""

    def __init__(
        self,
        engine: FakeEngine,
        *,
        policy: str = "kind: goodput",
        owner: str = "me",
        dry_run: bool = False,
        audit: Path | None = None,
        token: str | None = None,
        clock: ManualClock | None = None,
        target: str | None = None,
        timeout_s: float = PATIENT_S,
    ) -> None:
        self.engine, self.clock = engine, clock or ManualClock()
        self.exporter = Exporter()
        self.source = Source(parse_policy(policy, "p"))
        self.client = HttpClient(target or engine.url, token=token, timeout_s=timeout_s)
        actuator: Actuator = HttpActuator(self.client)
        self.loop = TargetLoop(
            target or engine.url,
            EngineObserver(self.client, self.clock),
            DryRunActuator(actuator) if dry_run else actuator,
            self.source,
            owner=owner,
            clock=self.clock,
            audit=AuditLog(audit, self.clock),
            exporter=self.exporter,
        )

    async def run(self, seconds: int, then: Callable[[], None] | None = None) -> list[Decision | None]:
        seen = []
        for _ in range(seconds):
            self.engine.advance(1.0)
            self.clock.advance(1.0)
            seen.append(await self.loop.tick())
        if then is not None:
            then()
        return seen

    def metric(self, name: str, **labels: str) -> float | None:
        return self.exporter.registry.get_sample_value(name, labels)


def records(path: Path, event: str) -> list[dict[str, Any]]:
    return [
        record for line in path.read_text().splitlines() if (record := json.loads(line))["event"] == event
    ]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="specctl")


def test_traffic_to_metrics_to_decision_to_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = tmp_path / "audit.jsonl"

    async def course() -> Rig:
        rig = Rig(engine, audit=audit)
        await rig.run(8)
        engine.traffic = COPYING
        await rig.run(8)
        await rig.client.close()
        return rig

    with FakeEngine(traffic=RANDOM_TEXT) as engine:
        rig = asyncio.run(course())
    assert engine.tokens_at(1) == 8
    assert engine.owner == "me"
    assert "1 decoding: 0 -> 8 tokens, predicted" in caplog.text
    changes = records(audit, "change")
    gain = next(record for record in changes if record["reason"] == "gain")
    assert (gain["from"]["1-1"], gain["to"]["1-1"]) == (0, 8)
    assert gain["predicted_tokens_per_s"] > gain["present_tokens_per_s"] > 0
    assert gain["target"] == engine.url
    assert gain["when"].endswith("Z")
    outcome = next(record for record in records(audit, "outcome") if record["version"] == gain["version"])
    assert outcome["measured_tokens_per_s"] == pytest.approx(60, rel=0.4)
    target = engine.url
    assert rig.metric("specctl_target_up_ratio", target=target) == 1
    assert rig.metric("specctl_lease_held_ratio", target=target) == 1
    assert rig.metric("specctl_num_speculative_tokens", target=target, decode_batch_to="1") == 8
    assert rig.metric("specctl_decisions_total", target=target, reason="gain")


def test_the_lease_is_renewed_and_ends_with_the_daemon() -> None:
    async def course() -> None:
        rig = Rig(engine)
        for _ in range(30):
            await rig.run(1)
            assert engine.state is TableState.LIVE
        await rig.client.close()

    with FakeEngine(start_tokens=3) as engine:
        asyncio.run(course())
        assert 8 <= len(engine.puts) <= 25
        engine.advance(11.0)
        assert engine.state is TableState.FALLBACK
        assert engine.tokens_at(1) == 0


def test_ranks_that_hold_another_table_get_one_at_the_next_look() -> None:
    """A PUT that did not reach every data-parallel rank needs no change of mind to be repeated."""

    async def course() -> int:
        rig = Rig(engine, policy="kind: fixed\nnum_speculative_tokens: 4\nlease_s: 60")
        await rig.run(3)
        puts = len(engine.puts)
        await rig.run(12)
        assert len(engine.puts) == puts
        engine.ranks_behind = (1,)
        await rig.run(11)
        assert len(engine.puts) > puts
        engine.ranks_behind = ()
        await rig.client.close()
        return puts

    with FakeEngine() as engine:
        assert asyncio.run(course()) == 1


def test_a_restart_of_the_server_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        rig = Rig(engine)
        await rig.run(10, engine.restart)
        await rig.run(10)
        await rig.client.close()

    with FakeEngine(start_tokens=0) as engine:
        asyncio.run(course())
    assert engine.tokens_at(1) == 8
    assert engine.state is TableState.LIVE
    assert "the engine restarted" in caplog.text


def test_an_unreachable_target_is_logged_once_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        async def course() -> list[float]:
            rig = Rig(FakeEngine(), target=f"http://127.0.0.1:{port}")
            waits = []
            for _ in range(8):
                assert await rig.loop.tick() is None
                waits.append(rig.loop.wait_s())
            await rig.client.close()
            assert rig.metric("specctl_target_up_ratio", target=f"http://127.0.0.1:{port}") == 0
            return waits

        waits = asyncio.run(course())
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert max(waits) <= 15
    assert caplog.text.count("cannot be reached") == 1


def test_a_slow_target_keeps_its_table(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> list[Decision | None]:
        rig = Rig(engine, timeout_s=0.5)
        await rig.run(10)
        engine.delay_s = 1.0
        slow = await rig.run(1)
        engine.delay_s = 0.0
        back = await rig.run(3)
        await rig.client.close()
        return slow + back

    with FakeEngine(start_tokens=0) as engine:
        slow, *back = asyncio.run(course())
    assert slow is None
    assert back[-1] is not None
    assert engine.tokens_at(1) == 8
    assert "no answer within 0.5 s" in caplog.text
    assert "answers again" in caplog.text


def test_two_daemons_on_one_target(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    audit = tmp_path / "second.jsonl"

    async def course() -> None:
        first, second = Rig(engine, owner="first"), Rig(engine, owner="second", audit=audit)
        for _ in range(12):
            await first.run(1)
            second.clock.advance(1.0)
            await second.loop.tick()
            assert engine.owner == "first"
        await first.client.close()
        for _ in range(25):
            await second.run(1)
        assert engine.owner == "second"
        await second.client.close()

    with FakeEngine(start_tokens=0) as engine:
        asyncio.run(course())
    assert caplog.text.count("leased by 'first'") == 1
    refused = records(audit, "refused")
    assert len(refused) == 1
    assert "first" in refused[0]["error"]


def test_a_version_conflict_is_read_again() -> None:
    def operator() -> None:
        put = TablePut(
            base_version=engine.version,
            rows=uniform_rows(1),
            fallback_num_speculative_tokens=0,
            owner="operator",
        )
        engine.state = TableState.START
        assert engine.put(put.model_dump_json().encode())[0] == 200

    class Late(HttpActuator):
        """Another writer comes between the look and the change."""

        done = False

        async def apply(self, desired: Any) -> Any:
            if not self.done:
                self.done = True
                operator()
            return await super().apply(desired)

    async def course() -> None:
        rig = Rig(engine)
        rig.loop._actuator = Late(rig.client)
        await rig.run(1)
        assert engine.owner == "operator"
        await rig.run(2)
        await rig.client.close()

    with FakeEngine(start_tokens=0) as engine:
        asyncio.run(course())
    assert engine.owner == "me"


def test_a_server_that_lies_about_its_table(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> Rig:
        rig = Rig(engine, policy="kind: fixed\nnum_speculative_tokens: 5")
        engine.lies = True
        await rig.run(4)
        await rig.client.close()
        return rig

    with FakeEngine(start_tokens=2) as engine:
        rig = asyncio.run(course())
        assert "another one is in force" in caplog.text
        assert rig.metric("specctl_errors_total", target=engine.url, kind="read_back") == 1
        assert len(engine.puts) == 1


def test_a_refused_table_is_logged_and_not_hammered(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        rig = Rig(engine, policy="kind: fixed\nnum_speculative_tokens: 5")
        engine.mangle["/specctl/v1/capabilities"] = lambda raw: raw.replace(b"[0,2,4]", b"[0,2,4,5]")
        await rig.run(5)
        await rig.client.close()

    with FakeEngine(start_tokens=2, legal=(0, 2, 4)) as engine:
        asyncio.run(course())
        assert len(engine.puts) == 1
        assert engine.tokens_at(1) == 2
    assert "5 is not one of 0, 2, 4" in caplog.text


@pytest.mark.parametrize(
    ("status", "words"), [(401, "bearer token"), (403, "control scope"), (413, "HTTP 413"), (500, "HTTP 500")]
)
def test_a_change_that_is_not_allowed(caplog: pytest.LogCaptureFixture, status: int, words: str) -> None:
    class Refused(FakeEngine):
        def answer(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, bytes]:
            if method == "PUT":
                return status, b"not even JSON"
            return super().answer(method, path, headers, body)

    async def course() -> list[Decision | None]:
        rig = Rig(engine)
        seen = await rig.run(4)
        await rig.client.close()
        return seen

    with Refused(start_tokens=1) as engine:
        seen = asyncio.run(course())
    assert all(decision is not None for decision in seen)
    assert words in caplog.text
    assert engine.tokens_at(1) == 1


def test_a_dry_run_changes_nothing_and_says_each_thing_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = tmp_path / "audit.jsonl"

    async def course() -> None:
        rig = Rig(engine, dry_run=True, audit=audit, policy="kind: fixed\nnum_speculative_tokens: 5")
        await rig.run(20)
        await rig.client.close()

    with FakeEngine(start_tokens=2) as engine:
        asyncio.run(course())
        assert engine.puts == []
    assert caplog.text.count("dry run: ") == 1
    (record,) = records(audit, "change")
    assert record["dry_run"] is True
    assert record["version"] is None


def test_a_stock_server_gets_advice(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> list[Decision | None]:
        rig = Rig(engine)
        seen = await rig.run(10)
        await rig.client.close()
        return seen

    with FakeEngine(start_tokens=4, has_plugin=False) as engine:
        seen = asyncio.run(course())
        assert all(method == "GET" for method, _ in engine.requests)
    assert seen[-1] is not None
    assert seen[-1].reason is Reason.RECOMMENDATION
    assert caplog.text.count("cannot act: the server runs without the specctl plugin") <= 2


def test_nan_in_the_telemetry_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        rig = Rig(engine)
        await rig.run(10)
        before = engine.tokens_at(1)
        engine.mangle["/specctl/v1/telemetry"] = lambda raw: raw.replace(
            b'"step_s": ', b'"step_s": NaN, "x": '
        )
        await rig.run(5)
        assert engine.tokens_at(1) == before
        assert engine.state is TableState.LIVE
        await rig.client.close()

    with FakeEngine(start_tokens=0) as engine:
        asyncio.run(course())
    assert "telemetry" in caplog.text


def test_a_policy_changed_on_disk_is_taken_and_an_invalid_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("kind: fixed\nnum_speculative_tokens: 3\n")

    async def course() -> None:
        rig = Rig(engine)
        source = PolicyFile(path)
        rig.loop._source = source
        await rig.run(3)
        assert engine.tokens_at(1) == 3
        path.write_text("kind: fixed\nnum_speculative_tokens: minus one\n")
        source.refresh()
        await rig.run(3)
        assert engine.tokens_at(1) == 3
        path.write_text("kind: fixed\nnum_speculative_tokens: 6\n")
        source.refresh()
        await rig.run(3)
        assert engine.tokens_at(1) == 6
        await rig.client.close()

    with FakeEngine(start_tokens=0) as engine:
        asyncio.run(course())


def test_a_bug_in_one_look_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        rig = Rig(engine)
        stop = asyncio.Event()
        looks = 0

        async def tick() -> None:
            nonlocal looks
            looks += 1
            if looks == 3:
                stop.set()
            raise RuntimeError("a bug")

        rig.loop.tick = tick  # type: ignore[method-assign,assignment]
        await rig.loop.run(stop)
        assert looks == 3
        assert rig.metric("specctl_errors_total", target=engine.url, kind="bug") == 3

    with FakeEngine() as engine:
        asyncio.run(course())
    assert "this look failed" in caplog.text


def test_an_audit_log_that_was_rotated_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path, ManualClock())
    audit.write("change", "t", {"a": 1})
    path.rename(tmp_path / "audit.jsonl.1")
    audit.write("change", "t", {"a": 2})
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()] == [2]


def test_an_audit_log_on_a_failing_disk_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    audit = AuditLog(folder / "audit.jsonl", ManualClock())
    (folder / "audit.jsonl").unlink()
    folder.rmdir()
    audit.write("change", "t", {})
    audit.write("change", "t", {})
    assert caplog.text.count("audit log") == 1
