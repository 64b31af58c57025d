"""HTTP to one target with bounds on time and size. Every failure is a TargetError in plain words."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import httpx

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


class HttpClient:
    """Kept-alive connections to one target; use as an asynchronous context manager or call ``close``."""

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
        body_max_bytes: int = BODY_MAX_BYTES,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self.target = target
        self._timeout_s = timeout_s
        self._body_max_bytes = body_max_bytes
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._client = httpx.AsyncClient(
            base_url=target,
            headers=headers,
            timeout=timeout_s,
            follow_redirects=False,
            trust_env=False,
            verify=target.startswith("https"),
            limits=httpx.Limits(max_connections=connections_max, max_keepalive_connections=2),
        )

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> Response:
        return await self._send("GET", path, None)

    async def put(self, path: str, json_body: bytes) -> Response:
        return await self._send("PUT", path, json_body)

    async def post(self, path: str, json_body: bytes) -> Response:
        return await self._send("POST", path, json_body)

    async def _send(self, method: str, path: str, json_body: bytes | None) -> Response:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(method, path, json_body)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise TargetError(f"{self.target}{path}: no answer within {self._timeout_s:g} s") from error
        except httpx.HTTPError as error:
            words = str(error) or type(error).__name__
            raise TargetError(f"{self.target}{path}: cannot be reached ({words})") from error

    async def _exchange(self, method: str, path: str, json_body: bytes | None) -> Response:
        headers = {} if json_body is None else {"Content-Type": "application/json"}
        async with self._client.stream(method, path, content=json_body, headers=headers) as response:
            chunks: list[bytes] = []
            size = 0
            async for chunk in response.aiter_bytes():
                size += len(chunk)
                if size > self._body_max_bytes:
                    raise TargetError(f"{self.target}{path}: answer over {self._body_max_bytes} bytes")
                chunks.append(chunk)
            return Response(response.status_code, b"".join(chunks))
