"""Where the figures come from: a running daemon, or the servers themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from specctl import __version__
from specctl.clock import SystemClock
from specctl.core.rollout import RolloutGroup
from specctl.daemon.audit import AuditLog
from specctl.daemon.context import LoopContext
from specctl.daemon.loop import TargetLoop
from specctl.daemon.reporter import Reporter
from specctl.engine_api.client import EngineClient
from specctl.engine_api.observer import EngineObserver
from specctl.errors import TargetError
from specctl.http_client import HttpClient, Response, normalise_target, shown_target
from specctl.metrics.exporter import Exporter
from specctl.plain_text import plain_text
from specctl.policy.loader import PolicyFile
from specctl.watch.board import Board
from specctl.watch.views import API, CONTROL_HEADER, ControlChange, DaemonView, Overview, TargetDetail

__all__ = ["DaemonSource", "ServersSource", "Source"]

TIMEOUT_S = 10.0
"""A daemon answers between two polls of its many servers."""

_Message = TypeVar("_Message", bound=BaseModel)


class Source(Protocol):
    """Raises TargetError for what cannot be read or changed now."""

    async def overview(self) -> Overview: ...

    async def detail(self, target: str) -> TargetDetail: ...

    async def change(self, change: ControlChange) -> None: ...

    async def close(self) -> None: ...


class DaemonSource:
    """The API beside a daemon's page."""

    def __init__(self, url: str, token: str | None) -> None:
        """Raises TargetError for what is no URL."""
        self._http = HttpClient(url, token=token, timeout_s=TIMEOUT_S, headers={CONTROL_HEADER: "1"})

    async def overview(self) -> Overview:
        return self._parsed(Overview, await self._http.get(f"{API}/targets"))

    async def detail(self, target: str) -> TargetDetail:
        return self._parsed(TargetDetail, await self._http.get(f"{API}/target?url={quote(target, safe='')}"))

    async def change(self, change: ControlChange) -> None:
        self._check(await self._http.post(f"{API}/control", change.model_dump_json().encode()))

    async def close(self) -> None:
        await self._http.close()

    def _parsed(self, kind: type[_Message], response: Response) -> _Message:
        self._check(response)
        try:
            return kind.model_validate_json(response.body)
        except ValidationError as error:
            raise TargetError(f"{self._http.target}: no specctl daemon of this version") from error

    def _check(self, response: Response) -> None:
        if response.status == 200:
            return
        message = response.fields().get("message")
        words = plain_text(message) if isinstance(message, str) else "is this a specctl daemon?"
        hint = " (--token-file)" if response.status == 401 else ""
        raise TargetError(f"{self._http.target}: HTTP {response.status}: {words}{hint}")


class ServersSource:
    """Servers that are polled from here. Nothing is changed on them: a decision is what would be done."""

    def __init__(self, targets: Sequence[str], token: str | None, policy: Path) -> None:
        """Raises TargetError for what is no URL, PolicyError for a policy that is wrong."""
        clock = SystemClock()
        self._board = Board("specctl top", clock)
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        context, audit = LoopContext("specctl top", clock, is_dry_run=True), AuditLog(None, clock)
        file, exporter = PolicyFile(policy), Exporter(clock)
        self._loops = []
        for url in dict.fromkeys(map(normalise_target, targets)):
            client, name = EngineClient(HttpClient(url, token=token)), shown_target(url)
            reporter = Reporter(name, context.owner, audit, exporter, self._board.add(name))
            observer = EngineObserver(client, clock)
            self._loops.append(TargetLoop(name, observer, client, file, reporter, context, RolloutGroup()))

    async def overview(self) -> Overview:
        self._start()
        daemon = DaemonView(
            owner="polled from here", version=__version__, time_s=time.time(), is_dry_run=True
        )
        return Overview(daemon=daemon, targets=self._board.views())

    async def detail(self, target: str) -> TargetDetail:
        self._start()
        board = self._board.get(target)
        if board is None:
            raise TargetError(f"{target}: not polled")
        return board.detail()

    async def change(self, change: ControlChange) -> None:
        raise TargetError("changes go through a daemon: specctl top --daemon URL")

    async def close(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    def _start(self) -> None:
        if not self._tasks:
            self._tasks = [asyncio.create_task(loop.run(self._stop)) for loop in self._loops]
