"""HTTP to one target with bounds on time and size. Every failure is a TargetError in plain words."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import aiohttp
from yarl import URL

from specctl.errors import SpecctlError, TargetError

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
        """``ca_file``: certificates to trust instead of the usual ones; OSError when it is unreadable."""
        self.target = target
        self._timeout_s = timeout_s
        self._body_max_bytes = body_max_bytes
        self._connections_max = connections_max
        self._headers = {"User-Agent": "specctl"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._trust: ssl.SSLContext | bool = True
        if target.startswith("https"):
            own = None if ca_file is None else ssl.create_default_context(cafile=str(ca_file))
            self._trust = own or _usual_trust()
        base = target.rstrip("/")
        # Looks ask the same few paths, and parsing one takes a tenth of a request.
        self._url = lru_cache(maxsize=16)(lambda path: URL(base + path, encoded=True))
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(self, path: str) -> Response:
        return await self._send("GET", path, None)

    async def put(self, path: str, json_body: bytes) -> Response:
        return await self._send("PUT", path, json_body)

    async def post(self, path: str, json_body: bytes) -> Response:
        return await self._send("POST", path, json_body)

    def _opened(self) -> aiohttp.ClientSession:
        """A session belongs to the running event loop: made with the first request."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections_max, ssl=self._trust),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept-Encoding",),
            )
        return self._session

    async def _send(self, method: str, path: str, json_body: bytes | None) -> Response:
        if not path.isascii() or not path.isprintable() or " " in path:
            raise TargetError(f"{self.target}{path!r}: not a path")
        url = self._url(path)
        headers = None if json_body is None else {"Content-Type": "application/json"}
        try:
            async with self._opened().request(
                method, url, data=json_body, headers=headers, allow_redirects=False
            ) as answer:
                return Response(answer.status, await self._bounded(answer, path))
        except TimeoutError as error:
            raise TargetError(f"{self.target}{path}: no answer within {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            words = " ".join(str(error).split()) or type(error).__name__
            raise TargetError(f"{self.target}{path}: cannot be reached ({words})") from error

    async def _bounded(self, answer: aiohttp.ClientResponse, path: str) -> bytes:
        body = bytearray()
        self._refuse_over(answer.content_length or 0, answer, path)
        async for part in answer.content.iter_any():
            body += part
            self._refuse_over(len(body), answer, path)
        return bytes(body)

    def _refuse_over(self, size: int, answer: aiohttp.ClientResponse, path: str) -> None:
        if size > self._body_max_bytes:
            answer.close()
            raise TargetError(f"{self.target}{path}: answer over {self._body_max_bytes} bytes")
