"""Many targets in one process: start, watch the policy file, stop together."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from typing import Protocol

from specctl.clock import Clock

__all__ = ["run_daemon", "stop_on_signals"]

logger = logging.getLogger(__name__)

POLICY_CHECK_S = 1.0


class Runnable(Protocol):
    async def run(self, stop: asyncio.Event) -> None: ...


class Reloadable(Protocol):
    refusal: str | None

    def refresh(self) -> bool: ...


class PolicyGauge(Protocol):
    def policy(self, *, is_valid: bool) -> None: ...


def stop_on_signals(stop: asyncio.Event) -> None:
    """SIGTERM and SIGINT end the daemon after the look in progress."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def run_daemon(
    loops: Sequence[Runnable], policy: Reloadable, gauge: PolicyGauge, clock: Clock, stop: asyncio.Event
) -> None:
    """Until ``stop`` is set."""
    async with asyncio.TaskGroup() as group:
        for loop in loops:
            group.create_task(loop.run(stop))
        while not stop.is_set():
            await clock.sleep(POLICY_CHECK_S, stop)
            policy.refresh()
            gauge.policy(is_valid=policy.refusal is None)
    logger.info("stopped")
