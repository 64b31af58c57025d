"""HTTP to one target with bounds on time and size. Every failure is a TargetError in plain words."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from functools import lru_cache
from pathlib import Path

from yarl import URL

from specctl.errors import SpecctlError, TargetError
from specctl.http_connection import AnswerTooLarge, ConnectionBroken, HttpConnection, Response

__all__ = ["TIMEOUT_S", "HttpClient", "Response", "normalise_target", "read_token"]

TIMEOUT_S = 2.0
BODY_MAX_BYTES = 8 * 1024 * 1024
CONNECTIONS_MAX = 4
TOKEN_MAX_BYTES = 4096
# Between attempts at a name's second address (RFC 8305).
SECOND_ADDRESS_S = 0.25


def normalise_target(target: str) -> str:
    """``host:port`` or a URL -> URL without a trailing slash. Raises TargetError for anything else."""
    url = target if "://" in target else f"http://{target}"
    try:
        parsed = URL(url)
        is_complete = bool(parsed.host) and parsed.port is not None
    except ValueError as error:
        raise TargetError(f"{target}: not a URL ({error})") from error
    if parsed.scheme not in ("http", "https") or not is_complete:
        raise TargetError(f"{target}: expected http://HOST:PORT or https://HOST:PORT")
    return url.rstrip("/")


def read_token(path: Path) -> str:
    """The bearer token in a file. Raises SpecctlError when the file is missing, empty or not one line."""
    try:
        with path.open("rb") as file:
            raw = file.read(TOKEN_MAX_BYTES + 1)
    except OSError as error:
        raise SpecctlError(f"token file {path}: {error.strerror or error}") from error
    token = raw.decode("ascii", errors="replace").strip()
    if not token or len(raw) > TOKEN_MAX_BYTES or not token.isprintable() or not token.isascii():
        raise SpecctlError(f"token file {path}: expected one line of printable ASCII")
    return token


@lru_cache(maxsize=1)
def _usual_trust() -> ssl.SSLContext:
    """Made once: reading the certificates takes longer than a look at a target."""
    return ssl.create_default_context()


class HttpClient:
    """Kept-alive connections to one target; use as an asynchronous context manager or call ``close``.

    Follows no redirects, keeps no cookies and uses no proxy.
    """

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
        body_max_bytes: int = BODY_MAX_BYTES,
        connections_max: int = CONNECTIONS_MAX,
        ca_file: Path | None = None,
    ) -> None:
        """``ca_file``: certificates to trust instead of the usual ones; OSError when it is unreadable.

        Raises TargetError for what is no URL with a host.
        """
        self.target = target
        self._timeout_s = timeout_s
        self._body_max_bytes = body_max_bytes
        url = URL(normalise_target(target))
        self._address = url.raw_host or "", url.port or 0
        self._trust: ssl.SSLContext | None = None
        if url.scheme == "https":
            own = None if ca_file is None else ssl.create_default_context(cafile=str(ca_file))
            self._trust = own or _usual_trust()
        self._prefix = url.raw_path.rstrip("/")
        self._head = _head(url, token)
        # The ones at rest; a request takes the last one.
        self._idle: list[HttpConnection] = []
        self._free = asyncio.Semaphore(connections_max)

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        for connection in idle:
            await connection.wait_closed()

    async def get(self, path: str) -> Response:
        return await self._send("GET", path, None)

    async def put(self, path: str, json_body: bytes) -> Response:
        return await self._send("PUT", path, json_body)

    async def post(self, path: str, json_body: bytes) -> Response:
        return await self._send("POST", path, json_body)

    async def _send(self, method: str, path: str, json_body: bytes | None) -> Response:
        if not path.isascii() or not path.isprintable() or " " in path:
            raise TargetError(f"{self.target}{path!r}: not a path")
        request = f"{method} {self._prefix}{path} HTTP/1.1\r\n".encode() + self._head
        if json_body is not None:
            request += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(json_body)
        request += b"\r\n"
        try:
            async with asyncio.timeout(self._timeout_s), self._free:
                return await self._asked(request + (json_body or b""), may_repeat=method != "POST")
        except TimeoutError as error:
            raise TargetError(f"{self.target}{path}: no answer within {self._timeout_s:g} s") from error
        except AnswerTooLarge as error:
            raise TargetError(f"{self.target}{path}: answer over {self._body_max_bytes} bytes") from error
        except OSError as error:
            words = " ".join(str(error).split()) or type(error).__name__
            raise TargetError(f"{self.target}{path}: cannot be reached ({words})") from error

    async def _asked(self, request: bytes, *, may_repeat: bool) -> Response:
        """A kept connection may be closed just when it is used: then the server never saw the request."""
        connection = self._kept()
        if connection is not None:
            try:
                return await self._asked_over(connection, request)
            except ConnectionBroken as broken:
                if not broken.is_untouched or not may_repeat:
                    raise
        return await self._asked_over(await self._opened(), request)

    async def _asked_over(self, connection: HttpConnection, request: bytes) -> Response:
        answer = await connection.ask(request)
        if connection.is_open:
            self._idle.append(connection)
        return answer

    def _kept(self) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _opened(self) -> HttpConnection:
        host, port = self._address
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: HttpConnection(self._body_max_bytes),
            host,
            port,
            ssl=self._trust,
            happy_eyeballs_delay=SECOND_ADDRESS_S,
        )
        return connection


def _head(url: URL, token: str | None) -> bytes:
    """What every request says, from the second line on."""
    lines = [f"Host: {url.host_port_subcomponent}", "User-Agent: specctl", "Accept: */*"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    elif url.user is not None:
        words = b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
        lines.append(f"Authorization: Basic {words}")
    return "".join(f"{line}\r\n" for line in lines).encode()
