"""POST requests whose answers are streamed, with as little work for each piece as possible.

A streamed token costs an aiohttp client about 20 us and this one 12 us: what sends the load shares the
machine with the server that is measured. HTTP is parsed by httptools; connections are kept alive.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import cast

import httptools
from yarl import URL

from specctl.bench.records import StreamBytes
from specctl.http_client import normalise_target

__all__ = ["StreamPool"]

CONNECT_TIMEOUT_S = 30.0


class _Connection(asyncio.Protocol):
    """One request at a time. ``is_open``: another request may follow."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[int] | None = None
        self._arrived: Callable[[], None] | None = None

    def send(self, raw: bytes, stream: StreamBytes, arrived: Callable[[], None]) -> asyncio.Future[int]:
        """The status once the answer is complete; its body goes to ``stream`` as it comes."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._append, self._when = stream.pieces.append, stream.when_s.append
        self._arrived = arrived
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(raw)
        return self._ended

    def abort(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no subclass.
        self._transport, self.is_open = cast(asyncio.Transport, transport), True

    def data_received(self, data: bytes) -> None:
        if self._ended is None:
            # Nothing was asked: a server that says why it closes an idle connection.
            self.abort()
            return
        self._now_s = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"not HTTP ({error})"))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._fail(ConnectionResetError(str(error) if error else "the server closed the connection"))

    # httptools' callbacks.

    def on_body(self, body: bytes) -> None:
        self._when(self._now_s)
        self._append(body)
        assert self._arrived is not None
        self._arrived()

    def on_message_complete(self) -> None:
        self.is_open = self.is_open and self._parser.should_keep_alive()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(self._parser.get_status_code())
        self._ended = None

    def _fail(self, error: Exception) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)
        self._ended = None


class StreamPool:
    """Connections to one server. Raises OSError where it cannot be reached or goes away."""

    def __init__(self, target: str, api_key: str | None) -> None:
        url = URL(normalise_target(target))
        self._url, self._idle = url, list[_Connection]()
        self._all: set[_Connection] = set()
        host = "localhost" if url.scheme == "unix" else url.host or ""
        port = "" if url.scheme == "unix" else f":{url.port}"
        self._fixed = f"Host: {host}{port}\r\nContent-Type: application/json\r\n"
        if api_key:
            self._fixed += f"Authorization: Bearer {api_key}\r\n"
        self._base = "" if url.scheme == "unix" else url.raw_path.rstrip("/")

    async def post(self, path: str, body: bytes, stream: StreamBytes, arrived: Callable[[], None]) -> int:
        """The status. A cancelled request closes its connection, which ends it on the server too."""
        head = f"POST {self._base}{path} HTTP/1.1\r\n{self._fixed}"
        raw = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open:
                continue
            try:
                return await self._send(connection, raw, stream, arrived)
            except ConnectionError:
                # Closed by the server just when it was taken up again: nothing was done yet.
                if stream.pieces:
                    raise
        return await self._send(await self._connect(), raw, stream, arrived)

    def close(self) -> None:
        for connection in self._all:
            connection.abort()
        self._all.clear()

    async def _send(
        self, connection: _Connection, raw: bytes, stream: StreamBytes, arrived: Callable[[], None]
    ) -> int:
        try:
            status = await connection.send(raw, stream, arrived)
        except BaseException:
            connection.abort()
            self._all.discard(connection)
            raise
        if connection.is_open:
            self._idle.append(connection)
        return status

    async def _connect(self) -> _Connection:
        loop, url = asyncio.get_running_loop(), self._url
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if url.scheme == "unix":
                _, connection = await loop.create_unix_connection(_Connection, url.path)
            else:
                tls = ssl.create_default_context() if url.scheme == "https" else None
                _, connection = await loop.create_connection(
                    _Connection, url.host or "", url.port or 0, ssl=tls
                )
        self._all.add(connection)
        return connection
