"""Drafts that are not sound on a fake engine: what is said, shown and done."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fakes.engine import Cost, FakeEngine, Traffic
from fakes.rig import Rig, records

from specctl.cli.main import main

FIXED = "kind: fixed\nnum_speculative_tokens: 4\n"
NEVER = Traffic(decode_batch=8, accept_at=(0.0,) * 8)
ALWAYS = Traffic(decode_batch=8, accept_at=(1.0,) * 8)
QUICK = Cost(constant_s=0.03, token_s=0.0005)
SOUND = Traffic(decode_batch=8, accept_at=(0.6,) * 8)


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def engine_of(traffic: Traffic) -> FakeEngine:
    return FakeEngine(traffic=traffic, cost=QUICK, start_tokens=4, method="eagle3")


def test_an_event_and_nothing_else(audit: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        async with Rig(engine, policy=FIXED, audit=audit) as rig:
            await rig.run(60)
            assert rig.metric("specctl_unsound", cause="wrong_vocabulary") == 1
            assert engine.tokens_at(8) == 4
            engine.traffic = SOUND
            await rig.run(90)
            assert rig.metric("specctl_unsound", cause="wrong_vocabulary") is None

    with engine_of(NEVER) as engine:
        asyncio.run(course())
    (fault,) = records(audit, "unsound")
    assert (fault["cause"], fault["ratio"]) == ("wrong_vocabulary", 0.0)
    assert len(records(audit, "sound")) == 1
    assert caplog.text.count("no more often than by chance") == 1


@pytest.mark.parametrize("policy", [FIXED, "kind: goodput\n"])
def test_off_where_the_policy_says_so(policy: str, audit: Path) -> None:
    """A loop gains with drafts, so that nothing else would turn them off; a restart brings them back."""

    async def course() -> None:
        async with Rig(engine, policy=f"{policy}soundness: off", audit=audit) as rig:
            await rig.run(90)
            assert engine.tokens_at(8) == 0
            assert engine.reason.startswith("unsound: ")
            assert "every draft is accepted" in engine.reason
            assert rig.metric("specctl_decisions_total", reason="unsound")
            engine.traffic = SOUND
            engine.restart()
            await rig.run(20)
            assert rig.metric("specctl_unsound", cause="loop") is None
            assert engine.tokens_at(8) > 0

    with engine_of(ALWAYS) as engine:
        asyncio.run(course())
    assert [one["reason"] for one in records(audit, "change")].count("unsound") == 1


def test_a_deploy_that_broke_the_head(audit: Path) -> None:
    async def course() -> None:
        async with Rig(engine, policy=FIXED, audit=audit) as rig:
            await rig.run(60)
            assert not records(audit, "unsound")
            engine.traffic = Traffic(decode_batch=8, accept_at=(0.1,) * 8)
            engine.restart()
            await rig.run(60)

    with engine_of(SOUND) as engine:
        asyncio.run(course())
    assert [one["cause"] for one in records(audit, "unsound")] == ["broken_checkpoint"]


def test_off_that_is_not_prepared_stays_on() -> None:
    async def course() -> None:
        async with Rig(engine, policy="kind: fixed\nnum_speculative_tokens: 4\nsoundness: off") as rig:
            await rig.run(60)
            assert rig.metric("specctl_unsound", cause="loop") == 1

    with FakeEngine(traffic=ALWAYS, cost=QUICK, start_tokens=4, method="eagle3", legal=(2, 4)) as engine:
        asyncio.run(course())
        assert engine.tokens_at(8) == 4


def test_status_judges_the_counters(capsys: pytest.CaptureFixture[str]) -> None:
    with engine_of(NEVER) as engine:
        engine.advance(60.0)
        assert main(["status", engine.url, "--since-start"]) == 0
        assert "accepted no more often than by chance" in capsys.readouterr().out
        assert main(["status", engine.url, "--json", "--since-start"]) == 0
        assert '"cause": "wrong_vocabulary"' in capsys.readouterr().out
