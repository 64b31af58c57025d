"""HTTP to one target with bounds on time and size, over aiohttp. Every failure is a TargetError."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import aiohttp
import pydantic_core
from yarl import URL

from specctl.errors import SpecctlError, TargetError
from specctl.local_file import open_secret, read_file
from specctl.plain_text import plain_text

__all__ = ["TIMEOUT_S", "HttpClient", "Response", "normalise_target", "read_token", "shown_target"]

logger = logging.getLogger(__name__)

TIMEOUT_S = 2.0
BODY_MAX_BYTES = 4 * 1024 * 1024
CONNECTIONS_MAX = 4
TOKEN_MAX_BYTES = 4096
TARGET_MAX_CHARACTERS = 2048
_WORDS_MAX = 200
_USER = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)?[^/?#]*@")


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes

    def fields(self) -> dict[str, Any]:
        """Of the JSON object that the body is; none where it is something else."""
        try:
            value = pydantic_core.from_json(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


class _TooLarge(Exception):
    """The answer's body is over the bound."""


def shown_target(target: str) -> str:
    """For logs, metrics and errors: without a user's name and password, in one printable line."""
    return plain_text(_USER.sub(r"\1", target), TARGET_MAX_CHARACTERS)


def normalise_target(target: str) -> str:
    """``host:port``, a URL or ``unix:///SOCKET`` -> URL without a trailing slash. Raises TargetError."""
    name = plain_text(shown_target(target))
    if len(target) > TARGET_MAX_CHARACTERS or not target.isprintable():
        raise TargetError(f"{name}: not a URL")
    url = target if "://" in target else f"http://{target}"
    try:
        parsed = URL(url)
        is_complete = bool(parsed.host) and parsed.port is not None
    except ValueError as error:
        raise TargetError(f"{name}: not a URL ({plain_text(str(error))})") from error
    if parsed.scheme == "unix" and len(parsed.path) > 1:
        return url.rstrip("/")
    if parsed.scheme not in ("http", "https") or not is_complete:
        raise TargetError(f"{name}: expected http://HOST:PORT, https://HOST:PORT or unix:///SOCKET")
    return url.rstrip("/")


def read_token(path: Path, *, is_own: bool = True) -> str:
    """The bearer token in a file. ``is_own``: made for specctl, so that nobody else should read it.

    Raises SpecctlError when the file is missing, empty or not one line.
    """
    try:
        raw = read_file(path, SpecctlError, TOKEN_MAX_BYTES)
    except SpecctlError as error:
        raise SpecctlError(f"token file {error}") from error
    token = raw.decode("ascii", errors="replace").strip()
    if not token or not token.isprintable() or not token.isascii():
        raise SpecctlError(f"token file {path}: expected one line of printable ASCII")
    if is_own and (warning := open_secret(path)):
        logger.warning("token file %s", warning)
    return token


@lru_cache(maxsize=1)
def _usual_trust() -> ssl.SSLContext:
    """Made once: reading the certificates takes longer than a poll of a target."""
    return ssl.create_default_context()


class HttpClient:
    """Kept-alive connections to one target; use as an asynchronous context manager or call ``close``.

    Follows no redirects, keeps no cookies, uses no proxy and takes no compressed answers. A GET or PUT that
    meets a connection which the server has just closed is sent again; a POST is not.
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
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``ca_file``: certificates to trust instead of the usual ones; OSError when it is unreadable.
        ``headers``: sent with every request.

        Raises TargetError for what is no URL with a host.
        """
        self.target = shown_target(target)
        self._timeout_s = timeout_s
        self._body_max_bytes = body_max_bytes
        self._connections_max = connections_max
        url = URL(normalise_target(target))
        self._socket = url.path if url.scheme == "unix" else None
        base = URL("http://localhost") if self._socket is not None else url.with_user(None)
        self._base = str(base).rstrip("/")
        self._trust: ssl.SSLContext | bool = True
        if url.scheme == "https":
            own = None if ca_file is None else ssl.create_default_context(cafile=str(ca_file))
            self._trust = own or _usual_trust()
        self._headers = {**_headers(url, token), **(headers or {})}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(self, path: str, *, body_max_bytes: int | None = None) -> Response:
        return await self._send("GET", path, None, body_max_bytes)

    async def lines(
        self, path: str, *, line_max_bytes: int, silence_max_s: float
    ) -> AsyncGenerator[bytes, None]:
        """The lines of an answer that goes on. Ends where the server ends it.

        Raises TargetError for a status other than 200, a line over ``line_max_bytes``, no byte within
        ``silence_max_s`` and a broken connection. Close the iterator to end the connection.
        """
        where = f"{self.target}{plain_text(path, _WORDS_MAX)}"
        session = self._session or self._opened()
        try:
            url = URL(f"{self._base}{path}", encoded=True)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=silence_max_s)
            async with session.get(url, allow_redirects=False, timeout=timeout) as response:
                if response.status != 200:
                    raise TargetError(f"{where}: HTTP {response.status}")
                begun = b""
                async for part in response.content.iter_any():
                    *whole, begun = (begun + part).split(b"\n")
                    for line in whole:
                        yield line
                    if len(begun) > line_max_bytes:
                        raise TargetError(f"{where}: a line is over {line_max_bytes} bytes")
        except TargetError:
            raise
        except Exception as error:
            words = plain_text(" ".join(str(error).split()), _WORDS_MAX) or type(error).__name__
            raise TargetError(f"{where}: {words}") from error

    async def put(self, path: str, json_body: bytes) -> Response:
        return await self._send("PUT", path, json_body)

    async def post(self, path: str, json_body: bytes) -> Response:
        return await self._send("POST", path, json_body)

    async def _send(
        self, method: str, path: str, json_body: bytes | None, body_max_bytes: int | None = None
    ) -> Response:
        where = f"{self.target}{plain_text(path, _WORDS_MAX)}"
        if not path.isascii() or not path.isprintable() or " " in path:
            raise TargetError(f"{where}: not a path")
        body_max_bytes = body_max_bytes or self._body_max_bytes
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._asked(method, path, json_body, body_max_bytes)
        except TimeoutError as error:
            raise TargetError(f"{where}: no answer within {self._timeout_s:g} s") from error
        except _TooLarge as error:
            raise TargetError(f"{where}: answer over {body_max_bytes} bytes") from error
        except Exception as error:
            # Whatever a server sends, its target fails and nothing else.
            if (why := _not_connected(error)) is not None:
                raise TargetError(f"{self.target}: {why}") from error
            words = plain_text(" ".join(str(error).split()), _WORDS_MAX) or type(error).__name__
            raise TargetError(f"{where}: cannot be reached ({words})") from error

    async def _asked(self, method: str, path: str, json_body: bytes | None, body_max_bytes: int) -> Response:
        session = self._session or self._opened()
        url = URL(f"{self._base}{path}", encoded=True)
        headers = None if json_body is None else {"Content-Type": "application/json"}
        async with session.request(
            method, url, data=json_body, headers=headers, allow_redirects=False
        ) as response:
            if response.status < 200:
                raise aiohttp.ClientError(f"HTTP {response.status} is no answer")
            if (response.content_length or 0) > body_max_bytes:
                raise _TooLarge
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > body_max_bytes:
                    raise _TooLarge
            return Response(response.status, bytes(body))

    def _opened(self) -> aiohttp.ClientSession:
        """Made by the first request, as it belongs to the running loop."""
        connector: aiohttp.BaseConnector
        if self._socket is not None:
            connector = aiohttp.UnixConnector(self._socket, limit=self._connections_max)
        else:
            connector = aiohttp.TCPConnector(ssl=self._trust, limit=self._connections_max)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        return self._session


def _not_connected(error: Exception) -> str | None:
    """Why no connection was made, in short; None: it was made, or nothing short is known."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "host name not found"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"TLS: {plain_text(str(error.certificate_error), _WORDS_MAX)}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"TLS: {plain_text(str(error.os_error), _WORDS_MAX)}. Is it https?"
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ConnectionRefusedError):
        return "connection refused. Is the server up, and is the port right?"
    return None


def _headers(url: URL, token: str | None) -> dict[str, str]:
    """What every request says."""
    headers = {"User-Agent": "specctl", "Accept-Encoding": "identity"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    elif url.user is not None:
        words = b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
        headers["Authorization"] = f"Basic {words}"
    return headers
