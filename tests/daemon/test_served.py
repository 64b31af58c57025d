"""The daemon's own port."""

from __future__ import annotations

import asyncio
import socket

import pytest

from specctl.daemon.served import CONNECTIONS_MAX, served
from specctl.errors import SpecctlError
from specctl.http_client import HttpClient
from specctl.metrics.exporter import Exporter
from specctl.watch.views import FROZEN_ROUTE, FrozenFile, FrozenFiles

FILES = FrozenFiles(files=(FrozenFile(path="/p.yaml", frozen=True, targets=3, unsettled_targets=0),))


def test_metrics_health_and_frozen_files() -> None:
    async def course() -> None:
        exporter = Exporter()
        exporter.targets(3)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        async with (
            served(exporter, lambda: FILES, "127.0.0.1", port),
            HttpClient(f"127.0.0.1:{port}") as client,
        ):
            assert b"specctl_watched_targets 3.0" in (await client.get("/metrics")).body
            assert (await client.get("/healthz")).body == b"ok\n"
            assert FrozenFiles.model_validate_json((await client.get(FROZEN_ROUTE)).body) == FILES
            assert (await client.get("/specctl/v1/table")).status == 404
            with pytest.raises(
                SpecctlError,
                match=rf"port 127.0.0.1:{port}: Address already in use; another daemon\? --metrics-port N",
            ):
                async with served(exporter, lambda: FILES, "127.0.0.1", port):
                    pass

    asyncio.run(course())


def test_a_metrics_host_that_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def course() -> None:
        with pytest.raises(SpecctlError, match=r"metrics port nowhere:9109: Name or service not known$"):
            async with served(Exporter(), lambda: FILES, "nowhere", 9109):
                pass

    monkeypatch.setattr(socket, "getaddrinfo", not_found)
    asyncio.run(course())


def test_what_is_no_http_leaves_no_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A bug of ours does."""

    def broken() -> FrozenFiles:
        raise RuntimeError("a bug")

    async def course() -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        async with served(Exporter(), broken, "127.0.0.1", port):
            for header in (b"Content-Length: -1", b"X: " + b"x" * 10_000, b"no header"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /healthz HTTP/1.1\r\n" + header + b"\r\n\r\n")
                assert (await reader.readline()).startswith(b"HTTP/1.0 400 ")
                writer.close()
            assert caplog.text == ""
            async with HttpClient(f"127.0.0.1:{port}") as client:
                assert (await client.get(FROZEN_ROUTE)).status == 500
            assert "RuntimeError: a bug" in caplog.text

    asyncio.run(course())


def test_port_0_serves_nothing() -> None:
    async def course() -> None:
        async with served(Exporter(), lambda: FILES, "127.0.0.1", 0):
            pass

    asyncio.run(course())


def test_connections_that_never_ask_make_room_for_those_that_do() -> None:
    async def course() -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        async with served(Exporter(), lambda: FILES, "127.0.0.1", port):
            held = []
            for _ in range(2 * CONNECTIONS_MAX):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET /metrics HTTP/1.1\r\nX: ")
                held.append((reader, writer))
            async with HttpClient(f"127.0.0.1:{port}") as client:
                assert (await client.get("/healthz")).body == b"ok\n"
            await asyncio.sleep(0.05)
            assert sum(not reader.at_eof() for reader, _ in held) < CONNECTIONS_MAX
            for _, writer in held:
                writer.close()

    asyncio.run(course())
