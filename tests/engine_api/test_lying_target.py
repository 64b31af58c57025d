"""One target that answers with as much as it can must not starve the others, nor fill the memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
import tracemalloc
from collections.abc import Callable

import pytest
from fakes.clock import ManualClock
from fakes.engine import FakeEngine

from specctl.engine_api.client import EngineClient
from specctl.engine_api.observer import EngineObserver
from specctl.errors import TargetError
from specctl.http_client import HttpClient

ROUTES = "/specctl/v1"
TELEMETRY = f"{ROUTES}/telemetry"
MEBIBYTE = 1 << 20
CELL = {
    **dict.fromkeys(
        (
            "steps", "request_steps", "emitted_tokens", "verified_tokens", "context_tokens", "prefill_tokens",
            "step_s", "step_s_squared", "verified_tokens_squared", "step_s_by_verified_tokens", "draft_s",
            "verify_s",
        ),
        1,
    ),
    "num_speculative_tokens": 2, "has_prefill": False, "drafted_at": [1, 1], "accepted_at": [1, 0],
}  # fmt: skip


def many_cells(raw: bytes) -> bytes:
    cells = [{**CELL, "decode_batch_from": i, "decode_batch_to": i} for i in range(1, 4097)]
    return json.dumps({**json.loads(raw), "cells": cells}).encode()


def long_label(raw: bytes) -> bytes:
    return b"vllm:num_requests_running{x=%r} 1\n" % (str(time.monotonic()) * 200_000)[: 4 * MEBIBYTE - 100]


def short_labels(raw: bytes) -> bytes:
    """Each a new one; as many as a page may hold."""
    now = str(time.monotonic()).encode()
    return b"".join(b'vllm:num_requests_running{x="%s%d"} 1\n' % (now, i) for i in range(9_999))


LIES: dict[str, dict[str, Callable[[bytes], bytes]]] = {
    "no": {},
    "a label of 4 MiB": {"/metrics": long_label},
    "new labels": {"/metrics": short_labels},
    "a page of 5 MiB": {"/metrics": lambda raw: b"vllm:x 1\n" * 600_000},
    "empty lines": {"/metrics": lambda raw: b"vllm:x 1" + b"\n" * 4_000_000},
    "cells that are none": {TELEMETRY: lambda raw: b'{"cells":[' + b"{}," * MEBIBYTE + b"{}]}"},
    "fewer cells that are none": {TELEMETRY: lambda raw: b'{"cells":[' + b"{}," * 60_000 + b"{}]}"},
    "numbers": {TELEMETRY: lambda raw: b'{"cells":[' + b"1e20," * 700_000 + b"1]}"},
    "positions that are none": {
        TELEMETRY: lambda raw: json.dumps(
            {**json.loads(raw), "cells": [{**CELL, "drafted_at": ["x"] * 400_000}]}
        ).encode()
    },
    "as many cells as allowed": {TELEMETRY: many_cells},
    "buckets": {
        f"{ROUTES}/capabilities": lambda raw: json.dumps(
            {**json.loads(raw), "decode_batch_buckets": list(range(1, 40_000))}
        ).encode()
    },
    "warnings": {
        f"{ROUTES}/capabilities": lambda raw: json.dumps(
            {**json.loads(raw), "warnings": ["x" * 1000] * 200}
        ).encode()
    },
}


@pytest.mark.parametrize("has_plugin", [True, False])
@pytest.mark.parametrize("lie", LIES)
def test_the_loop_goes_on_beside_a_lying_target(lie: str, has_plugin: bool) -> None:
    async def ticks(stop: asyncio.Event) -> float:
        """The longest time for which nothing else ran, in CPU seconds: the machine may be busy."""
        longest_s, before_s = 0.0, time.thread_time()
        while not stop.is_set():
            await asyncio.sleep(0.005)
            now_s = time.thread_time()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s
        return longest_s

    async def course(liar: FakeEngine) -> float:
        clock, stop = ManualClock(), asyncio.Event()
        observer = EngineObserver(EngineClient(HttpClient(liar.url, timeout_s=30.0)), clock)
        ticker = asyncio.create_task(ticks(stop))
        for _ in range(4):
            clock.advance(10.0)
            with contextlib.suppress(TargetError):
                await observer.observe()
        stop.set()
        await observer.close()
        return await ticker

    with FakeEngine(start_tokens=2, has_plugin=has_plugin) as liar:
        liar.advance(1.0)
        liar.mangle = LIES[lie]
        # What other tests have left is not the daemon's to collect.
        gc.collect()
        gc.freeze()
        try:
            longest_s = asyncio.run(course(liar))
        finally:
            gc.unfreeze()
    assert longest_s < 1.0


async def least_memory() -> int:
    """The server's thread may still hold what it has sent."""
    seen = []
    for _ in range(5):
        await asyncio.sleep(0.02)
        seen.append(tracemalloc.get_traced_memory()[0])
    return min(seen)


@pytest.mark.parametrize("lie", LIES)
def test_nothing_is_kept_of_what_a_target_sends(lie: str) -> None:
    async def course(liar: FakeEngine) -> tuple[int, int]:
        clock = ManualClock()
        observer = EngineObserver(EngineClient(HttpClient(liar.url, timeout_s=60.0)), clock)
        kept = []
        for _ in range(4):
            clock.advance(100.0)
            with contextlib.suppress(TargetError):
                await observer.observe()
            kept.append(await least_memory())
        await observer.close()
        return kept[1], kept[3]

    with FakeEngine(start_tokens=2) as liar:
        liar.advance(1.0)
        liar.mangle = LIES[lie]
        tracemalloc.start()
        try:
            before, after = asyncio.run(course(liar))
        finally:
            tracemalloc.stop()
    assert after - before < MEBIBYTE
    # Two readings of as much telemetry as may be.
    assert after < 32 * MEBIBYTE
