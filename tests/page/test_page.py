"""The page's API and its access, over HTTP, on real loops of fake engines."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from fakes.engine import Cost, FakeEngine, Traffic
from fakes.rig import Source
from support.shown_daemon import CONTROL, READ, ShownDaemon, shown_daemon, write_tokens

from specctl.contract.adaptivity import EngineAdaptivity
from specctl.daemon.controls import Controls
from specctl.errors import TargetError
from specctl.policy.loader import parse_policy
from specctl.watch.views import CONTROL_HEADER, ControlChange, Mode, Overview, TargetDetail

BEARER = {"Authorization": f"Bearer {CONTROL}"}
CHANGE = {**BEARER, CONTROL_HEADER: "1"}


class Browser:
    """What a page may send."""

    def __init__(self, daemon: ShownDaemon, session: aiohttp.ClientSession) -> None:
        self.daemon, self._session = daemon, session

    async def get(self, path: str, **headers: str) -> tuple[int, Any, Mapping[str, str]]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._session.get(self.daemon.url + path, headers=sent) as answer:
            body = await answer.read()
            is_json = answer.content_type == "application/json"
            return answer.status, json.loads(body) if is_json else body, answer.headers

    async def control(
        self, mode: str, headers: dict[str, str] | None = None, rows: Any = (), **more: Any
    ) -> int:
        body = {"target": self.daemon.engines[0].url, "mode": mode, "rows": rows, **more}
        sent = CHANGE if headers is None else headers
        url = f"{self.daemon.url}/api/v1/control"
        async with self._session.post(url, json=body, headers=sent) as answer:
            return answer.status


def browse(course: Any, count: int = 1, **given: Any) -> None:
    async def run(engines: list[FakeEngine]) -> None:
        async with shown_daemon(engines, **given) as daemon, aiohttp.ClientSession() as session:
            await course(Browser(daemon, session))

    engines = [FakeEngine(start_tokens=4, traffic=Traffic(decode_batch=1), seed=i) for i in range(count)]
    for engine in engines:
        engine.__enter__()
    try:
        asyncio.run(run(engines))
    finally:
        for engine in engines:
            engine.__exit__(None, None, None)


def test_figures_are_those_of_the_servers() -> None:
    async def course(browser: Browser) -> None:
        daemon = browser.daemon
        status, body, _ = await browser.get("/readyz")
        assert status == 503
        assert b"not polled yet" in body
        await daemon.run(12)
        assert (await browser.get("/readyz"))[0] == 200
        status, body, _ = await browser.get("/api/v1/targets")
        overview = Overview.model_validate(body)
        assert [one.target for one in overview.targets] == [engine.url for engine in daemon.engines]
        first, engine = overview.targets[0], daemon.engines[0]
        assert (first.is_up, first.running, first.model, first.lease_held) == (True, 1, "fake", True)
        assert first.num_speculative_tokens == engine.tokens_at(1)
        assert first.decode_tokens_per_s > first.off_tokens_per_s > 0
        _, body, _ = await browser.get(f"/api/v1/target?url={engine.url}")
        detail = TargetDetail.model_validate(body)
        assert detail.survival_at is not None
        assert list(detail.survival_at) == sorted(detail.survival_at, reverse=True)
        assert detail.survival_at[0] == pytest.approx(0.9, abs=0.1)
        assert [bucket.decode_batch_to for bucket in detail.buckets] == list(engine.buckets.uppers)
        assert detail.decisions
        assert detail.history
        assert (await browser.get("/api/v1/target?url=http://other:1"))[0] == 404

    browse(course, count=2)


def test_drafts_that_are_not_sound_and_what_the_engine_adapts_are_shown() -> None:
    async def course(browser: Browser) -> None:
        (engine,) = browser.daemon.engines
        engine.cost = Cost(constant_s=0.01, token_s=0.0001)
        engine.traffic = Traffic(decode_batch=8, accept_at=(1.0,) * 8)
        engine.adaptivity = EngineAdaptivity(name="adapts", decides="verified", is_bounded=True)
        engine.adapts = True
        engine.restart()
        await browser.daemon.run(20)
        _, body, _ = await browser.get(f"/api/v1/target?url={engine.url}")
        detail = TargetDetail.model_validate(body)
        assert detail.unsound is not None
        assert "every draft is accepted" in detail.unsound
        assert detail.adaptivity == "adapts is on, 2.0 tokens verified, bounded by the rows"

    browse(course)


def test_a_server_that_is_gone_says_so() -> None:
    async def course(browser: Browser) -> None:
        await browser.daemon.run(2)
        browser.daemon.engines[0].forced_status["/specctl/v1/telemetry"] = 500
        browser.daemon.engines[0].forced_status["/metrics"] = 500
        await browser.daemon.run(1)
        _, body, _ = await browser.get("/api/v1/targets")
        assert body["targets"][0]["is_up"] is False
        assert "500" in body["targets"][0]["why_down"]

    browse(course)


def test_operators_freeze_turn_off_set_a_table_and_resume(tmp_path: Path) -> None:
    audit = tmp_path / "audit"

    async def course(browser: Browser) -> None:
        daemon = browser.daemon
        engine = daemon.engines[0]
        await daemon.run(3)
        assert await browser.control("off") == 200
        await daemon.run(2)
        assert [engine.tokens_at(batch) for batch in (1, 8)] == [0, 0]
        rows = [{"decode_batch_to": 2, "setting": {"num_speculative_tokens": 3}}]
        rows += [{"decode_batch_to": None, "setting": {"num_speculative_tokens": 1}}]
        assert await browser.control("table", rows=rows) == 200
        await daemon.run(2)
        assert [engine.tokens_at(batch) for batch in (1, 2, 3, 8)] == [3, 3, 1, 1]
        assert await browser.control("table", rows=rows[:1]) == 422
        assert await browser.control("freeze") == 200
        await daemon.run(8)
        assert [engine.tokens_at(batch) for batch in (1, 8)] == [3, 1]
        assert await browser.control("policy") == 200
        await daemon.run(8)
        assert engine.tokens_at(1) > 3

    browse(course, token_file=write_tokens(tmp_path), audit=audit)
    events = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [one["mode"] for one in events if one["event"] == "control"] == [
        "off",
        "table",
        "freeze",
        "policy",
    ]


def test_a_dry_run_holds_the_table_and_shows_what_would_change(tmp_path: Path) -> None:
    async def course(browser: Browser) -> None:
        daemon = browser.daemon
        engine = daemon.engines[0]
        await daemon.run(2)
        assert await browser.control("dry_run") == 200
        held = engine.applied().rows
        engine.traffic = Traffic(decode_batch=1, accept_at=(0.02,) * 8)
        await daemon.run(10)
        assert [row.setting for row in engine.applied().rows] == [row.setting for row in held]
        _, body, _ = await browser.get(f"/api/v1/target?url={engine.url}", Authorization=f"Bearer {READ}")
        assert body["mode"] == "dry_run"
        assert any(line["words"].startswith("dry run: ") for line in body["decisions"])
        assert body["lease_held"]

    browse(course, token_file=write_tokens(tmp_path))


def test_changes_need_a_control_token_and_the_pages_own_header(tmp_path: Path) -> None:
    async def course(browser: Browser) -> None:
        origin = {"Origin": "http://evil.example"}
        assert await browser.control("off", {CONTROL_HEADER: "1"}) == 401
        assert await browser.control("off", {**CHANGE, "Authorization": f"Bearer {READ}"}) == 403
        assert await browser.control("off", BEARER) == 403
        assert await browser.control("off", {**CHANGE, **origin}) == 403
        assert await browser.control("off", {**CHANGE, "Sec-Fetch-Site": "cross-site"}) == 403
        assert await browser.control("off", {**CHANGE, "Content-Type": "text/plain"}) == 403
        assert await browser.control("off", {**CHANGE, "Origin": browser.daemon.url}) == 200
        assert await browser.control("sideways") == 400
        assert await browser.control("off", target="http://other:1") == 422
        assert (await browser.get("/api/v1/targets"))[0] == 401
        assert (await browser.get("/api/v1/targets", Authorization=f"Bearer {READ}"))[0] == 200

    browse(course, token_file=write_tokens(tmp_path))


def test_without_a_token_file_this_host_reads_and_nobody_changes() -> None:
    async def course(browser: Browser) -> None:
        path, port = "/api/v1/targets", browser.daemon.url.rsplit(":", 1)[1]
        assert (await browser.get(path))[0] == 200
        assert (await browser.get(path, Sec_Fetch_Site="same-origin"))[0] == 200
        assert (await browser.get(path, Sec_Fetch_Site="cross-site"))[0] == 403
        assert (await browser.get(path, Origin="http://evil.example"))[0] == 403
        assert (await browser.get(path, Host=f"rebound.example:{port}"))[0] == 403
        assert (await browser.get(path, X_Forwarded_For="127.0.0.1"))[0] == 403
        status = await browser.control("off")
        assert status == 403

    browse(course)


def test_files_of_the_page_come_with_a_policy_and_are_asked_for_by_their_hash() -> None:
    async def course(browser: Browser) -> None:
        status, body, headers = await browser.get("/")
        assert status == 200
        assert b"<script>" not in body
        assert b"style=" not in body
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        for name in ("page.css", "page.js", "icon.svg"):
            status, _, headers = await browser.get(f"/assets/{name}")
            assert status == 200
            assert (await browser.get(f"/assets/{name}", If_None_Match=headers["ETag"]))[0] == 304
        for path in ("/assets/index.html", "/assets/../routes.py", "/metrics/x", "/healthz/x", "/nothing"):
            assert (await browser.get(path))[0] == 404

    browse(course)


def test_a_change_may_come_in_pieces(tmp_path: Path) -> None:
    async def course(browser: Browser) -> None:
        body = json.dumps({"target": browser.daemon.engines[0].url, "mode": "freeze"}).encode()

        async def pieces() -> AsyncIterator[bytes]:
            for byte in body:
                await asyncio.sleep(0)
                yield bytes([byte])

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b" " * 4096

        headers = {**CHANGE, "Content-Type": "application/json"}
        url = f"{browser.daemon.url}/api/v1/control"
        async with aiohttp.ClientSession() as session:
            async with session.post(url, data=pieces(), headers=headers) as answer:
                assert answer.status == 200
            try:
                async with session.post(url, data=endless(), headers=headers) as answer:
                    assert answer.status == 413
            except aiohttp.ClientConnectionError:
                # The daemon closed while the rest was still sent.
                pass

    browse(course, token_file=write_tokens(tmp_path))


def test_of_targets_that_left_only_what_was_set_is_kept() -> None:
    controls, source = Controls(), Source(parse_policy("kind: goodput", "p"))
    reporter: Any = SimpleNamespace(event=lambda event: None)
    for number in range(100):
        controls.add(f"http://t{number}:1", source, reporter)
    controls.change(ControlChange(target="http://t7:1", mode=Mode.OFF), "me")
    for number in range(100):
        controls.forget(f"http://t{number}:1")
    with pytest.raises(TargetError):
        controls.change(ControlChange(target="http://t7:1", mode=Mode.OFF), "me")
    assert (len(controls._targets), len(controls._left)) == (0, 1)
    assert controls.add("http://t7:1", source, reporter).mode is Mode.OFF
    assert controls.add("http://t8:1", source, reporter).mode is Mode.POLICY
    assert controls._left == {}


def test_what_was_set_outlasts_a_target_that_comes_back_while_its_file_is_frozen() -> None:
    controls, source = Controls(), Source(parse_policy("kind: goodput", "p"))
    reporter: Any = SimpleNamespace(event=lambda event: None)
    controls.add("http://t:1", source, reporter)
    controls.change(ControlChange(target="http://t:1", mode=Mode.OFF), "me")
    source.policy = parse_policy("kind: goodput\nfrozen: true", "p")
    controls.forget("http://t:1")
    override = controls.add("http://t:1", source, reporter)
    assert override.policy is source.policy
    source.policy = parse_policy("kind: goodput", "p")
    assert (override.mode, override.policy.kind) == (Mode.OFF, "off")


def test_the_command_serves_it(tmp_path: Path) -> None:
    """``specctl autotune`` with a token file, as a process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def course(engine: FakeEngine) -> None:
        url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession(headers=CHANGE) as session:

            async def until(path: str, is_there: Callable[[Any], bool]) -> None:
                async with asyncio.timeout(60):
                    while True:
                        try:
                            async with session.get(url + path) as answer:
                                if is_there(
                                    await answer.json(content_type=None) if "api" in path else answer
                                ):
                                    return
                        except aiohttp.ClientError:
                            pass
                        await asyncio.sleep(0.1)

            await until("/readyz", lambda answer: answer.status == 200)
            await until("/", lambda answer: answer.status == 200)
            change = {"target": engine.url, "mode": "off"}
            async with session.post(f"{url}/api/v1/control", json=change) as answer:
                assert answer.status == 200
            await until("/api/v1/targets", lambda body: body["targets"][0]["mode"] == "off")
            async with asyncio.timeout(60):
                while engine.tokens_at(1):
                    await asyncio.sleep(0.1)

    with FakeEngine(start_tokens=4) as engine:
        options = ["--policy", "balanced", "--target", engine.url, "--metrics-port", str(port)]
        options += ["--page-token-file", str(write_tokens(tmp_path))]
        command = [sys.executable, "-m", "specctl.cli.main", "autotune", *options]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as daemon:
            try:
                asyncio.run(course(engine))
            finally:
                daemon.terminate()
