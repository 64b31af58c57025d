"""How soon the daemon follows: a server that is off gets copying-heavy traffic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.autotune import autotune
from benchmarks.load import run_load
from benchmarks.lossless import put_table
from benchmarks.provenance import summary

IDLE_S = 4.0
POLL_S = 0.05
GIVE_UP_S = 20.0


async def reaction(
    client: httpx.AsyncClient, url: str, prompts: Sequence[str], repeats: int, folder: Path
) -> dict[str, Any]:
    """Seconds from the first token of the new traffic to a table that drafts for it."""
    seconds = []
    for i in range(repeats):
        await take_table(client, 0)
        with autotune(url, folder):
            await asyncio.sleep(IDLE_S)
            load = asyncio.create_task(
                run_load(client, "model", [prompts[i % len(prompts)]], concurrency=1, max_tokens=160)
            )
            while await _get(client, "telemetry", "decoding") == 0:
                await asyncio.sleep(POLL_S)
            started_s = time.monotonic()
            while await _drafts_for_one(client) == 0 and time.monotonic() < started_s + GIVE_UP_S:
                await asyncio.sleep(POLL_S)
            seconds.append(time.monotonic() - started_s)
            await load
        print(f"bench: the daemon turned drafting on after {seconds[-1]:.2f} s", flush=True)
    return {"seconds": summary(seconds)}


async def take_table(client: httpx.AsyncClient, num_speculative_tokens: int) -> None:
    """Put one value; waits for the lease of a daemon that has stopped."""
    while True:
        try:
            await put_table(client, num_speculative_tokens)
            return
        except httpx.HTTPStatusError:
            await asyncio.sleep(0.5)


async def _drafts_for_one(client: httpx.AsyncClient) -> int:
    rows = await _get(client, "table", "rows")
    return next(row["num_speculative_tokens"] for row in rows if row["decode_batch_from"] == 1)


async def _get(client: httpx.AsyncClient, route: str, key: str) -> Any:
    answer = await client.get(f"/specctl/v1/{route}")
    answer.raise_for_status()
    return answer.json()[key]
