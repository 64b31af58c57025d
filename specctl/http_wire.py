"""HTTP/1.1 on one kept-alive connection: as little as the daemon needs, since every look pays for it.

A general client takes milliseconds of CPU for a small answer; with hundreds of targets a second that is more
than a core. Here: GET and PUT, answers with a length, in chunks, or up to the connection's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

__all__ = ["Connection", "WireError"]

STREAM_MAX_BYTES = 256 * 1024
"""Bound of the head of an answer, and of one line of a chunked one."""
CLOSE_MAX_S = 1.0


class WireError(Exception):
    """The answer is no HTTP/1.1, ends too early, or is over the bound."""


class Connection:
    """One request at a time. After any error it is of no use: ``abort`` it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._is_last = False
        self.has_answered = False

    @classmethod
    async def open(cls, host: str, port: int, tls: ssl.SSLContext | None) -> Connection:
        """Raises OSError."""
        reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=STREAM_MAX_BYTES)
        return cls(reader, writer)

    @property
    def is_usable(self) -> bool:
        """For another request. The server may close it at any moment all the same."""
        return not (self._is_last or self._reader.at_eof() or self._writer.is_closing())

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        # A server that is gone cannot say goodbye.
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_MAX_S):
                await self._writer.wait_closed()

    async def exchange(self, request: bytes, body_max_bytes: int) -> tuple[int, bytes]:
        """Status and body. Raises OSError and WireError; ``has_answered`` tells whether anything came."""
        self.has_answered = False
        self._writer.write(request)
        await self._writer.drain()
        while True:
            status, headers = await self._head()
            if status >= 200:
                break
        body = b"" if status in (204, 304) else await self._body(headers, body_max_bytes)
        return status, body

    async def _head(self) -> tuple[int, dict[bytes, bytes]]:
        try:
            raw = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            self.has_answered = bool(error.partial)
            raise WireError("the connection was closed before an answer") from error
        except asyncio.LimitOverrunError as error:
            raise WireError(f"headers over {STREAM_MAX_BYTES} bytes") from error
        self.has_answered = True
        first, *lines = raw[:-4].split(b"\r\n")
        parts = first.split(b" ", 2)
        if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
            raise WireError("not HTTP/1.1")
        headers = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        self._is_last = headers.get(b"connection", b"").lower() == b"close" or parts[0] == b"HTTP/1.0"
        return int(parts[1]), headers

    async def _body(self, headers: dict[bytes, bytes], max_bytes: int) -> bytes:
        try:
            if headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
                return await self._chunks(max_bytes)
            length = headers.get(b"content-length")
            if length is None:
                self._is_last = True
                return await self._until_closed(max_bytes)
            if not length.isdigit():
                raise WireError("not a Content-Length")
            if int(length) > max_bytes:
                raise WireError(f"answer over {max_bytes} bytes")
            return await self._reader.readexactly(int(length))
        except asyncio.IncompleteReadError as error:
            raise WireError("the answer ends too early") from error

    async def _until_closed(self, max_bytes: int) -> bytes:
        body = bytearray()
        while part := await self._reader.read(STREAM_MAX_BYTES):
            body += part
            if len(body) > max_bytes:
                raise WireError(f"answer over {max_bytes} bytes")
        return bytes(body)

    async def _chunks(self, max_bytes: int) -> bytes:
        body = bytearray()
        while size := await self._chunk_size():
            if len(body) + size > max_bytes:
                raise WireError(f"answer over {max_bytes} bytes")
            body += await self._reader.readexactly(size)
            if await self._reader.readexactly(2) != b"\r\n":
                raise WireError("not a chunked answer")
        while await self._line() != b"":
            pass
        return bytes(body)

    async def _chunk_size(self) -> int:
        digits = (await self._line()).split(b";", 1)[0].strip()
        if not digits or len(digits) > 16 or digits.strip(b"0123456789abcdefABCDEF"):
            raise WireError("not a chunked answer")
        return int(digits, 16)

    async def _line(self) -> bytes:
        try:
            return (await self._reader.readuntil(b"\r\n"))[:-2]
        except asyncio.LimitOverrunError as error:
            raise WireError("not a chunked answer") from error
