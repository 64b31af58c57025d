"""The loop on a real protocol: from traffic to a table, with other writers and with the policy's changes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from fakes.engine import COPYING, RANDOM_TEXT, Cost, FakeEngine, Traffic
from fakes.observations import chains, tree
from fakes.rig import Rig, records

from specctl.contract.classes import ClassLimit
from specctl.contract.setting import Setting
from specctl.contract.table import AppliedTable, TablePut, TableRow, TableState, uniform_rows
from specctl.core.messages import Plan, Reason
from specctl.policy.loader import PolicyFile

FIXED = "kind: fixed\nnum_speculative_tokens: 5\n"


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="specctl")


def test_traffic_to_telemetry_to_decision_to_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = tmp_path / "audit.jsonl"

    async def course() -> None:
        async with Rig(engine, audit=audit) as rig:
            # One draft is level with off here.
            await rig.run(25)
            assert engine.tokens_at(1) <= 1
            engine.traffic = COPYING
            await rig.run(20)
            assert rig.metric("specctl_target_up") == 1
            assert rig.metric("specctl_lease_held") == 1
            assert rig.metric("specctl_num_speculative_tokens", decode_batch_to="1") == engine.tokens_at(1)
            assert rig.metric("specctl_decisions_total", reason="gain")
            assert rig.metric("specctl_table_changes_total") == len(records(audit, "change"))
            assert rig.metric("specctl_emitted_tokens_total") == pytest.approx(engine.emitted, rel=0.1)
            assert (rig.metric("specctl_speedup_vs_off") or 0) > 1

    with FakeEngine(traffic=RANDOM_TEXT, start_tokens=3) as engine:
        asyncio.run(course())
    assert engine.tokens_at(1) >= 6
    assert engine.owner == "me"
    assert "batch 1: 3 tokens ->" in caplog.text
    gains = [one for one in records(audit, "change") if one["reason"] == "gain"]
    assert gains[0]["predicted_tokens_per_s"] > gains[0]["present_tokens_per_s"] > 0
    assert gains[0]["target"] == engine.url
    assert gains[0]["when"].endswith("Z")
    outcomes = records(audit, "outcome")
    assert {one["version"] for one in outcomes} <= {one["version"] for one in records(audit, "change")}
    assert outcomes[-1]["measured_tokens_per_s"] == pytest.approx(60, rel=0.4)


def test_the_lease_is_renewed_and_ends_with_the_daemon() -> None:
    """A crash: nothing is released. The start table holds again, as no fallback is named."""

    async def course() -> None:
        async with Rig(engine, policy=f"{FIXED}lease_s: 12") as rig:
            for _ in range(40):
                await rig.run(1)
                assert engine.state is TableState.LIVE

    with FakeEngine(start_tokens=3) as engine:
        asyncio.run(course())
        assert 8 <= len(engine.puts) <= 12
        assert engine.tokens_at(1) == 5
        engine.advance(12.5)
        assert (engine.state, engine.tokens_at(1)) == (TableState.FALLBACK, 3)
        assert engine.owner is None


def test_what_is_put_is_read_back_but_for_samples() -> None:
    """They change often, and an answer tells them as well."""

    async def course() -> None:
        async with Rig(engine, policy="kind: goodput") as rig:
            await rig.run(25)
            felt = int(rig.metric("specctl_table_changes_total") or 0)
            reads = engine.requests.count(("GET", "/specctl/v1/table"))
            assert felt + 3 <= reads + 3 < len(engine.puts) + 6
            assert len(engine.puts) > felt + 3

    with FakeEngine(start_tokens=2, traffic=Traffic(4)) as engine:
        asyncio.run(course())


def test_a_crash_with_a_fallback_that_the_policy_names() -> None:
    """It is the largest prepared one up to the policy's number."""

    async def course() -> None:
        async with Rig(engine, policy=f"{FIXED}lease_s: 12\nfallback_num_speculative_tokens: 3") as rig:
            await rig.run(5)

    with FakeEngine(start_tokens=8, legal=(0, 2, 5, 8)) as engine:
        asyncio.run(course())
        assert engine.tokens_at(1) == 5
        engine.advance(12.5)
        assert (engine.state, engine.tokens_at(1)) == (TableState.FALLBACK, 2)


@pytest.mark.parametrize(
    ("settings", "wanted", "fallback"),
    [
        (chains(0, 2, 4), 3, 2),
        (chains(2, 4), 0, None),
        ((*chains(0, 1), tree(2, 2, 5)), 2, 1),
        ((tree(2, 2, 5), tree(4, 2, 8)), 4, None),
    ],
)
def test_a_fallback_that_the_server_lacks_does_not_keep_the_daemon_from_steering(
    settings: tuple[Setting, ...], wanted: int, fallback: int | None
) -> None:
    """It names a chain: the nearest below it, else the table of the server's start."""

    async def course() -> None:
        async with Rig(engine, policy=f"kind: goodput\nfallback_num_speculative_tokens: {wanted}") as rig:
            await rig.run(3)

    with FakeEngine(settings=settings, start=settings[0]) as engine:
        asyncio.run(course())
        assert (engine.owner, engine.fallback) == ("me", fallback)


def test_ranks_that_hold_another_table_get_one_at_the_next_poll() -> None:
    """A PUT that did not reach every data-parallel rank needs no change of mind to be repeated."""

    async def course() -> None:
        async with Rig(engine, policy=FIXED) as rig:
            await rig.run(15)
            assert len(engine.puts) == 1
            engine.ranks_behind = (1,)
            await rig.run(11)
            assert len(engine.puts) > 1
            engine.ranks_behind = ()
            await rig.run(2)
            puts = len(engine.puts)
            await rig.run(10)
            assert len(engine.puts) == puts

    with FakeEngine() as engine:
        asyncio.run(course())


def test_two_daemons_on_one_target(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """The second one waits for the first one's lease, and says so once."""
    audit = tmp_path / "second.jsonl"
    first_policy, second_policy = f"{FIXED}lease_s: 10", "kind: fixed\nnum_speculative_tokens: 2\nlease_s: 10"

    async def course() -> None:
        async with (
            Rig(engine, owner="first", policy=first_policy) as first,
            Rig(engine, owner="second", policy=second_policy, audit=audit) as second,
        ):
            for _ in range(12):
                await first.run(1)
                second.clock.advance(1.0)
                await second.loop.tick()
                assert (engine.owner, engine.tokens_at(1)) == ("first", 5)
            assert second.metric("specctl_lease_held") == 0
            await second.run(25)
            assert (engine.owner, engine.tokens_at(1)) == ("second", 2)
            assert second.metric("specctl_lease_held") == 1

    with FakeEngine() as engine:
        asyncio.run(course())
    assert caplog.text.count("leased by 'first'") == 1
    (refused,) = records(audit, "refused")
    assert (refused["kind"], refused["owner"]) == ("lease", "second")
    assert "first" in refused["error"]


def test_a_version_conflict_is_read_again() -> None:
    """Another writer comes between the poll and the change."""

    async def course() -> None:
        async with Rig(engine) as rig:
            rig.loop._routes = Late(rig)
            await rig.run(1)
            assert engine.owner == "operator"
            await rig.run(2)
            assert rig.metric("specctl_errors_total", kind="version") == 1

    class Late:
        is_done = False

        def __init__(self, rig: Rig) -> None:
            self.client = rig.client

        async def table(self) -> AppliedTable:
            return await self.client.table()

        async def put(self, change: TablePut) -> AppliedTable:
            if not self.is_done:
                self.is_done = True
                rows = uniform_rows(1)
                engine.operator_puts(TablePut(base_version=engine.version, rows=rows, owner="operator"))
            return await self.client.put(change)

    with FakeEngine() as engine:
        asyncio.run(course())
    assert engine.owner == "me"


@pytest.mark.parametrize("policy", [FIXED, "kind: goodput"])
def test_a_dry_run_says_what_it_would_put_and_puts_nothing(
    policy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each thing once; the same as what a daemon puts that may. Samples would make the two loads differ."""
    audits = {True: tmp_path / "dry.jsonl", False: tmp_path / "wet.jsonl"}

    async def course(engine: FakeEngine, *, dry_run: bool) -> None:
        async with Rig(engine, dry_run=dry_run, audit=audits[dry_run], policy=policy) as rig:
            await rig.run(30)

    for dry_run, audit in audits.items():
        with FakeEngine(start_tokens=2, sample_every_min_steps=None) as engine:
            asyncio.run(course(engine, dry_run=dry_run))
            assert (engine.puts == []) == dry_run
            assert all(record["dry_run"] == dry_run for record in records(audit, "change"))
    dry, wet = (records(audit, "change")[0] for audit in audits.values())
    assert dry["version"] is None
    for key in ("from", "to", "moved", "changes", "reason", "explanation", "class_limits"):
        assert dry[key] == wet[key]
    said = [one.message.partition("dry run: ")[2] for one in caplog.records if "dry run: " in one.message]
    assert said[0] == dry["explanation"]
    assert len(said) == len(records(audits[True], "change")) <= 3


def test_a_stock_server_gets_a_recommendation(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> list[Plan | None]:
        async with Rig(engine) as rig:
            return await rig.run(10)

    with FakeEngine(start_tokens=4, has_plugin=False, cost=Cost(0.01, 0.0)) as engine:
        seen = asyncio.run(course())
        assert all(method == "GET" for method, _ in engine.requests)
    assert seen[-1] is not None
    assert (seen[-1].reason, seen[-1].rows) == (Reason.RECOMMENDATION, None)
    assert 1 <= caplog.text.count("the server runs without the specctl plugin; a step with a draft") <= 2


def test_a_policy_changed_on_disk_is_taken_and_an_invalid_one_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("kind: fixed\nnum_speculative_tokens: 3\n")

    async def course() -> None:
        source = PolicyFile(path)
        async with Rig(engine) as rig:
            rig.loop._source = source
            await rig.run(3)
            assert engine.tokens_at(1) == 3
            path.write_text("kind: fixed\nnum_speculative_tokens: minus one\n")
            assert not await source.refresh()
            assert not await source.refresh()
            await rig.run(3)
            assert engine.tokens_at(1) == 3
            path.write_text("kind: fixed\nnum_speculative_tokens: 6\n")
            assert await source.refresh()
            await rig.run(3)
            assert engine.tokens_at(1) == 6

    with FakeEngine() as engine:
        asyncio.run(course())
    assert caplog.text.count("policy refused, the last good one stays") == 1
    assert f"{path}:2: num_speculative_tokens: " in caplog.text


def test_rows_by_context_and_what_the_policy_does_not_decide_are_carried_over() -> None:
    """Somebody's rule for long contexts stays, and rules for classes until the policy has its own."""

    async def course() -> None:
        async with Rig(engine, policy=FIXED) as rig:
            await rig.run(4)
        assert engine.class_limits == others
        async with Rig(
            engine, policy=f"{FIXED}classes: [{{kind: code, max_num_speculative_tokens: 1}}]"
        ) as rig:
            await rig.run(4)

    short = TableRow(decode_batch_from=1, context_to_tokens=2047, num_speculative_tokens=2)
    long = TableRow(decode_batch_from=1, context_from_tokens=2048, num_speculative_tokens=0)
    with FakeEngine(class_limits_max=4) as engine:
        others = (ClassLimit(kind="sql", max_num_speculative_tokens=2),)
        put = TablePut(base_version=0, rows=(short, long), owner="operator", class_limits=others)
        engine.operator_puts(put)
        asyncio.run(course())
        assert engine.rows[1] == long
        assert engine.rows[0].setting == Setting(num_speculative_tokens=5)
        assert engine.class_limits == (ClassLimit(kind="code", max_num_speculative_tokens=1),)


def test_trees_are_chosen_put_and_read_back() -> None:
    settings = (
        Setting(num_speculative_tokens=0),
        Setting(num_speculative_tokens=3),
        Setting(num_speculative_tokens=3, tree_topk=4, verify_width_tokens=12),
    )

    async def course() -> None:
        async with Rig(engine) as rig:
            await rig.run(40)
            assert rig.metric("specctl_tree_topk", decode_batch_to="1") == 4
            assert rig.metric("specctl_verify_width_tokens", decode_batch_to="1") == 12
            assert rig.metric("specctl_errors_total", kind="read_back") is None

    traffic = Traffic(accept_at=(0.6,) * 8, rank_ratio=0.7)
    with FakeEngine(settings=settings, traffic=traffic) as engine:
        asyncio.run(course())
        assert engine.setting_at(1) == settings[2]
