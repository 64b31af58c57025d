"""A recorded log decides as the daemon did that ran beside the recorder."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.clock import ManualClock
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine, Traffic
from fakes.rig import Rig

from specctl.cli.main import main
from specctl.cli.replay import Replay
from specctl.contract.adaptivity import EngineAdaptivity
from specctl.core.messages import Plan, Reason
from specctl.engine_api.client import EngineClient
from specctl.http_client import HttpClient
from specctl.policy.loader import parse_policy
from specctl.record.lines import Line, Reading
from specctl.record.reader import read_lines
from specctl.record.recorder import Recorder
from specctl.record.writer import LogWriter

COURSE = {
    0: RANDOM_TEXT,
    10: COPYING,
    25: Traffic(decode_batch=4, accept_at=(0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1)),
    40: Traffic(decode_batch=6, accept_at=(0.05,) * 8, prefill_every=3, prefill_tokens=50),
    50: None,
    55: COPYING,
}


class Beside(ManualClock):
    """The daemon polls after each of the recorder's polls; then the engine goes on."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__()
        self.engine = engine
        self.rig: Rig | None = None
        self.plans: list[Plan] = []
        self.polls = 0

    async def sleep(self, seconds: float, stop: asyncio.Event) -> None:
        assert self.rig is not None
        plan = await self.rig.loop.tick()
        assert plan is not None
        self.plans.append(plan)
        self.advance(1.0)
        self.engine.traffic = COURSE.get(self.polls, self.engine.traffic)
        self.engine.advance(1.0)
        self.polls += 1


def recorded(
    engine: FakeEngine, path: Path, policy: str, seconds: int, *, dry_run: bool = False
) -> list[Plan]:
    """The daemon's decisions."""

    async def run() -> list[Plan]:
        clock = Beside(engine)
        async with Rig(engine, policy=policy, clock=clock, dry_run=dry_run) as rig:
            clock.rig = rig
            async with EngineClient(HttpClient(engine.url, timeout_s=30.0)) as client:
                recorder = Recorder(client, clock, every_s=1.0)
                await recorder.reach()
                with LogWriter(path, max_bytes=1 << 24) as writer:
                    await recorder.run(writer, asyncio.Event(), for_s=seconds - 0.5)
        return clock.plans

    return asyncio.run(run())


def replayed(lines: Iterator[Line], policy: str) -> list[Plan]:
    return list(Replay(parse_policy(policy, "p")).plans(lines))


def essence(plan: Plan) -> tuple[object, ...]:
    return plan.reason, plan.explanation, plan.changes, plan.rows


@pytest.mark.parametrize("policy", ["kind: goodput", "kind: fixed\nnum_speculative_tokens: 5"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_log_decides_as_the_daemon_did(policy: str, dry_run: bool, tmp_path: Path) -> None:
    with FakeEngine(start_tokens=2, has_shadow=dry_run) as engine:
        plans = recorded(engine, tmp_path / "log", policy, 70, dry_run=dry_run)
    again = replayed(read_lines(tmp_path / "log", Counter()), policy)
    assert [essence(plan) for plan in again] == [essence(plan) for plan in plans]
    assert [plan.time_s for plan in again] == [float(second) for second in range(70)]
    if policy == "kind: goodput":
        assert {Reason.GAIN, Reason.OFF_NO_GAIN, Reason.IDLE} <= {plan.reason for plan in plans}


def test_a_log_decides_beside_an_engine_that_adapts_by_itself(tmp_path: Path) -> None:
    policy, name = "kind: goodput\nmode: supervise", "enable_adaptive_verification"
    adaptive = EngineAdaptivity(name=name, decides="verified", is_bounded=True)
    with FakeEngine(start_tokens=8, adaptivity=adaptive) as engine:
        plans = recorded(engine, tmp_path / "log", policy, 30)
    again = replayed(read_lines(tmp_path / "log", Counter()), policy)
    assert [essence(plan) for plan in again] == [essence(plan) for plan in plans]
    assert Reason.SUPERVISED in {plan.reason for plan in plans}


def test_a_log_decides_behind_a_slow_front_end(tmp_path: Path) -> None:
    with FakeEngine(start_tokens=2) as engine:
        engine.waiting_pieces = 1000
        plans = recorded(engine, tmp_path / "log", "kind: goodput", 30)
    again = replayed(read_lines(tmp_path / "log", Counter()), "kind: goodput")
    assert [essence(plan) for plan in again] == [essence(plan) for plan in plans]
    without = replayed(_without_pieces(tmp_path / "log"), "kind: goodput")
    assert [essence(plan) for plan in without] != [essence(plan) for plan in plans]


def _without_pieces(path: Path) -> Iterator[Line]:
    for line in read_lines(path, Counter()):
        if isinstance(line, Reading) and line.telemetry is not None:
            telemetry = line.telemetry.model_copy(update={"front_end_waiting_pieces": None})
            line = line.model_copy(update={"telemetry": telemetry})
        yield line


def test_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    with FakeEngine(start_tokens=2) as engine:
        recorded(engine, path, "kind: fixed\nnum_speculative_tokens: 5", 20)
    assert main(["replay", str(path), "--policy", "off"]) == 0
    *decisions, summary = capsys.readouterr().out.splitlines()
    assert len(decisions) == 20
    assert decisions[1].startswith("      1.0 s  set_by_policy     batch 1: 5 tokens -> off")
    assert summary == "20 decisions, 20 of them change the table: set_by_policy 20"


def test_a_restart_begins_afresh(tmp_path: Path) -> None:
    with FakeEngine(start_tokens=2) as engine:
        first = recorded(engine, tmp_path / "log", "kind: goodput", 15)
        engine.restart()
        second = recorded(engine, tmp_path / "log", "kind: goodput", 15)
    again = replayed(read_lines(tmp_path / "log", Counter()), "kind: goodput")
    assert [essence(plan) for plan in again] == [essence(plan) for plan in first + second]


@pytest.mark.parametrize(
    ("text", "policy", "code", "words"),
    [
        (None, "balanced", 4, "cannot be read"),
        ("", "balanced", 4, "expected a telemetry log"),
        ("a,b\n1,2\n", "balanced", 4, "expected"),
        ('{"kind": "header"}\n', "balanced", 4, "log:1: specctl_version: Field required"),
        ("", "nosuch", 3, "no such file"),
    ],
)
def test_bad_input(
    text: str | None,
    policy: str,
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "log"
    if text is not None:
        path.write_text(text)
    assert main(["replay", str(path), "--policy", policy]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err


def test_a_log_of_a_stock_server_holds_nothing_to_decide_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    with FakeEngine(has_plugin=False) as engine:
        recorded(engine, path, "kind: goodput", 3)
    assert main(["replay", str(path), "--policy", "balanced"]) == 4
    assert "no reading of a server with the specctl plugin" in capsys.readouterr().err
