"""Run the phases under one arm: speculation off, a fixed number of drafts, or the daemon's choice."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from demo.phases import PHASES, Phase
from demo.watch import Watch
from testing.autotune import autotune
from testing.load import LoadResult, run_load
from testing.lossless import put_table
from testing.servers import Server

__all__ = ["ArmRun", "run_arm", "run_rounds"]

LIVE_S = 2.0


@dataclass
class ArmRun:
    """One arm in one round. ``loads``: by phase."""

    name: str
    loads: list[LoadResult] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)

    @property
    def started_s(self) -> float:
        return self.loads[0].started_s

    @property
    def tokens_per_s(self) -> float:
        """Mean over the phases, which last equally long."""
        return statistics.fmean(load.tokens_per_s for load in self.loads)


async def run_rounds(
    arms: Mapping[str, int],
    server: Server,
    ours: str,
    *,
    rounds: int,
    policy: str,
    seconds: float,
    folder: Path,
    live: Callable[[str], None],
    ended: Callable[[ArmRun], object],
    phases: Sequence[Phase] = PHASES,
) -> list[list[ArmRun]]:
    """Every arm once in each round, every other round the other way about, so that no arm always comes first.

    Args:
        arms: drafted tokens to start with, by name.
        ours: the arm of them that runs under the policy.
        ended: is given each arm's run as it ends.
    """
    found: list[list[ArmRun]] = []
    for number in range(rounds):
        order = list(arms.items())
        runs = []
        for name, drafted in order if number % 2 == 0 else reversed(order):
            run = await run_arm(
                name,
                server,
                drafted=drafted,
                policy=policy if name == ours else None,
                seconds=seconds,
                folder=folder,
                live=live,
                phases=phases,
            )
            runs.append(run)
            ended(run)
        found.append(runs)
    return found


async def run_arm(
    name: str,
    server: Server,
    *,
    drafted: int,
    policy: str | None,
    seconds: float,
    folder: Path,
    live: Callable[[str], None],
    phases: Sequence[Phase] = PHASES,
) -> ArmRun:
    """Start with ``drafted`` tokens everywhere; with a policy a fresh daemon goes on from there.

    Args:
        live: is given a line of text every LIVE_S seconds.

    Raises RuntimeError where the daemon does not stay up.
    """
    run = ArmRun(name)
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        await put_table(client, drafted)
        watching = asyncio.create_task(run.watch.run(client))
        try:
            with (
                autotune(server.url, folder, policy=policy) if policy else contextlib.nullcontext() as daemon
            ):
                for phase in phases:
                    load = LoadResult(time.monotonic())
                    run.loads.append(load)
                    talking = asyncio.create_task(_talk(f"{name}: {phase.name}", load, live))
                    try:
                        await run_load(
                            client,
                            server.model,
                            phase.prompts(),
                            concurrency=phase.concurrency,
                            max_tokens=phase.max_tokens,
                            seconds=seconds,
                            result=load,
                        )
                    finally:
                        talking.cancel()
                        await asyncio.gather(talking, return_exceptions=True)
                if daemon is not None and daemon.poll() is not None:
                    raise RuntimeError(f"specctl autotune ended by itself; see {folder}")
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    return run


async def _talk(title: str, load: LoadResult, live: Callable[[str], None]) -> None:
    """Tokens per second of the last seconds, until cancelled."""
    while True:
        now_s = time.monotonic()
        recent = sum(count for when_s, count in load.arrivals if when_s > now_s - LIVE_S)
        span_s = min(max(now_s - load.started_s, 0.5), LIVE_S)
        live(f"{title}, {recent / span_s:.0f} tokens/s")
        await asyncio.sleep(LIVE_S / 2)
