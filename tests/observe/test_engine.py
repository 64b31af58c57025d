from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fakes.clock import ManualClock
from fakes.engine import FakeEngine

from specctl.errors import SpecctlError, TargetError
from specctl.http_client import HttpClient, normalise_target, read_token
from specctl.observe.engine import EngineObserver
from specctl.types import Observation

TELEMETRY = "/specctl/v1/telemetry"


def looks(
    engine: FakeEngine,
    count: int = 2,
    *,
    between: Callable[[int], None] = lambda i: None,
    token: str | None = None,
    timeout_s: float = 30.0,
) -> list[Observation]:
    """``count`` looks, one second of traffic before each; ``between`` runs before a look."""

    async def watch() -> list[Observation]:
        clock = ManualClock()
        observer = EngineObserver(HttpClient(engine.url, token=token, timeout_s=timeout_s), clock)
        seen = []
        try:
            for i in range(count):
                engine.advance(1.0)
                clock.advance(1.0)
                between(i)
                seen.append(await observer.observe())
        finally:
            await observer.close()
        return seen

    return asyncio.run(watch())


def failing(call: Callable[[], Awaitable[object]]) -> str:
    with pytest.raises(TargetError) as caught:
        asyncio.run(call())  # type: ignore[arg-type]
    return str(caught.value)


def test_differences_start_with_the_second_look() -> None:
    with FakeEngine(start_tokens=4) as engine:
        first, second = looks(engine)
    assert first.cells is None
    assert first.interval_s is None
    assert second.interval_s == pytest.approx(1.0)
    assert second.cells is not None
    assert second.emitted_tokens
    assert second.applied is not None
    assert second.decoding == 1


def test_a_restart_starts_afresh() -> None:
    def restart(i: int) -> None:
        if i == 2:
            engine.restart()
            engine.advance(0.5)

    with FakeEngine(start_tokens=4) as engine:
        seen = looks(engine, 4, between=restart)
    assert (seen[2].boot_id or "").endswith("-2")
    assert seen[2].cells is None
    assert "restarted" in " ".join(seen[2].gaps)
    assert seen[3].cells is not None


def test_a_counter_that_fell_gives_no_difference() -> None:
    def fall(i: int) -> None:
        if i == 2:
            for cell in engine.cells.values():
                cell.emitted_tokens = 0

    with FakeEngine(start_tokens=4) as engine:
        seen = looks(engine, 4, between=fall)
    assert seen[2].cells is None
    assert "fell" in " ".join(seen[2].gaps)
    assert seen[3].cells is not None


@pytest.mark.parametrize("word", ["NaN", "-1", '"x"', "null"])
def test_telemetry_that_cannot_be_is_not_measured(word: str) -> None:
    def mangle(raw: bytes) -> bytes:
        body = json.loads(raw)
        body["cells"][0]["step_s"] = "@"
        return json.dumps(body).replace('"@"', word).encode()

    def spoil(i: int) -> None:
        if i == 1:
            engine.mangle[TELEMETRY] = mangle

    with FakeEngine(start_tokens=4) as engine:
        _, second = looks(engine, between=spoil)
    assert second.cells is None
    assert second.running is None
    assert "telemetry" in second.gaps[0]


def test_missing_telemetry_keys_are_not_measured() -> None:
    with FakeEngine() as engine:
        engine.mangle[TELEMETRY] = lambda raw: b'{"boot_id": "boot-1"}'
        _, second = looks(engine)
    assert second.cells is None
    assert second.gaps


def test_a_stock_server_is_seen_through_its_metrics() -> None:
    with FakeEngine(start_tokens=4, has_plugin=False) as engine:
        first, second = looks(engine)
    assert not first.may_act
    assert "without the specctl plugin" in (first.why_not_act or "")
    assert second.capabilities is None
    assert second.engine_version == "0.32.0"
    assert second.stock is not None
    assert second.stock.drafts
    assert second.stock.accepted_at is not None


def test_no_engine() -> None:
    with FakeEngine(has_plugin=False) as engine:
        engine.mangle["/metrics"] = lambda raw: b"<html>hello</html>"
        with pytest.raises(TargetError, match="not an engine"):
            looks(engine)


def test_slow_target() -> None:
    with FakeEngine() as engine:
        engine.delay_s = 0.4
        with pytest.raises(TargetError, match="no answer within"):
            looks(engine, 1, timeout_s=0.1)


def test_unreachable_target() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        target = f"http://127.0.0.1:{taken.getsockname()[1]}"

        async def look() -> None:
            observer = EngineObserver(HttpClient(target), ManualClock())
            try:
                await observer.observe()
            finally:
                await observer.close()

        assert "cannot be reached" in failing(look)


def test_an_endless_answer_is_cut() -> None:
    async def look() -> None:
        async with HttpClient(engine.url, timeout_s=30.0, body_max_bytes=1000) as client:
            await client.get("/metrics")

    with FakeEngine() as engine:
        engine.mangle["/metrics"] = lambda raw: b"x" * 100_000
        assert "over 1000 bytes" in failing(look)


def test_token() -> None:
    with FakeEngine(token="secret", start_tokens=2) as engine:
        assert looks(engine, token="secret")[1].cells is not None
        with pytest.raises(TargetError, match="token"):
            looks(engine, token="wrong")


def test_engine_not_ready() -> None:
    with FakeEngine() as engine:
        engine.forced_status["/specctl/v1/capabilities"] = 503
        for body in (b"", b"<html>", b"[]", b'{"message": 7}'):
            engine.forced_body = body
            with pytest.raises(TargetError, match="the engine is not ready"):
                looks(engine)


def test_an_engine_that_is_not_steered_says_why_in_its_own_words() -> None:
    with FakeEngine() as engine:
        engine.forced_status["/specctl/v1/capabilities"] = 503
        engine.forced_body = b'{"error": "not_steered", "message": "not started with an algorithm"}'
        with pytest.raises(TargetError, match="capabilities: not started with an algorithm"):
            looks(engine)


def test_another_contract_is_refused() -> None:
    with FakeEngine() as engine:
        engine.mangle["/specctl/v1/capabilities"] = lambda raw: raw.replace(
            b'"contract_version":1', b'"contract_version":99'
        )
        with pytest.raises(TargetError, match="contract 99"):
            looks(engine)


@pytest.mark.parametrize("target", ["ftp://host", "http://", "http://host:port", ""])
def test_a_target_that_is_no_url(target: str) -> None:
    with pytest.raises(TargetError):
        normalise_target(target)


def test_a_target_without_a_scheme_is_http() -> None:
    assert normalise_target("127.0.0.1:8000/") == "http://127.0.0.1:8000"


@pytest.mark.parametrize("content", [None, b"", b"two\nlines", b"\xff\xfe"])
def test_a_wrong_token_file(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecctlError, match="token file"):
        read_token(path)
