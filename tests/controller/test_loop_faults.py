"""The loop on an engine that is gone, slow or wrong, and on its own bugs."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest
from fakes.engine import FakeEngine
from fakes.rig import Rig

from specctl.contract.table import TableState
from specctl.types import Decision


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="specctl")


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
