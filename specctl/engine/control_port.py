"""The routes under /specctl/v1/ on an address of their own, for programs that embed an engine.

Ray Serve and Dynamo build the engine in their own process, without the API server that has the routes. The
address is off unless the option ``control_address`` names one. Contract and access rules are the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from specctl.engine import rank_calls, routes
from specctl.engine.options import check_address

__all__ = ["ControlPort", "opened"]


async def opened(address: str, token_file: Path | None, engine: rank_calls.Ranks) -> ControlPort | None:
    """An address that cannot be had costs the control, and never the engine."""
    try:
        port = ControlPort(address, token_file)
        await port.start(engine)
    except Exception as error:
        engine.log.error("specctl: control address %s: %s; this engine cannot be steered", address, error)
        return None
    return port


class ControlPort:
    """One in a process; ``start`` in the event loop that talks to the engine."""

    def __init__(self, address: str, token_file: Path | None) -> None:
        """Raises ValueError for a bad address or token file."""
        self.address = check_address(address).replace("{pid}", str(os.getpid()))
        self._app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        routes.attach(self._app, token_file)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, engine: rank_calls.Ranks) -> None:
        """Serves until ``stop``, or until the loop ends. Raises OSError when the address cannot be had."""
        bound = _bound(self.address)
        routes.open_to(self._app.state, engine)
        config = uvicorn.Config(self._app, access_log=False, log_level="warning", lifespan="off", ws="none")
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[bound]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.01)
        engine.log.info("specctl: control address %s", self.address)

    async def stop(self) -> None:
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
        if self.address.startswith("unix:"):
            Path(self.address.removeprefix("unix:")).unlink(missing_ok=True)


class _Server(uvicorn.Server):
    """Signals stay with the program that embeds the engine."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bound(address: str) -> socket.socket:
    """A socket that is bound already, so that an address in use is an error here and not a log line later."""
    if not address.startswith("unix:"):
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family)
    path = Path(address.removeprefix("unix:"))
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode) and not _answers(path):
            path.unlink()
    bound = socket.socket(socket.AF_UNIX)
    # Nobody else may connect, also not between the binding and a change of the mode.
    before = os.umask(0o177)
    try:
        bound.bind(str(path))
    except OSError:
        bound.close()
        raise
    finally:
        os.umask(before)
    return bound


def _answers(path: Path) -> bool:
    """A socket file that a process which died has left does not."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(1.0)
        try:
            asked.connect(str(path))
        except OSError:
            return False
        return True
