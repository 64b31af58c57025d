"""The daemon's own HTTP port: metrics, health, which files are frozen, and the page. Served by the daemon's
event loop, so that a loop that is stuck does not answer."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http import HttpProcessingError
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from specctl.errors import SpecctlError
from specctl.metrics.exporter import Exporter
from specctl.watch.board import Board
from specctl.watch.views import FROZEN_ROUTE, FrozenFiles

__all__ = ["CONNECTIONS_MAX", "served"]

CONNECTIONS_MAX = 64

PROBLEMS_SHOWN = 20


@asynccontextmanager
async def served(
    exporter: Exporter,
    frozen_files: Callable[[], FrozenFiles],
    host: str,
    port: int,
    board: Board | None = None,
    add_page: Callable[[web.Application], None] = lambda app: None,
) -> AsyncIterator[None]:
    """While the context lasts; ``port`` 0: nothing is served. Raises SpecctlError for a port in use.

    ``board`` None: answers as long as the event loop runs. ``add_page`` adds more routes.
    """
    if port == 0:
        yield
        return

    async def metrics(request: web.Request) -> web.Response:
        body = generate_latest(exporter.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def frozen(request: web.Request) -> web.Response:
        return web.Response(text=frozen_files().model_dump_json(), content_type="application/json")

    async def healthy(request: web.Request) -> web.Response:
        return _checked(board.problems() if board is not None else [])

    async def ready(request: web.Request) -> web.Response:
        return _checked(board.not_ready() if board is not None else [])

    app = web.Application()
    app.add_routes(
        [
            web.get("/metrics", metrics),
            web.get(FROZEN_ROUTE, frozen),
            web.get("/healthz", healthy),
            web.get("/readyz", ready),
        ]
    )
    add_page(app)
    log = logging.getLogger(f"{__name__}.port")
    log.addFilter(_is_of_this_side)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, logger=log)
    await runner.setup()
    serve = runner.server
    assert serve is not None

    def connection() -> asyncio.BaseProtocol:
        # Descriptors are needed for the targets, whoever asks here: the oldest connection makes room.
        for oldest in serve.connections[: 1 - CONNECTIONS_MAX]:
            oldest.force_close()
        return serve()

    try:
        listening = await asyncio.get_running_loop().create_server(connection, host, port)
    except OSError as error:
        await runner.cleanup()
        # A name that is not found has a negative number of its own, and its words.
        words = os.strerror(number) if (number := error.errno or 0) > 0 else error.strerror or error
        hint = "; another daemon? --metrics-port N" if error.errno == errno.EADDRINUSE else ""
        raise SpecctlError(f"metrics port {host}:{port}: {words}{hint}") from error
    try:
        yield
    finally:
        listening.close()
        await runner.cleanup()


def _is_of_this_side(record: logging.LogRecord) -> bool:
    """What is no HTTP is answered with 400; whoever sends it must not fill the log."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def _checked(problems: list[str]) -> web.Response:
    text = "".join(f"{problem}\n" for problem in problems[:PROBLEMS_SHOWN])
    return web.Response(text=text or "ok\n", status=503 if problems else 200)
