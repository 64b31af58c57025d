"""Run the phases three times on one server: drafting off, a fixed number, and the daemon's choice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.autotune import autotune
from benchmarks.load import LoadResult, run_load
from benchmarks.lossless import put_table
from benchmarks.server import Server
from demo.phases import PHASES, Phase
from demo.watch import Totals, Watch, read_totals

__all__ = ["Arm", "PhaseResult", "run_arm"]


@dataclass(frozen=True)
class PhaseResult:
    phase: Phase
    load: LoadResult
    drafted_tokens: int
    accepted_tokens: int

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted of drafted tokens; None where nothing was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None


@dataclass
class Arm:
    name: str
    results: list[PhaseResult] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)
    started_s: float = 0.0


async def run_arm(
    name: str,
    server: Server,
    *,
    drafted: int,
    policy: str | None,
    seconds: float,
    folder: Path,
    advance: Callable[[str], None],
) -> Arm:
    """Start with ``drafted`` tokens everywhere; with a policy the daemon goes on from there.

    Raises RuntimeError where the daemon does not stay up.
    """
    arm = Arm(name)
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        await put_table(client, drafted)
        watching = asyncio.create_task(arm.watch.run(client))
        try:
            with (
                autotune(server.url, folder, policy=policy) if policy else contextlib.nullcontext() as daemon
            ):
                for phase in PHASES:
                    advance(f"{name}: {phase.name}")
                    arm.results.append(await _run_phase(client, server, phase, seconds))
                if daemon is not None and daemon.poll() is not None:
                    raise RuntimeError(f"specctl autotune ended by itself; see {folder}")
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    arm.started_s = arm.results[0].load.started_s
    return arm


async def _run_phase(client: httpx.AsyncClient, server: Server, phase: Phase, seconds: float) -> PhaseResult:
    before = await read_totals(client)
    load = await run_load(
        client,
        server.model,
        phase.prompts(),
        concurrency=phase.concurrency,
        max_tokens=phase.max_tokens,
        seconds=seconds,
    )
    after: Totals = await read_totals(client)
    return PhaseResult(
        phase,
        load,
        after.drafted_tokens - before.drafted_tokens,
        after.accepted_tokens - before.accepted_tokens,
    )
