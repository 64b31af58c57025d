"""A daemon's port with its page, on fake engines whose loops really run."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import web
from fakes.clock import ManualClock
from fakes.engine import FakeEngine
from fakes.rig import PATIENT_S, Source

from specctl.daemon.audit import AuditLog
from specctl.daemon.context import LoopContext
from specctl.daemon.controls import Controls
from specctl.daemon.loop import TargetLoop
from specctl.daemon.reporter import Reporter
from specctl.daemon.served import served
from specctl.engine_api.client import EngineClient
from specctl.engine_api.observer import EngineObserver
from specctl.http_client import HttpClient
from specctl.metrics.exporter import Exporter
from specctl.page.access import PageAccess
from specctl.page.routes import add_page
from specctl.policy.loader import parse_policy
from specctl.watch.board import Board
from specctl.watch.views import FrozenFiles

__all__ = ["CONTROL", "READ", "ShownDaemon", "shown_daemon", "write_tokens"]

READ, CONTROL = "read-token-of-the-page", "control-token-of-the-page"


@dataclass
class ShownDaemon:
    url: str
    engines: list[FakeEngine]
    loops: list[TargetLoop]
    board: Board
    clock: ManualClock

    async def run(self, polls: int) -> None:
        """So many seconds of traffic, with a poll after each."""
        for _ in range(polls):
            self.clock.advance(1.0)
            self.board.roster_read()
            for engine, loop in zip(self.engines, self.loops, strict=True):
                engine.advance(1.0)
                await loop.tick()
                if (shown := self.board.get(engine.url)) is not None:
                    shown.ticked()


def write_tokens(folder: Path) -> Path:
    path = folder / "tokens"
    path.write_text(f"read:{READ}\ncontrol:{CONTROL}\n")
    path.chmod(0o600)
    return path


@asynccontextmanager
async def shown_daemon(
    engines: list[FakeEngine],
    *,
    token_file: Path | None = None,
    policy: str = "kind: goodput",
    audit: Path | None = None,
) -> AsyncIterator[ShownDaemon]:
    clock, controls, exporter = ManualClock(), Controls(), Exporter()
    context, log = LoopContext("tester", clock), AuditLog(audit, clock)
    board, source = Board("tester", clock), Source(parse_policy(policy, "p"))
    loops, clients = [], []
    for engine in engines:
        client = EngineClient(HttpClient(engine.url, timeout_s=PATIENT_S))
        reporter = Reporter(engine.url, "tester", log, exporter, shown := board.add(engine.url))
        over = controls.add(engine.url, source, reporter)
        shown.mode = lambda over=over: over.mode  # type: ignore[misc]
        own = replace(context, is_trial=lambda over=over: over.is_dry_run)  # type: ignore[misc]
        loops.append(TargetLoop(engine.url, EngineObserver(client, clock), client, over, reporter, own))
        clients.append(client)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def add(app: web.Application) -> None:
        add_page(app, board, PageAccess(token_file), controls.change)

    none = FrozenFiles(files=())
    try:
        async with served(exporter, lambda: none, "127.0.0.1", port, board, add):
            yield ShownDaemon(f"http://127.0.0.1:{port}", engines, loops, board, clock)
    finally:
        await asyncio.gather(*(client.close() for client in clients))
