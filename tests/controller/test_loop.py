"""The loop on a real protocol: from traffic to a table, with others and with the policy's changes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine
from fakes.rig import Rig, records

from specctl.actuate.http import HttpActuator
from specctl.contract.table import TablePut, TableState, uniform_rows
from specctl.policy.watch import PolicyFile
from specctl.types import Decision, Reason


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
