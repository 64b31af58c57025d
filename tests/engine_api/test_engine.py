from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fakes.clock import ManualClock
from fakes.engine import FakeEngine

from specctl.contract import CONTRACT_VERSION
from specctl.engine_api.client import EngineClient
from specctl.engine_api.observer import EngineObserver
from specctl.errors import SpecctlError, TargetError
from specctl.http_client import HttpClient, normalise_target, read_token
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
        observer = EngineObserver(
            EngineClient(HttpClient(engine.url, token=token, timeout_s=timeout_s)), clock
        )
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
            observer = EngineObserver(EngineClient(HttpClient(target)), ManualClock())
            try:
                await observer.observe()
            finally:
                await observer.close()

        assert "connection refused" in failing(look)


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
    with FakeEngine(start_tokens=4) as engine:
        engine.forced_status["/specctl/v1/capabilities"] = 503
        engine.forced_body = b'{"error": "not_steered", "message": "not started with an algorithm"}'
        second = looks(engine)[1]
        assert not second.may_act
        assert (second.why_not_act or "").endswith("HTTP 503: not started with an algorithm")
        assert second.stock is not None
        engine.forced_status["/metrics"] = 404
        engine.mangle["/specctl/v1/capabilities"] = lambda _: engine.forced_body
        with pytest.raises(TargetError, match=r"--enable-metrics.*not started with an algorithm"):
            looks(engine)


@pytest.mark.parametrize("version", [0, CONTRACT_VERSION - 1, CONTRACT_VERSION + 1])
def test_a_plugin_of_another_contract_is_seen_through_the_metrics(version: int) -> None:
    with FakeEngine(start_tokens=4) as engine:
        engine.mangle["/specctl/v1/capabilities"] = lambda raw: raw.replace(
            b'"contract_version":%d' % CONTRACT_VERSION, b'"contract_version":%d' % version
        )
        second = looks(engine)[1]
    assert second.capabilities is None
    assert second.stock is not None
    assert second.stock.drafts
    assert not second.may_act
    assert f"speaks contract {version}, specctl here {CONTRACT_VERSION}" in (second.why_not_act or "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[" * 100_000,
        b'{"contract_version":1}',
        b'{"contract_version":' + b"9" * 5000 + b"}",
        b'{"contract_version":1e400}',
    ],
)
def test_capabilities_that_cannot_be_read_leave_the_metrics(body: bytes) -> None:
    with FakeEngine(start_tokens=4) as engine:
        engine.mangle["/specctl/v1/capabilities"] = lambda _: body
        second = looks(engine)[1]
    assert second.stock is not None
    assert not second.may_act
    assert f"specctl here {CONTRACT_VERSION}" in (second.why_not_act or "")


def lying(**changes: object) -> Callable[[bytes], bytes]:
    return lambda raw: json.dumps({**json.loads(raw), **changes}).encode()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decode_batch_buckets": list(range(1, 30_001))}, "decode_batch_buckets"),
        ({"decode_batch_buckets": [1, 3, 2]}, "rising"),
        ({"decode_batch_buckets": []}, "decode_batch_buckets"),
        ({"decode_batch_buckets": [-4, -1]}, "decode_batch_buckets"),
        ({"num_speculative_tokens_legal": [-4, -1]}, "num_speculative_tokens_legal"),
        ({"lease_max_s": -5}, "lease_max_s"),
        ({"lease_max_s": 1e300}, "1e21"),
        ({"decode_batch_max": 10**30}, "1e21"),
        ({"boot_id": "x" * 1000}, "boot_id"),
        ({"boot_id": "a\nb"}, "boot_id"),
        ({"settings": [{"num_speculative_tokens": 1}] * 2000}, "settings"),
    ],
)
def test_capabilities_that_cannot_be_are_not_acted_on(changes: dict[str, object], words: str) -> None:
    with FakeEngine() as engine:
        engine.mangle["/specctl/v1/capabilities"] = lying(**changes)
        second = looks(engine)[1]
    assert second.capabilities is None
    assert not second.may_act
    assert words in (second.why_not_act or "")
    assert len(second.why_not_act or "") < 600


def test_texts_of_capabilities_are_one_printable_line_each() -> None:
    warnings = ["forged\n2026-01-01 I all is well\x1b[2J"] + ["y" * 400] * 40
    with FakeEngine() as engine:
        engine.mangle["/specctl/v1/capabilities"] = lying(
            warnings=warnings, method="m\r\nx", model="a\u202eb" + "c" * 2000
        )
        known = looks(engine)[1].capabilities
    assert known is not None
    assert len(known.warnings) == 16
    assert known.warnings[0] == "forged 2026-01-01 I all is well [2J"
    assert max(map(len, known.warnings)) == 300
    assert (known.method, known.model[:3], len(known.model)) == ("m  x", "a b", 300)


@pytest.mark.parametrize(
    "changes",
    [
        {"cells": [{}] * 100_000},
        {"running": 10**400},
        {"boot_id": "x" * 500},
        {"cells": [], "kv_cache_used_ratio": 1e300},
    ],
)
def test_telemetry_beyond_a_bound_is_a_gap(changes: dict[str, object]) -> None:
    def spoil(i: int) -> None:
        if i == 1:
            sys.set_int_max_str_digits(0)
            engine.mangle[TELEMETRY] = lying(**changes)

    digits = sys.get_int_max_str_digits()
    try:
        with FakeEngine(start_tokens=4) as engine:
            _, second = looks(engine, between=spoil)
    finally:
        sys.set_int_max_str_digits(digits)
    assert second.cells is None
    assert second.capabilities is not None
    assert "telemetry" in second.gaps[0]
    assert len(second.gaps[0]) < 400


def test_deep_telemetry_is_a_gap() -> None:
    def spoil(i: int) -> None:
        if i == 1:
            engine.mangle[TELEMETRY] = lambda raw: b'{"cells":' + b"[" * 50_000

    with FakeEngine(start_tokens=4) as engine:
        _, second = looks(engine, between=spoil)
    assert "recursion limit" in second.gaps[0]


def test_metrics_that_are_never_there_are_not_asked_for_every_time() -> None:
    with FakeEngine(start_tokens=4) as engine:
        engine.forced_status["/metrics"] = 404
        seen = looks(engine, 30)
    assert sum(bool(one.gaps) for one in seen) == 1
    assert engine.requests.count(("GET", "/metrics")) == 1


def test_a_server_that_comes_back_without_the_plugin_is_seen_through_its_metrics() -> None:
    def change(i: int) -> None:
        if i == 2:
            engine.has_plugin = False

    with FakeEngine(start_tokens=4) as engine:

        async def course() -> list[Observation | None]:
            clock = ManualClock()
            observer = EngineObserver(EngineClient(HttpClient(engine.url, timeout_s=30.0)), clock)
            seen: list[Observation | None] = []
            for i in range(5):
                engine.advance(1.0)
                clock.advance(1.0)
                change(i)
                try:
                    seen.append(await observer.observe())
                except TargetError:
                    seen.append(None)
            await observer.close()
            return seen

        seen = asyncio.run(course())
    assert seen[2] is None, "the routes are gone"
    assert seen[3] is not None
    assert seen[3].boot_id is None
    assert not seen[3].may_act


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
