"""One kept-alive HTTP/1.1 connection on an asyncio transport; httptools (llhttp) reads the answers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from httptools import HttpParserError, HttpResponseParser

__all__ = ["AnswerTooLarge", "ConnectionBroken", "HttpConnection", "Response"]

HEAD_MAX_BYTES = 64 * 1024
_CUT = "the server closed the connection"


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes

    def fields(self) -> dict[str, Any]:
        """Of the JSON object that the body is; none where it is something else."""
        try:
            told = json.loads(self.body)
        except ValueError:
            return {}
        return told if isinstance(told, dict) else {}


class AnswerTooLarge(Exception):
    """The answer's body is over the bound."""


class ConnectionBroken(ConnectionError):
    """The connection ended too soon, or what came is no answer. ``is_untouched``: before its first byte."""

    def __init__(self, words: str, *, is_untouched: bool = False) -> None:
        super().__init__(words)
        self.is_untouched = is_untouched


class HttpConnection(asyncio.Protocol):
    """One request at a time. Cancelled or failed within an answer, it is closed and of no use any more."""

    def __init__(self, body_max_bytes: int) -> None:
        self._body_max_bytes = body_max_bytes
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._answer: asyncio.Future[Response] | None = None
        self._lost = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> Response:
        """Send the bytes of one request. Raises ConnectionBroken and AnswerTooLarge."""
        if self._transport is None or not self.is_open:
            raise ConnectionBroken(_CUT, is_untouched=True)
        self._answer = asyncio.get_running_loop().create_future()
        self._body, self._head_bytes = bytearray(), 0
        self._is_head_read = self._has_length = False
        self._transport.write(request)
        try:
            return await self._answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None

    def close(self) -> None:
        """At once; ``wait_closed`` returns when its socket is."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        await self._lost.wait()

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            # Nobody asked: whatever it is, the next answer would be mistaken.
            self.close()
            return
        if not self._is_head_read:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._fail(ConnectionBroken(f"no HTTP answer: {error}"))
            return
        if len(self._body) > self._body_max_bytes:
            self._fail(AnswerTooLarge())
        elif not self._is_head_read and self._head_bytes > HEAD_MAX_BYTES:
            self._fail(ConnectionBroken(f"the answer's head is over {HEAD_MAX_BYTES} bytes"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._lost.set()
        if self._is_pending and self._is_head_read and not self._has_length and error is None:
            self._complete()
        is_untouched = self._answer is not None and self._head_bytes == 0
        words = _CUT if error is None else str(error) or type(error).__name__
        self._fail(ConnectionBroken(words, is_untouched=is_untouched))

    # The parser's side.

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.lower()
        if key == b"content-length":
            self._has_length = True
            if value.isdigit() and int(value) > self._body_max_bytes:
                self._fail(AnswerTooLarge())
        elif key == b"transfer-encoding":
            self._has_length = True

    def on_headers_complete(self) -> None:
        # An interim answer (1xx) is not the one.
        self._is_head_read = self._parser.get_status_code() >= 200

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        if not self._is_head_read:
            return
        if not self._is_pending or not self._parser.should_keep_alive():
            self.close()
        self._complete()

    @property
    def _is_pending(self) -> bool:
        return self._answer is not None and not self._answer.done()

    def _complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            if len(self._body) > self._body_max_bytes:
                self._answer.set_exception(AnswerTooLarge())
            else:
                self._answer.set_result(Response(self._parser.get_status_code(), bytes(self._body)))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.close()
