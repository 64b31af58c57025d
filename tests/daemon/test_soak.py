"""Hours on virtual time under load that comes and goes: memory, descriptors and the rate of lines are flat.

``SPECCTL_SOAK_HOURS`` says how many.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import pytest
from fakes.clock import ManualClock
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine, Traffic
from fakes.rig import Rig
from prometheus_client import generate_latest

HOURS = float(os.environ.get("SPECCTL_SOAK_HOURS", "0.1"))
PARTS = 4
"""The first one warms up; the others are compared."""
LOADS = (COPYING, RANDOM_TEXT, None, Traffic(6, COPYING.accept_at), Traffic(3, RANDOM_TEXT.accept_at))
LOAD_MAX_S = 45
GROWTH_MAX_BYTES = 512 * 1024
LINES_SPARE, LINE_BYTES = 20, 500


class Part(NamedTuple):
    """At the end of one part of the hours."""

    memory_bytes: int
    descriptors: int
    lines: int
    audit_bytes: int
    page_bytes: int


class Lines(logging.Handler):
    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def test_nothing_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, audit, clock = Lines(), tmp_path / "audit.jsonl", ManualClock()
    logger = logging.getLogger("specctl")
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr("specctl.daemon.reporter.time.monotonic", clock.now_s)
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)

    def part(rig: Rig) -> Part:
        page = len(generate_latest(rig.exporter.registry))
        gc.collect()
        memory = tracemalloc.get_traced_memory()[0]
        return Part(memory, len(os.listdir("/proc/self/fd")), lines.count, audit.stat().st_size, page)

    async def course() -> list[Part]:
        found: list[Part] = []
        async with Rig(engine, clock=clock, audit=audit) as rig:
            for second in range(1, seconds + 1):
                if second % load_s == 0:
                    engine.traffic = LOADS[second // load_s % len(LOADS)]
                    # What only the fake keeps.
                    engine.requests.clear()
                    engine.puts.clear()
                if second % restart_s == 0:
                    engine.restart()
                await rig.run(1)
                if second % (seconds // PARTS) == 0:
                    found.append(part(rig))
        return found

    seconds = int(HOURS * 3600)
    restart_s = max(seconds // (2 * PARTS), 1)
    # Each part has every load.
    load_s = min(max(seconds // (PARTS * len(LOADS)), 1), LOAD_MAX_S)
    tracemalloc.start()
    try:
        with FakeEngine(traffic=COPYING) as engine:
            found = asyncio.run(course())
    finally:
        tracemalloc.stop()
        logger.removeHandler(lines)
    print(*found, sep="\n")
    first, *_, before, last = found
    assert last.memory_bytes - first.memory_bytes < GROWTH_MAX_BYTES
    assert last.descriptors <= first.descriptors + 1
    assert last.page_bytes < 2 * first.page_bytes
    for name, spare in (("lines", LINES_SPARE), ("audit_bytes", LINES_SPARE * LINE_BYTES)):
        rates = [getattr(b, name) - getattr(a, name) for a, b in ((first, found[1]), (before, last))]
        assert rates[1] < 1.5 * rates[0] + spare, name
