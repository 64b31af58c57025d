"""Routes of the page: its files, and a JSON API under /api/v1 that ``specctl top`` reads, too."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from specctl import __version__
from specctl.engine.auth import AccessDenied
from specctl.errors import SpecctlError
from specctl.page.access import PageAccess
from specctl.plain_text import plain_text
from specctl.watch.board import Board
from specctl.watch.views import API, ControlChange, DaemonView, Overview

__all__ = ["add_page"]

FRESH_S = 1.0
"""Readers that ask more often, or many of them, get the same answer."""
BODY_MAX_BYTES = 64 * 1024
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
Change = Callable[[ControlChange, str], None]
_Handler = Callable[[web.Request], Awaitable[web.Response]]


def add_page(
    app: web.Application, board: Board, access: PageAccess, change: Change, *, is_dry_run: bool = False
) -> None:
    """``change``: what an operator's change does; raises SpecctlError where it cannot be made."""
    pages = _Pages(board, access, change, is_dry_run)
    routes = [
        web.get(f"{API}/targets", _checked(pages.overview)),
        web.get(f"{API}/target", _checked(pages.detail)),
        web.post(f"{API}/control", _checked(pages.control)),
    ]
    assets = {entry.name: _Asset(entry.name, entry.read_bytes()) for entry in _assets()}
    routes.append(web.get("/", assets.pop("index.html").answer))
    routes += [web.get(f"/assets/{name}", asset.answer) for name, asset in sorted(assets.items())]
    app.add_routes(routes)


def _assets() -> list[Any]:
    folder = files("specctl.page") / "assets"
    return [entry for entry in folder.iterdir() if _type_of(entry.name) is not None]


def _type_of(name: str) -> str | None:
    return _TYPES.get(name[name.rfind(".") :])


class _Asset:
    """A file of the page, in memory. It is asked for again by its hash."""

    def __init__(self, name: str, body: bytes) -> None:
        self._body = body
        self._tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        kind = f"{_type_of(name)}; charset=utf-8"
        self._headers = {**_HEADERS, "Content-Type": kind, "Cache-Control": "no-cache", "ETag": self._tag}

    async def answer(self, request: web.Request) -> web.Response:
        if request.headers.get("If-None-Match") == self._tag:
            return web.Response(status=304, headers=self._headers)
        return web.Response(body=self._body, headers=self._headers)


class _Pages:
    def __init__(self, board: Board, access: PageAccess, change: Change, is_dry_run: bool) -> None:
        self._board, self._access, self._change, self._is_dry_run = board, access, change, is_dry_run
        self._overview = b""
        self._made_s = float("-inf")

    async def overview(self, request: web.Request) -> web.Response:
        self._access.check_read(request)
        if time.monotonic() - self._made_s >= FRESH_S:
            shown = Overview(daemon=self._daemon(), targets=self._board.views())
            self._overview = shown.model_dump_json(exclude_none=True).encode()
            self._made_s = time.monotonic()
        return _json(self._overview)

    async def detail(self, request: web.Request) -> web.Response:
        self._access.check_read(request)
        board = self._board.get(request.query.get("url", ""))
        if board is None:
            return _error(404, "not a target of this daemon")
        return _json(board.detail().model_dump_json(exclude_none=True).encode())

    async def control(self, request: web.Request) -> web.Response:
        self._access.check_control(request)
        body = bytearray()
        async for part in request.content.iter_chunked(BODY_MAX_BYTES):
            body += part
            if len(body) > BODY_MAX_BYTES:
                return _error(413, f"the body is over {BODY_MAX_BYTES} bytes")
        try:
            change = ControlChange.model_validate_json(bytes(body))
        except ValidationError as error:
            words = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:4])
            return _error(400, plain_text(words))
        try:
            self._change(change, f"page, from {request.remote}")
        except SpecctlError as error:
            return _error(422, plain_text(str(error)))
        self._made_s = float("-inf")
        return _json(b"{}")

    def _daemon(self) -> DaemonView:
        return DaemonView(
            owner=self._board.owner,
            version=__version__,
            time_s=time.time(),
            is_dry_run=self._is_dry_run,
            can_control=self._access.can_control,
        )


def _checked(handler: _Handler) -> _Handler:
    async def answer(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except AccessDenied as error:
            return _error(error.status, str(error))

    return answer


def _json(body: bytes, status: int = 200) -> web.Response:
    headers = {**_HEADERS, "Cache-Control": "no-store"}
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"message": message}, status=status, headers=_HEADERS)
