"""The daemon on a fake engine that decides by itself how many drafts are verified."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from fakes.engine import ADAPTED, COPYING, RANDOM_TEXT, Cost, FakeEngine
from fakes.rig import Rig, records

from specctl.cli.main import main
from specctl.contract.adaptivity import EngineAdaptivity

ADAPTIVE = EngineAdaptivity(name="enable_adaptive_verification", decides="verified", is_bounded=True)
SUPERVISE = "kind: goodput\nmode: supervise\n"
NAME = "enable_adaptive_verification"


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_the_daemon_steps_back_and_takes_over_when_it_is_switched_off(audit: Path) -> None:
    async def course() -> None:
        async with Rig(engine, policy=SUPERVISE, audit=audit) as rig:
            await rig.run(20)
            assert engine.tokens_at(1) == 8
            assert rig.metric("specctl_adaptivity_on", adaptivity=NAME) == 1
            assert rig.metric("specctl_adaptivity_tokens", adaptivity=NAME) == pytest.approx(ADAPTED, abs=0.2)
            assert rig.metric("specctl_decisions_total", reason="supervised")
            engine.adapts = False
            await rig.run(20)
            assert rig.metric("specctl_adaptivity_on", adaptivity=NAME) == 0
            engine.adapts = True
            await rig.run(20)
            assert engine.tokens_at(1) in (0, 8)

    with FakeEngine(traffic=COPYING, start_tokens=8, adaptivity=ADAPTIVE) as engine:
        asyncio.run(course())
    switched = records(audit, "adaptivity_on", "adaptivity_off")
    assert [(one["event"], one["at_run_time"]) for one in switched] == [
        ("adaptivity_on", False),
        ("adaptivity_off", True),
        ("adaptivity_on", True),
    ]


def test_off_where_it_does_not_pay() -> None:
    async def course() -> None:
        async with Rig(engine, policy=SUPERVISE) as rig:
            await rig.run(60)
            assert engine.tokens_at(1) == 0

    with FakeEngine(
        traffic=RANDOM_TEXT, start_tokens=8, adaptivity=ADAPTIVE, cost=Cost(constant_s=0.02, token_s=0.02)
    ) as engine:
        asyncio.run(course())


def test_status_shows_both(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(traffic=COPYING, start_tokens=8, adaptivity=ADAPTIVE) as engine:
        engine.advance(30.0)
        assert main(["status", engine.url, "--since-start"]) == 0
        printed = capsys.readouterr().out
        assert f"adaptivity  {NAME} is on, 2.0 tokens verified, bounded by the rows" in printed
        assert "up to 8 drafts" in printed
        assert main(["status", engine.url, "--json", "--since-start"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["adaptivity"] == {"is_on": True, "num_speculative_tokens": None}
        assert found["capabilities"]["adaptivity"]["is_bounded"] is True
