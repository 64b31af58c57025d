"""A server that lies, through whole polls: nothing raises, nothing grows, and its neighbours get their turn.

``SPECCTL_LYING_COURSES`` says how many random courses; each is known by its seed.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import logging
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.clock import ManualClock
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine
from fakes.rig import Rig, Source, records
from prometheus_client import generate_latest

from specctl.contract.setting import Setting
from specctl.core.rollout import RolloutGroup
from specctl.daemon.audit import AuditLog
from specctl.daemon.context import LoopContext
from specctl.daemon.loop import REST_BY_BUSY, TargetLoop
from specctl.daemon.reporter import LINES_MAX_PER_MINUTE, Reporter
from specctl.engine_api.client import CHOICES_MAX, EngineClient
from specctl.engine_api.observer import EngineObserver
from specctl.http_client import Response
from specctl.metrics.exporter import Exporter
from specctl.policy.loader import parse_policy
from specctl.watch.board import Board
from specctl.watch.views import DaemonView, Overview

COURSES = int(os.environ.get("SPECCTL_LYING_COURSES", "60"))
FOUND = (400, 848)
"""Courses that raised once."""
POLLS = 30
CAPABILITIES, TELEMETRY = "/specctl/v1/capabilities", "/specctl/v1/telemetry"
POLICIES = ("kind: goodput", "kind: fixed\nnum_speculative_tokens: 3", "kind: cost\nprice_per_gpu_hour: 2")
ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 64, 1024, 1 << 31, 1 << 53, 1 << 63, 10**20, -(10**20), 0.0, -0.0, 0.5,
    1e-300, 5e-324, 1e20, 1e-9, -1e-9, "", "x", "\x1b[2J\n", [], {}, [[]], [0], [1] * 64, "live", "fallback",
)  # fmt: skip
SAMPLES = ("0", "-1", "1e300", "NaN", "+Inf", "1e18", "5e-324", "x")
DAEMON = DaemonView(owner="me", version="0", time_s=0.0)
TREES = (
    *(Setting(num_speculative_tokens=number) for number in range(5)),
    Setting(num_speculative_tokens=4, tree_topk=2, verify_width_tokens=8),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield path
    for key, part in inside:
        yield from places(part, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    """The same value where the place is not there."""
    if not path:
        return odd
    part = value
    try:
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = odd
    except (KeyError, IndexError, TypeError):
        pass
    return value


def refused(word: str) -> None:
    """No JSON has it."""
    raise AssertionError(word)


class Liar:
    """In the place of a connection: a fake engine's answers, of which parts are replaced."""

    target = "http://t:1"

    def __init__(self, engine: FakeEngine, rng: random.Random) -> None:
        self.engine, self.rng, self.share = engine, rng, rng.choice((0.02, 0.2, 0.6))
        self.standing: dict[str, list[tuple[tuple[Any, ...], Any]]] = {}

    async def get(self, path: str, body_max_bytes: int | None = None) -> Response:
        return self.response(path, *self.engine.answer("GET", path, {}, b""))

    async def put(self, path: str, body: bytes) -> Response:
        return self.response(path, *self.engine.answer("PUT", path, {}, body))

    async def close(self) -> None:
        return None

    def response(self, path: str, status: int, raw: bytes) -> Response:
        return Response(status, self.page(raw) if path == "/metrics" else self.message(path, raw))

    def page(self, raw: bytes) -> bytes:
        lines = raw.decode().split("\n")
        if self.rng.random() < self.share:
            at = self.rng.randrange(len(lines))
            lines[at] = f"{lines[at].rpartition(' ')[0]} {self.rng.choice(SAMPLES)}"
        return "\n".join(lines).encode()

    def message(self, path: str, raw: bytes) -> bytes:
        value, rng = json.loads(raw), self.rng
        edits = list(self.standing.get(path, ()))
        if rng.random() < self.share:
            edits.append((rng.choice(list(places(value))), rng.choice(ODD)))
            if rng.random() < 0.5:
                self.standing.setdefault(path, []).append(edits[-1])
            if rng.random() < 0.2:
                self.standing.pop(path, None)
        for where, odd in edits:
            value = replaced(value, where, copy.deepcopy(odd))
        return json.dumps(value).encode()


@pytest.mark.parametrize("seed", [*range(COURSES), *FOUND])
def test_no_lie_raises(seed: int, tmp_path: Path) -> None:
    rng, clock, exporter = random.Random(seed), ManualClock(), Exporter()
    engine = FakeEngine(
        traffic=rng.choice((COPYING, RANDOM_TEXT)),
        settings=rng.choice(((), TREES)),
        start_tokens=2,
        has_shadow=rng.random() < 0.5,
        class_limits_max=rng.choice((0, 4)),
    )
    client = EngineClient(Liar(engine, rng))  # type: ignore[arg-type]
    group = RolloutGroup()
    if rng.random() < 0.5:
        group.join("http://neighbour:1")
    board = Board("me", clock)
    shown = board.add(client.target)
    reporter = Reporter(client.target, "me", AuditLog(tmp_path / "audit", clock), exporter, shown)
    loop = TargetLoop(
        client.target, EngineObserver(client, clock), client, Source(parse_policy(rng.choice(POLICIES), "p")),
        reporter, LoopContext("me", clock), group,
    )  # fmt: skip

    async def course() -> None:
        for poll in range(POLLS):
            engine.advance(1.0)
            clock.advance(1.0)
            if rng.random() < 0.03:
                engine.restart()
            await loop.tick()
            if poll % 6 == 5:
                shown_to_people()

    def shown_to_people() -> None:
        """What the page and top are given, of this server and all beside it."""
        overview = Overview(daemon=DAEMON, targets=board.views())
        for view in (overview, shown.detail()):
            json.loads(view.model_dump_json(), parse_constant=refused)

    asyncio.run(course())
    generate_latest(exporter.registry)


def test_a_server_with_more_settings_than_can_be_weighed_is_only_watched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def many(raw: bytes) -> bytes:
        trees = [
            {"num_speculative_tokens": depth, "tree_topk": topk}
            for depth in range(1, 64)
            for topk in (1, 2, 3)
        ]
        return json.dumps(
            {**json.loads(raw), "settings": trees, "decode_batch_buckets": list(range(1, 65))}
        ).encode()

    async def course() -> None:
        async with Rig(engine) as rig:
            plans = await rig.run(5)
            assert all(plan is not None and plan.rows is None for plan in plans)

    with FakeEngine(traffic=COPYING) as engine:
        engine.mangle[CAPABILITIES] = many
        asyncio.run(course())
        assert engine.puts == []
    assert f"settings in all buckets, over {CHOICES_MAX}" in caplog.text


def test_a_decision_that_takes_long_is_followed_by_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the targets beside it get their turn."""
    slept: list[float] = []

    class Clock(ManualClock):
        async def sleep(self, seconds: float, stop: asyncio.Event) -> None:
            slept.append(seconds)
            stop.set()
            await super().sleep(seconds, stop)

    async def course() -> None:
        async with Rig(engine, clock=Clock()) as rig:
            plan = rig.loop._controller.plan

            def slowly(*arguments: Any) -> Any:
                ends_s = time.thread_time() + 0.5
                while time.thread_time() < ends_s:
                    pass
                return plan(*arguments)

            monkeypatch.setattr(rig.loop._controller, "plan", slowly)
            rig.loop.boot_id = engine.boot_id
            monkeypatch.setattr(rig.loop, "_forget", lambda capabilities: None)
            await rig.loop.run(asyncio.Event())

    with FakeEngine() as engine:
        asyncio.run(course())
    assert slept[0] >= REST_BY_BUSY * 0.5


def test_refusals_that_always_differ_do_not_fill_the_audit_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="specctl")
    numbers, audit = itertools.count(), tmp_path / "audit.jsonl"

    class Refusing(FakeEngine):
        def put(self, body: bytes) -> tuple[int, dict[str, Any]]:
            number = next(numbers)
            return 409, {"error": "version_conflict", "message": "", "version": 1000 + number}

    async def course() -> None:
        async with Rig(engine, policy="kind: fixed\nnum_speculative_tokens: 5", audit=audit) as rig:
            await rig.run(200)

    with Refusing() as engine:
        asyncio.run(course())
    assert next(numbers) > 100
    assert len(records(audit, "refused")) <= 10


def test_messages_that_always_differ_do_not_fill_the_audit_log(tmp_path: Path) -> None:
    numbers, audit = itertools.count(), tmp_path / "audit.jsonl"

    class Refusing(FakeEngine):
        def put(self, body: bytes) -> tuple[int, dict[str, Any]]:
            word = "".join(random.Random(next(numbers)).choices("abcdefgh", k=100))
            return 422, {"refusals": [{"row": 0, "field": "sample", "reason": word}]}

    async def course() -> None:
        async with Rig(engine, policy="kind: fixed\nnum_speculative_tokens: 5", audit=audit) as rig:
            await rig.run(400)

    with Refusing() as engine:
        asyncio.run(course())
    assert len(records(audit, "refused")) <= LINES_MAX_PER_MINUTE


def test_names_that_always_differ_do_not_fill_the_metrics() -> None:
    numbers = itertools.count()

    def another(raw: bytes) -> bytes:
        message = json.loads(raw)
        number = next(numbers)
        message["failures"] = {f"\x1b[2J{number} {i} {'x' * 10_000}": 1 for i in range(64)}
        return json.dumps(message).encode()

    async def course() -> None:
        async with Rig(engine) as rig:
            await rig.run(40)
            page = generate_latest(rig.exporter.registry).decode()
            assert page.count("specctl_plugin_failures{") == 64
            assert "\x1b" not in page
            assert len(page) < 100_000
            engine.mangle.clear()
            await rig.run(2)
            assert "specctl_plugin_failures{" not in generate_latest(rig.exporter.registry).decode()

    with FakeEngine() as engine:
        engine.mangle[TELEMETRY] = another
        asyncio.run(course())


def test_buckets_of_an_earlier_start_are_no_longer_served() -> None:
    def other(raw: bytes) -> bytes:
        return json.dumps({**json.loads(raw), "decode_batch_buckets": [5, 7]}).encode()

    async def course() -> None:
        async with Rig(engine) as rig:
            await rig.run(4)
            engine.mangle[CAPABILITIES] = other
            engine.restart()
            await rig.run(4)
            page = generate_latest(rig.exporter.registry).decode()
            served = [
                line for line in page.splitlines() if line.startswith("specctl_num_speculative_tokens{")
            ]
            assert len(served) == 2, served

    with FakeEngine(start_tokens=2) as engine:
        asyncio.run(course())
