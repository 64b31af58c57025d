"""HTTP to one target with bounds on time and size. Every failure is a TargetError in plain words."""

from __future__ import annotations

import asyncio
import base64
import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote_to_bytes

import httpx

from specctl.errors import SpecctlError, TargetError
from specctl.http_wire import Connection, WireError

__all__ = ["TIMEOUT_S", "HttpClient", "Response", "normalise_target", "read_token"]

TIMEOUT_S = 2.0
BODY_MAX_BYTES = 8 * 1024 * 1024
CONNECTIONS_MAX = 4
TOKEN_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes


def normalise_target(target: str) -> str:
    """``host:port`` or a URL -> URL without a trailing slash. Raises TargetError for anything else."""
    url = target if "://" in target else f"http://{target}"
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise TargetError(f"{target}: not a URL ({error})") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
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
    return httpx.create_ssl_context(trust_env=False)


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    return _usual_trust() if ca_file is None else ssl.create_default_context(cafile=str(ca_file))


class HttpClient:
    """Kept-alive connections to one target; use as an asynchronous context manager or call ``close``.

    Follows no redirects and uses no proxy.
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

        Requests beyond ``connections_max`` at a time wait, and their waiting counts for ``timeout_s``.
        """
        self.target = target
        self._timeout_s = timeout_s
        self._body_max_bytes = body_max_bytes
        url = httpx.URL(target)
        self._tls = _trust(ca_file) if url.scheme == "https" else None
        self._address = url.raw_host.decode(), url.port or (443 if url.scheme == "https" else 80)
        self._path = url.raw_path.rstrip(b"/")
        self._headers = _headers(url, token)
        self._places = asyncio.Semaphore(connections_max)
        self._idle: list[Connection] = []

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def get(self, path: str) -> Response:
        return await self._send("GET", path, None)

    async def put(self, path: str, json_body: bytes) -> Response:
        return await self._send("PUT", path, json_body)

    async def post(self, path: str, json_body: bytes) -> Response:
        return await self._send("POST", path, json_body)

    async def _send(self, method: str, path: str, json_body: bytes | None) -> Response:
        if not path.isascii() or not path.isprintable() or " " in path:
            raise TargetError(f"{self.target}{path!r}: not a path")
        more = b"" if json_body is None else _JSON_BODY % len(json_body)
        head = b"%s %s%s HTTP/1.1\r\n" % (method.encode(), self._path, path.encode())
        request = b"".join((head, self._headers, more, b"\r\n", json_body or b""))
        try:
            async with asyncio.timeout(self._timeout_s), self._places:
                return await self._exchange(request, may_repeat=json_body is None)
        except TimeoutError as error:
            raise TargetError(f"{self.target}{path}: no answer within {self._timeout_s:g} s") from error
        except WireError as error:
            raise TargetError(f"{self.target}{path}: {error}") from error
        except OSError as error:
            words = str(error) or type(error).__name__
            raise TargetError(f"{self.target}{path}: cannot be reached ({words})") from error

    async def _exchange(self, request: bytes, *, may_repeat: bool) -> Response:
        connection = self._idle.pop() if self._idle else None
        if connection is not None and connection.is_usable:
            try:
                return await self._ask(connection, request)
            except (OSError, WireError):
                # A server may close an idle connection just as a request is on its way.
                if connection.has_answered or not may_repeat:
                    raise
        elif connection is not None:
            await connection.close()
        connection = await Connection.open(*self._address, self._tls)
        return await self._ask(connection, request)

    async def _ask(self, connection: Connection, request: bytes) -> Response:
        try:
            status, body = await connection.exchange(request, self._body_max_bytes)
        except BaseException:
            connection.abort()
            raise
        if connection.is_usable:
            self._idle.append(connection)
        else:
            await connection.close()
        return Response(status, body)


_JSON_BODY = b"Content-Type: application/json\r\nContent-Length: %d\r\n"


def _headers(url: httpx.URL, token: str | None) -> bytes:
    lines = [b"Host: " + url.netloc, b"User-Agent: specctl", b"Accept: */*"]
    if token is not None:
        lines.append(b"Authorization: Bearer " + token.encode("ascii"))
    elif url.userinfo:
        lines.append(b"Authorization: Basic " + base64.b64encode(unquote_to_bytes(url.userinfo)))
    return b"".join(line + b"\r\n" for line in lines)
